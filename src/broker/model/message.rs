//! A published message.

use super::profile::Profile;
use super::refusal::Refusal;
use crate::message::delivery::{Body, Outgoing};
use crate::message::headers::{HeaderValue, Headers, Properties};

/// The maximum time to live, in milliseconds: ten years.
pub(crate) const LONGEST_TTL: i128 = 315_360_000_000;

/// The only user.
const USER: &str = "guest";

/// The part of a message that does not change in a queue; shared by the queues it was routed to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) exchange: String,
    /// The routing key of the publish, then those of the headers `CC` and `BCC`.
    pub(crate) routing_keys: Vec<String>,
    /// The routing keys of `BCC`, which deliveries and `x-death` do not show.
    pub(crate) blind_keys: Vec<String>,
    pub(crate) properties: Properties,
    pub(crate) headers: Headers,
    pub(crate) body: Body,
    /// The deaths as 4.x records them, newest first.
    pub(crate) deaths: Vec<Death>,
    /// The count of failed deliveries, which a quorum queue of 4.x passes on to the next one.
    pub(crate) failed_deliveries: u64,
}

/// One recorded death: its queue, its reason, and its entry in `x-death`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Death {
    pub(crate) queue: String,
    pub(crate) reason: &'static str,
    pub(crate) entry: Headers,
}

impl Message {
    /// The message of a publish. Fails when a property or a header is invalid.
    pub(crate) fn published(outgoing: &Outgoing, profile: Profile) -> Result<Self, Refusal> {
        let properties = &outgoing.properties;
        let (size, largest) = (outgoing.body.len(), profile.max_message_size());
        if size > largest {
            return Err(Refusal::precondition_failed(format!(
                "message size {size} is larger than configured max size {largest}"
            )));
        }
        if let Some(user) = properties.user_id.as_deref().filter(|user| *user != USER) {
            return Err(Refusal::precondition_failed(format!(
                "user_id property set to '{user}' but authenticated user was '{USER}'"
            )));
        }
        if properties.reply_to.as_deref() == Some("amq.rabbitmq.reply-to") {
            return Err(Refusal::precondition_failed(
                "fast reply consumer does not exist",
            ));
        }
        let ttl = properties.expiration.as_ref().map(|text| {
            milliseconds(text).map_err(|why| {
                Refusal::precondition_failed(format!("invalid expiration '{text}': {why}"))
            })
        });
        let ttl = ttl.transpose()?;
        let mut headers = outgoing.headers.clone();
        let copied = keys(&headers, "CC")?;
        let blind_keys = keys(&headers, "BCC")?;
        // Consumers must not see the blind copies, so the header is never stored.
        headers.remove("BCC");
        let mut routing_keys = vec![outgoing.routing_key.clone()];
        routing_keys.extend(copied);
        routing_keys.extend(blind_keys.iter().cloned());
        let mut properties = properties.clone();
        if profile == Profile::V4_0 {
            // 4.x stores the number, and formats it again.
            properties.expiration = ttl.map(|millis| millis.to_string());
        }
        Ok(Self {
            exchange: outgoing.exchange.clone(),
            routing_keys,
            blind_keys,
            properties,
            headers,
            body: outgoing.body.clone(),
            deaths: Vec::new(),
            failed_deliveries: 0,
        })
    }

    /// The routing key of deliveries.
    pub(crate) fn routing_key(&self) -> &str {
        self.routing_keys.first().map_or("", String::as_str)
    }

    /// The time to live of its `expiration`, in milliseconds.
    pub(crate) fn ttl(&self) -> Option<u64> {
        milliseconds(self.properties.expiration.as_deref()?).ok()
    }

    pub(crate) fn is_persistent(&self) -> bool {
        self.properties.delivery_mode == Some(2)
    }
}

/// The texts in the array `header`; values of other types in it are ignored.
pub(crate) fn keys(headers: &Headers, header: &str) -> Result<Vec<String>, Refusal> {
    match headers.get(header) {
        None => Ok(Vec::new()),
        Some(HeaderValue::Array(values)) => Ok(values
            .iter()
            .filter_map(|value| value.as_str().map(str::to_owned))
            .collect()),
        Some(_) => Err(Refusal::precondition_failed(format!(
            "invalid message: {{unacceptable_type_in_header,\"{header}\"}}"
        ))),
    }
}

