//! The envelope: metadata that the library writes into reserved headers and reads back.
//!
//! Reading never fails: a missing or malformed header gets its default.

use super::headers::{HeaderValue, Headers, Properties};
use super::wire::{
    ATTEMPT, CAUSATION, CLAIM, CORRELATION, ENVELOPE_HEADERS, ERROR, FIRST_SEEN, ID, ORIGIN,
    RESERVED_PREFIX, TYPE, VERSION,
};
use std::time::Duration;

/// The metadata of a message: its id, kind, origin, and which attempt this is.
///
/// The envelope travels in headers with the prefix `x-acemq-`. These headers are reserved: they do
/// not appear among the application's headers, and publishing a message with such a header fails.
///
/// A message from a foreign publisher has an envelope too. Every missing or malformed header has a
/// default, named by its getter. Texts are read from long strings and from byte arrays in UTF-8.
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
    /// Reserved headers that this version does not interpret. They are written back at every hop.
    carried: Headers,
}

impl Envelope {
    /// The id of the message, the same on every attempt. Defaults to the AMQP property
    /// `message_id`, then to a new UUID.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The kind of message (`x-acemq-type`), such as `order.placed.v2`. Defaults to the routing
    /// key.
    ///
    /// An empty kind stays empty, because the routing key of a retry is the name of its queue.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The version of the kind, at least 1. Defaults to 1.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The id that related messages share, such as that of the first message of a conversation.
    /// Defaults to [`id`](Self::id).
    #[must_use]
    pub fn correlation(&self) -> &str {
        &self.correlation
    }

    /// The id of the message that caused this one.
    #[must_use]
    pub fn causation(&self) -> Option<&str> {
        self.causation.as_deref()
    }

    /// The number of this attempt, starting at 1. Defaults to 1.
    ///
    /// A redelivery is not a new attempt: a message that returns because its consumer died has the
    /// same attempt as before.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The time of the first publish, in milliseconds since 1970.
    ///
    /// `None` if the header is missing, malformed, not positive, or was in the future when the
    /// message arrived. Such a message has no age, and an age limit does not apply to it.
    #[must_use]
    pub fn first_seen_millis(&self) -> Option<i64> {
        self.first_seen
    }

    /// The first publisher, as `service@host`. Defaults to an empty text.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The reason for which the message was dead-lettered or parked.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The application's reference to a payload that is stored elsewhere.
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

    /// Sets the links to other messages and payloads. Empty texts count as absent.
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

    /// Reads the envelope of a delivery; never fails.
    pub(crate) fn read(
        properties: &Properties,
        headers: &Headers,
        routing_key: &str,
        now_millis: i64,
        new_id: impl FnOnce() -> String,
    ) -> Self {
        let full = |name| text(headers, name).filter(|text| !text.is_empty());
        let owned = |name| full(name).map(str::to_owned);
        // The id comes first, because the correlation defaults to it.
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

    /// Replaces the reserved headers in `headers`.
    ///
    /// An unknown first-seen becomes `now_millis`, so that the message has an age from its next hop
    /// on.
    pub(crate) fn write(&self, headers: &mut Headers, now_millis: i64) {
        // Stale reserved headers would otherwise survive where this envelope has no value.
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

    /// Sets the attempt, clamped to 1..=[`i32::MAX`], the range of its wire type.
    #[must_use]
    pub(crate) fn with_attempt(self, attempt: u32) -> Self {
        Self {
            attempt: attempt.clamp(1, i32::MAX.unsigned_abs()),
            ..self
        }
    }

    /// Sets the reason for the dead-letter or parked queue. An empty reason removes it.
    #[must_use]
    pub(crate) fn with_error(self, reason: impl Into<String>) -> Self {
        Self {
            error: Some(reason.into()).filter(|reason| !reason.is_empty()),
            ..self
        }
    }

    /// The age of the message; `None` if its first publish is unknown. Never negative, even after a
    /// clock was set back.
    pub(crate) fn age(&self, now_millis: i64) -> Option<Duration> {
        let millis = now_millis.saturating_sub(self.first_seen?);
        Some(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
    }
}

/// Whether a header name is reserved for the library.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED_PREFIX)
}

/// The headers without reserved ones.
pub(crate) fn application_headers(headers: &Headers) -> Headers {
    headers
        .iter()
        .filter(|(name, _)| !is_reserved(name))
        .map(|(name, value)| (name, value.clone()))
        .collect()
}

/// The reserved names among `headers`, sorted. An application may not publish them.
pub(crate) fn reserved_offenders(headers: &Headers) -> Vec<String> {
    headers
        .iter()
        .map(|(name, _)| name)
        .filter(|name| is_reserved(name))
        .map(str::to_owned)
        .collect()
}

/// The reserved headers to write back unchanged: those that a newer library introduced, and
/// optional ones whose value is not a text.
fn carried(headers: &Headers) -> Headers {
    let lost_otherwise = |name, value: &HeaderValue| {
        let optional = matches!(name, CAUSATION | ERROR | CLAIM);
        // `write` omits an optional header without a text, so its value must be carried. Void
        // counts as absent.
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

/// Parses a decimal integer, ignoring surrounding space; an out-of-range value saturates.
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
    // Only digits are left, so parsing can fail by overflow alone.
    let limit = if negative { i64::MIN } else { i64::MAX };
    Some(text.parse().unwrap_or(limit))
}

/// A count of at least 1, clamped to the range of an i32; 1 if missing.
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
