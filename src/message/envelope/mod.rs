//! What the library itself says about a message, in headers whose names are reserved.

use super::headers::{HeaderValue, Headers, Properties};
use super::wire::{
    ATTEMPT, CAUSATION, CLAIM, CORRELATION, ENVELOPE_HEADERS, ERROR, FIRST_SEEN, ID, ORIGIN,
    RESERVED_PREFIX, TYPE, VERSION,
};
use std::time::Duration;

/// What came with a message beside its payload: who it is, where it comes from, and which attempt this is.
///
/// It travels in headers that begin with `x-acemq-`. They never appear among the application's headers, and an
/// application cannot publish headers with such names. A message from a publisher that knows nothing of them has an envelope
/// all the same: whatever is missing or unreadable has a default, which each getter names.
///
/// Texts are read from long strings and from byte arrays that are UTF-8.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    id: String,
    kind: String,
    version: u32,
    correlation: String,
    causation: Option<String>,
    attempt: u32,
    first_seen: Option<i64>,
    origin: String,
    error: Option<String>,
    claim: Option<String>,
    /// Reserved headers that this version has no use for: they are written back at every hop.
    carried: Headers,
}

impl Envelope {
    /// The message's id, the same on every attempt. Defaults to the AMQP property `message_id`, else to a new UUID.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What kind of message it is (`x-acemq-type`). Defaults to the routing key; an empty one stays empty, because a
    /// retry is delivered with another routing key.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The version of that kind, at least 1. Defaults to 1.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What the message belongs to, such as the first message of a conversation. Defaults to [`id`](Self::id).
    #[must_use]
    pub fn correlation(&self) -> &str {
        &self.correlation
    }

    /// The id of the message that caused this one.
    #[must_use]
    pub fn causation(&self) -> Option<&str> {
        self.causation.as_deref()
    }

    /// Which attempt this is, from 1. Defaults to 1.
    ///
    /// A redelivery is no new attempt: a message that comes back because a process died has the attempt it had.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When the message was first published, in milliseconds since 1970. `None` when the header is missing, unreadable,
    /// not positive, or was in the future when the message arrived; such a message has no age.
    #[must_use]
    pub fn first_seen_millis(&self) -> Option<i64> {
        self.first_seen
    }

    /// Who published it first, as `service@host`. Defaults to an empty text.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Why the message was dead-lettered or parked.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The application's own reference to a payload that is kept elsewhere.
    #[must_use]
    pub fn claim(&self) -> Option<&str> {
        self.claim.as_deref()
    }

    /// The envelope of a new message; `kind` defaults to the routing key.
    pub(crate) fn build(
        routing_key: &str,
        kind: Option<&str>,
        origin: &str,
        now_millis: i64,
        id: String,
    ) -> Self {
        Self {
            kind: kind.unwrap_or(routing_key).to_owned(),
            version: 1,
            correlation: id.clone(),
            causation: None,
            attempt: 1,
            first_seen: valid_instant(now_millis, now_millis),
            origin: origin.to_owned(),
            error: None,
            claim: None,
            carried: Headers::new(),
            id,
        }
    }

    /// The same envelope, tied to others where its publisher says so; empty texts say nothing.
    #[must_use]
    pub(crate) fn with_links(
        self,
        correlation: Option<&str>,
        causation: Option<&str>,
        claim: Option<&str>,
    ) -> Self {
        let given = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        Self {
            correlation: given(correlation).unwrap_or(self.correlation),
            causation: given(causation).or(self.causation),
            claim: given(claim).or(self.claim),
            ..self
        }
    }

    /// The envelope of a delivery. Whatever the headers hold, there is one.
    pub(crate) fn read(
        properties: &Properties,
        headers: &Headers,
        routing_key: &str,
        now_millis: i64,
        new_id: impl FnOnce() -> String,
    ) -> Self {
        let full = |name| text(headers, name).filter(|text| !text.is_empty());
        let owned = |name| full(name).map(str::to_owned);
        let id = owned(ID)
            .or_else(|| properties.message_id.clone().filter(|id| !id.is_empty()))
            .unwrap_or_else(new_id);
        Self {
            kind: text(headers, TYPE).unwrap_or(routing_key).to_owned(),
            version: counted(headers, VERSION),
            correlation: full(CORRELATION).unwrap_or(&id).to_owned(),
            causation: owned(CAUSATION),
            attempt: counted(headers, ATTEMPT),
            first_seen: integer(headers, FIRST_SEEN)
                .and_then(|millis| valid_instant(millis, now_millis)),
            origin: full(ORIGIN).unwrap_or_default().to_owned(),
            error: owned(ERROR),
            claim: owned(CLAIM),
            carried: carried(headers),
            id,
        }
    }