/// Parses a time to live as RabbitMQ does: a sign is allowed, and nothing may follow the digits.
pub(crate) fn milliseconds(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = digits
        .find(|char: char| !char.is_ascii_digit())
        .unwrap_or(digits.len());
    if end == 0 {
        return Err("no_integer".to_owned());
    }
    if end < digits.len() {
        return Err(format!("{{leftover_string,\"{}\"}}", &digits[end..]));
    }
    // A number that overflows is too large in any case.
    let number: i128 = text.parse().unwrap_or(LONGEST_TTL + 1);
    within_ttl(number)
}

/// Checks that a number is a valid time to live.
pub(crate) fn within_ttl(number: i128) -> Result<u64, String> {
    if number < 0 {
        return Err(format!("{{value_negative,{number}}}"));
    }
    match u64::try_from(number) {
        Ok(millis) if number <= LONGEST_TTL => Ok(millis),
        _ => Err(format!("{{value_too_large,{number}}}")),
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn outgoing() -> Outgoing {
        Outgoing {
            exchange: "e".to_owned(),
            routing_key: "k".to_owned(),
            mandatory: false,
            properties: Properties::default(),
            headers: Headers::new(),
            body: Arc::default(),
        }
    }

    fn code(outgoing: &Outgoing, profile: Profile) -> Option<u16> {
        Message::published(outgoing, profile)
            .err()
            .map(|refusal| refusal.code)
    }

    #[test]
    fn expiration_parses_as_in_rabbitmq() {
        for (text, expected) in [
            ("0", Some(0)),
            ("+5", Some(5)),
            ("007", Some(7)),
            ("315360000000", Some(315_360_000_000)),
            ("315360000001", None),
            ("99999999999999999999999999999999999999999999", None),
            ("-1", None),
            ("-0", Some(0)),
            ("", None),
            ("+", None),
            ("5 ", None),
            (" 5", None),
            ("5.0", None),
            ("five", None),
        ] {
            assert_eq!(milliseconds(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn user_id_must_be_the_user() {
        let mut outgoing = outgoing();
        outgoing.properties.user_id = Some("guest".to_owned());
        assert_eq!(code(&outgoing, Profile::V3_10), None);
        outgoing.properties.user_id = Some("admin".to_owned());
        assert_eq!(code(&outgoing, Profile::V3_10), Some(406));
    }

    #[test]
    fn body_size_is_limited() {
        for (profile, largest) in [(Profile::V3_10, 128 << 20), (Profile::V4_0, 16 << 20)] {
            let mut outgoing = outgoing();
            outgoing.body = Arc::new(vec![0; largest]);
            assert_eq!(code(&outgoing, profile), None);
            outgoing.body = Arc::new(vec![0; largest + 1]);
            assert_eq!(code(&outgoing, profile), Some(406));
        }
    }

    #[test]
    fn cc_and_bcc_add_routing_keys_and_bcc_is_removed() {
        let mut outgoing = outgoing();
        outgoing
            .headers
            .insert("CC", vec!["copy".into(), HeaderValue::I32(1)]);
        outgoing
            .headers
            .insert("BCC", vec![HeaderValue::from("blind")]);
        let message = Message::published(&outgoing, Profile::V3_10).unwrap();
        assert_eq!(message.routing_keys, ["k", "copy", "blind"]);
        assert_eq!(message.blind_keys, ["blind"]);
        assert!(message.headers.contains("CC") && !message.headers.contains("BCC"));
        for header in ["CC", "BCC"] {
            let mut outgoing = outgoing.clone();
            outgoing.headers.insert(header, "copy");
            assert_eq!(code(&outgoing, Profile::V3_10), Some(406), "{header}");
        }
    }

    #[test]
    fn only_v4_normalizes_the_expiration() {
        let mut outgoing = outgoing();
        outgoing.properties.expiration = Some("+05".to_owned());
        for (profile, expected) in [(Profile::V3_10, "+05"), (Profile::V4_0, "5")] {
            let message = Message::published(&outgoing, profile).unwrap();
            assert_eq!(message.properties.expiration.as_deref(), Some(expected));
            assert_eq!(message.ttl(), Some(5));
        }
    }

    #[test]
    fn direct_reply_to_is_refused() {
        let mut outgoing = outgoing();
        outgoing.properties.reply_to = Some("amq.rabbitmq.reply-to".to_owned());
        assert_eq!(code(&outgoing, Profile::V4_0), Some(406));
    }
}