    /// Writes the reserved headers, in place of all that are there.
    ///
    /// A first-seen that is not known becomes `now_millis`, so that the message has an age from its next hop on.
    pub(crate) fn write(&self, headers: &mut Headers, now_millis: i64) {
        headers.retain(|name, _| !is_reserved(name));
        for (name, value) in self.carried.iter() {
            headers.insert(name, value.clone());
        }
        headers.insert(ID, self.id.as_str());
        headers.insert(TYPE, self.kind.as_str());
        headers.insert(VERSION, wire_count(self.version));
        headers.insert(CORRELATION, self.correlation.as_str());
        headers.insert(ATTEMPT, wire_count(self.attempt));
        headers.insert(FIRST_SEEN, self.first_seen.unwrap_or(now_millis));
        let origin = Some(&self.origin).filter(|origin| !origin.is_empty());
        let optional = [
            (CAUSATION, self.causation.as_ref()),
            (ORIGIN, origin),
            (ERROR, self.error.as_ref()),
            (CLAIM, self.claim.as_ref()),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                headers.insert(name, value.as_str());
            }
        }
    }

    /// The same envelope for another attempt, held to what fits an i32 and is at least 1.
    #[must_use]
    pub(crate) fn with_attempt(self, attempt: u32) -> Self {
        Self {
            attempt: attempt.clamp(1, i32::MAX.unsigned_abs()),
            ..self
        }
    }

    /// The same envelope with a reason for the dead-letter or parked queue; an empty one is none.
    #[must_use]
    pub(crate) fn with_error(self, reason: impl Into<String>) -> Self {
        Self {
            error: Some(reason.into()).filter(|reason| !reason.is_empty()),
            ..self
        }
    }

    /// How old the message is, or `None` where that is not known.
    pub(crate) fn age(&self, now_millis: i64) -> Option<Duration> {
        let millis = now_millis.saturating_sub(self.first_seen?);
        Some(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
    }
}

/// Whether a header belongs to the library.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED_PREFIX)
}

/// The headers without the reserved ones.
pub(crate) fn application_headers(headers: &Headers) -> Headers {
    headers
        .iter()
        .filter(|(name, _)| !is_reserved(name))
        .map(|(name, value)| (name, value.clone()))
        .collect()
}

/// The names that an application may not publish, sorted.
pub(crate) fn reserved_offenders(headers: &Headers) -> Vec<String> {
    headers
        .iter()
        .map(|(name, _)| name)
        .filter(|name| is_reserved(name))
        .map(str::to_owned)
        .collect()
}

/// The reserved headers to write back as they came: those of newer libraries, and optional ones that hold no text.
fn carried(headers: &Headers) -> Headers {
    let lost_otherwise = |name, value: &HeaderValue| {
        let optional = matches!(name, CAUSATION | ERROR | CLAIM);
        optional && *value != HeaderValue::Void && text_of(value).is_none()
    };
    headers
        .iter()
        .filter(|(name, value)| {
            is_reserved(name) && (!ENVELOPE_HEADERS.contains(name) || lost_otherwise(*name, value))
        })
        .map(|(name, value)| (name, value.clone()))
        .collect()
}

fn text<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(text_of)
}

fn text_of(value: &HeaderValue) -> Option<&str> {
    match value {
        HeaderValue::Text(text) => Some(text),
        HeaderValue::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

fn integer(headers: &Headers, name: &str) -> Option<i64> {
    let value = headers.get(name)?;
    value.as_i64().or_else(|| text_of(value).and_then(decimal))
}

/// A decimal integer with surrounding space; one that is too large is the largest there is.
fn decimal(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let limit = if negative { i64::MIN } else { i64::MAX };
    Some(text.parse().unwrap_or(limit))
}

/// A number that counts from 1, held to an i32.
fn counted(headers: &Headers, name: &str) -> u32 {
    let number = integer(headers, name).unwrap_or(1);
    i32::try_from(number.clamp(1, i32::MAX.into())).map_or(1, i32::unsigned_abs)
}

fn wire_count(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn valid_instant(millis: i64, now_millis: i64) -> Option<i64> {
    (millis > 0 && millis <= now_millis).then_some(millis)
}

#[cfg(test)]
mod tests;
