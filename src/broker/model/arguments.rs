//! The arguments of a queue: their validation and their meaning.

use super::equivalence::type_name;
use super::message::within_ttl;
use super::profile::Profile;
use super::refusal::{self, Refusal};
use crate::message::headers::{HeaderValue, Headers};
use std::time::Duration;

/// The type of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    Classic,
    Quorum,
}

impl QueueKind {
    /// The value of `x-queue-type`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }
}

/// The behaviour of a full queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Overflow {
    #[default]
    DropHead,
    RejectPublish,
    /// Rejected messages are dead-lettered; classic queues only.
    RejectPublishDlx,
}

/// The meaning of a queue's arguments.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    /// The time to live of messages, in milliseconds.
    pub(crate) ttl: Option<u64>,
    /// The time without use after which the queue is deleted.
    pub(crate) expires: Option<Duration>,
    pub(crate) dead_letter_exchange: Option<String>,
    pub(crate) dead_letter_routing_key: Option<String>,
    pub(crate) max_length: Option<u64>,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) overflow: Overflow,
    pub(crate) max_priority: Option<u8>,
    pub(crate) single_active: bool,
    /// The number of times a quorum queue redelivers a message; none is no limit.
    pub(crate) delivery_limit: Option<u64>,
}

/// The arguments that a classic queue accepts.
const CLASSIC: &[&str] = &[
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-master-locator",
];

/// The further ones that it accepts from 4.0 on.
const CLASSIC_4: &[&str] = &["x-queue-leader-locator"];

/// The arguments that a quorum queue accepts.
const QUORUM: &[&str] = &[
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-overflow",
    "x-single-active-consumer",
    "x-queue-type",
    "x-quorum-initial-group-size",
    "x-delivery-limit",
    "x-message-ttl",
    "x-queue-leader-locator",
];

/// The arguments that only a stream accepts.
const STREAM: &[&str] = &[
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-initial-cluster-size",
];

/// The order in which RabbitMQ validates values, which decides about the error of several invalid
/// ones.
const CHECKED: &[&str] = &[
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-quorum-initial-group-size",
    "x-queue-leader-locator",
];

/// The arguments that a queue of that type accepts.
pub(crate) fn known(kind: QueueKind, profile: Profile) -> Vec<&'static str> {
    match (kind, profile) {
        (QueueKind::Quorum, _) => QUORUM.to_vec(),
        (QueueKind::Classic, Profile::V3_10) => CLASSIC.to_vec(),
        (QueueKind::Classic, Profile::V4_0) => [CLASSIC, CLASSIC_4].concat(),
    }
}

/// Validates the arguments of a new queue.
pub(crate) fn read(
    name: &str,
    arguments: &Headers,
    profile: Profile,
) -> Result<(QueueKind, Settings), Refusal> {
    let invalid = |argument: &str, why: String| {
        Refusal::precondition_failed(format!(
            "invalid arg '{argument}' for {}: {why}",
            refusal::queue(name)
        ))
    };
    // RabbitMQ checks this type before all other arguments, and with a text that differs from
    // theirs.
    if let Some(exchange) = arguments.get("x-dead-letter-exchange")
        && exchange.as_str().is_none()
    {
        return Err(Refusal::precondition_failed(format!(
            "invalid type '{}' for arg 'x-dead-letter-exchange' in {}",
            type_name(exchange),
            refusal::queue(name)
        )));
    }
    let kind = kind(arguments).map_err(|why| invalid("x-queue-type", why))?;
    let Some(kind) = kind else {
        return Err(Refusal::not_implemented(format!(
            "{} is a stream, and the embedded broker has none",
            refusal::queue(name)
        )));
    };
    let known = known(kind, profile);
    for argument in CHECKED.iter().filter(|argument| known.contains(argument)) {
        if let Some(value) = arguments.get(argument) {
            check(argument, value, arguments).map_err(|why| invalid(argument, why))?;
        }
    }
    // Arguments of other queue types are refused; arguments of none are ignored.
    let all = [CLASSIC, CLASSIC_4, QUORUM, STREAM].concat();
    for (argument, _) in arguments.iter() {
        if all.contains(&argument) && !known.contains(&argument) {
            return Err(Refusal::precondition_failed(format!(
                "invalid arg '{argument}' for {} of queue type rabbit_{}_queue",
                refusal::queue(name),
                kind.as_str()
            )));
        }
    }
    Ok((kind, settings(kind, arguments, profile)))
}

/// The type that the arguments ask for; `None` for a stream.
fn kind(arguments: &Headers) -> Result<Option<QueueKind>, String> {
    match arguments.get("x-queue-type") {
        // Both versions default to the classic type.
        None => Ok(Some(QueueKind::Classic)),
        Some(HeaderValue::Text(text)) => match text.as_str() {
            "classic" => Ok(Some(QueueKind::Classic)),
            "quorum" => Ok(Some(QueueKind::Quorum)),
            "stream" => Ok(None),
            other => Err(format!("\"unsupported queue type '{other}'\"")),
        },
        Some(other) => Err(unacceptable(other)),
    }
}

fn check(argument: &str, value: &HeaderValue, arguments: &Headers) -> Result<(), String> {
    match argument {
        "x-expires" => {
            if integer(value)? == 0 {
                return Err("{value_zero,0}".to_owned());
            }
            within_ttl(integer(value)?.into()).map(drop)
        }
        "x-message-ttl" => within_ttl(integer(value)?.into()).map(drop),
        "x-dead-letter-routing-key" => {
            text(value)?;
            if arguments.contains("x-dead-letter-exchange") {
                Ok(())
            } else {
                Err("routing_key_but_no_dlx_defined".to_owned())
            }
        }
        "x-dead-letter-strategy" => one_of(
            value,
            &["at-most-once", "at-least-once"],
            "invalid_dlx_strategy",
        ),
        "x-max-priority" => match natural(value)? {
            0..=255 => Ok(()),
            more => Err(format!("{{max_value_exceeded,{more}}}")),
        },
        "x-overflow" => one_of(
            value,
            &["drop-head", "reject-publish", "reject-publish-dlx"],
            "invalid_overflow",
        ),
        "x-queue-mode" => one_of(value, &["default", "lazy"], "\"unsupported queue mode\""),
        "x-queue-version" => match natural(value)? {
            1 | 2 => Ok(()),
            other => Err(format!("\"unsupported queue version '{other}'\"")),
        },
        "x-single-active-consumer" => match value {
            HeaderValue::Bool(_) => Ok(()),
            other => Err(unacceptable(other)),
        },
        "x-quorum-initial-group-size" => match natural(value)? {
            0 => Err("{value_zero,0}".to_owned()),
            _ => Ok(()),
        },
        "x-queue-leader-locator" => one_of(
            value,
            &["client-local", "balanced", "random", "least-leaders"],
            "invalid_queue_locator_arg",
        ),
        _ => natural(value).map(drop),
    }
}

/// The meaning of valid arguments, or of a policy.
pub(crate) fn settings(kind: QueueKind, arguments: &Headers, profile: Profile) -> Settings {
    let number = |argument: &str| {
        // A policy is not validated: a negative number means no limit.
        let value = arguments.get(argument)?.as_i64()?;
        u64::try_from(value).ok()
    };
    let text = |argument: &str| arguments.get(argument)?.as_str().map(str::to_owned);
    let overflow = match text("x-overflow").as_deref() {
        Some("reject-publish") => Overflow::RejectPublish,
        Some("reject-publish-dlx") if kind == QueueKind::Classic => Overflow::RejectPublishDlx,
        // A quorum queue falls back to its default for `reject-publish-dlx`.
        _ => Overflow::DropHead,
    };
    Settings {
        ttl: number("x-message-ttl"),
        expires: number("x-expires").map(Duration::from_millis),
        dead_letter_exchange: text("x-dead-letter-exchange"),
        dead_letter_routing_key: text("x-dead-letter-routing-key"),
        max_length: number("x-max-length"),
        max_bytes: number("x-max-length-bytes"),
        overflow,
        max_priority: number("x-max-priority").and_then(|most| u8::try_from(most).ok()),
        single_active: arguments.get("x-single-active-consumer") == Some(&HeaderValue::Bool(true)),
        delivery_limit: delivery_limit(arguments, profile),
    }
}

/// RabbitMQ does not validate this argument: a text compares greater than any number, and only 4.x
/// has a meaning for negative numbers.
fn delivery_limit(arguments: &Headers, profile: Profile) -> Option<u64> {
    let Some(value) = arguments.get("x-delivery-limit") else {
        return profile.delivery_limit();
    };
    match (value.as_i64(), profile) {
        (None, _) => Some(u64::MAX),
        (Some(limit), Profile::V4_0) if limit < 0 => None,
        (Some(limit), _) => Some(u64::try_from(limit).unwrap_or(0)),
    }
}

fn integer(value: &HeaderValue) -> Result<i64, String> {
    value
        .as_i64()
        .ok_or_else(|| format!("\"expected integer, got {}\"", type_name(value)))
}

fn natural(value: &HeaderValue) -> Result<i64, String> {
    match integer(value)? {
        negative @ ..0 => Err(format!("{{value_negative,{negative}}}")),
        number => Ok(number),
    }
}

fn text(value: &HeaderValue) -> Result<&str, String> {
    value.as_str().ok_or_else(|| unacceptable(value))
}

fn one_of(value: &HeaderValue, allowed: &[&str], otherwise: &str) -> Result<(), String> {
    if allowed.contains(&text(value)?) {
        Ok(())
    } else {
        Err(otherwise.to_owned())
    }
}

fn unacceptable(value: &HeaderValue) -> String {
    format!("{{unacceptable_type,{}}}", type_name(value))
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests {
    use super::*;
    use crate::broker::model::equivalence::check_equivalent;

    const PROFILES: [Profile; 2] = [Profile::V3_10, Profile::V4_0];

    fn table(entries: &[(&str, HeaderValue)]) -> Headers {
        entries.iter().cloned().collect()
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let quorum = || ("x-queue-type", HeaderValue::from("quorum"));
        for entries in [
            vec![("x-queue-type", "fast".into())],
            vec![("x-queue-type", 1.into())],
            vec![("x-message-ttl", "1000".into())],
            vec![("x-message-ttl", (-1).into())],
            vec![("x-message-ttl", 315_360_000_001_i64.into())],
            vec![("x-message-ttl", 1.5_f64.into())],
            vec![("x-expires", 0.into())],
            vec![("x-max-length", (-1).into())],
            vec![("x-max-length-bytes", "1".into())],
            vec![("x-max-priority", 256.into())],
            vec![("x-overflow", "drop-tail".into())],
            vec![("x-overflow", 1.into())],
            vec![("x-dead-letter-exchange", 1.into())],
            vec![("x-dead-letter-routing-key", "k".into())],
            vec![("x-single-active-consumer", "true".into())],
            vec![("x-queue-mode", "quick".into())],
            vec![("x-queue-version", 3.into())],
            vec![("x-delivery-limit", 3.into())],
            vec![("x-max-age", "1h".into())],
            vec![quorum(), ("x-max-priority", 3.into())],
            vec![quorum(), ("x-queue-mode", "lazy".into())],
            vec![quorum(), ("x-dead-letter-strategy", "never".into())],
            vec![quorum(), ("x-quorum-initial-group-size", 0.into())],
        ] {
            for profile in PROFILES {
                let refused = read("q", &table(&entries), profile);
                assert_eq!(
                    refused.map_err(|refusal| refusal.code),
                    Err(406),
                    "{entries:?}"
                );
            }
        }
    }

    #[test]
    fn streams_are_not_implemented() {
        let stream = table(&[("x-queue-type", "stream".into())]);
        for profile in PROFILES {
            assert_eq!(read("q", &stream, profile).unwrap_err().code, 540);
        }
    }

    #[test]
    fn valid_arguments_are_read_and_unknown_ones_ignored() {
        for profile in PROFILES {
            let arguments = table(&[
                ("x-message-ttl", HeaderValue::U16(5)),
                ("x-dead-letter-exchange", "".into()),
                ("x-dead-letter-routing-key", "k".into()),
                ("x-max-length", 3.into()),
                ("x-overflow", "reject-publish-dlx".into()),
                ("x-my-own", 1.into()),
            ]);
            let (kind, settings) = read("q", &arguments, profile).unwrap();
            assert_eq!(kind, QueueKind::Classic);
            assert_eq!(settings.ttl, Some(5));
            assert_eq!(settings.dead_letter_exchange.as_deref(), Some(""));
            assert_eq!(settings.max_length, Some(3));
            assert_eq!(settings.overflow, Overflow::RejectPublishDlx);
        }
    }

    #[test]
    fn delivery_limit_depends_on_version() {
        let limit = |value: Option<HeaderValue>, profile| {
            let mut arguments = table(&[("x-queue-type", "quorum".into())]);
            if let Some(value) = value {
                arguments.insert("x-delivery-limit", value);
            }
            read("q", &arguments, profile).unwrap().1.delivery_limit
        };
        assert_eq!(
            PROFILES.map(|profile| limit(None, profile)),
            [None, Some(20)]
        );
        for profile in PROFILES {
            assert_eq!(limit(Some(3.into()), profile), Some(3));
        }
        let negative = PROFILES.map(|profile| limit(Some((-1).into()), profile));
        assert_eq!(negative, [Some(0), None]);
    }

    #[test]
    fn equivalence_compares_known_arguments_only() {
        let known = known(QueueKind::Classic, Profile::V3_10);
        let check = |current: &[(&str, HeaderValue)], received: &[(&str, HeaderValue)]| {
            check_equivalent(
                "queue 'q' in vhost '/'",
                &known,
                &table(current),
                &table(received),
            )
            .map_err(|refusal| refusal.text)
        };
        let ttl = |value: HeaderValue| [("x-message-ttl", value)];
        assert_eq!(check(&ttl(5_i32.into()), &ttl(5_i64.into())), Ok(()));
        assert_eq!(check(&[("x-queue-type", "classic".into())], &[]), Ok(()));
        assert_eq!(check(&[], &[("x-my-own", 1.into())]), Ok(()));
        for (checked, close_reason) in [
            (
                check(&ttl(5.into()), &[]),
                "received none but current is the value '5' of type 'signedint'",
            ),
            (
                check(&[], &ttl(5_i64.into())),
                "received the value '5' of type 'long' but current is none",
            ),
            (
                check(&ttl(5.into()), &ttl("5".into())),
                "received '5' but current is '5'",
            ),
            (
                check(&[], &[("x-queue-type", "quorum".into())]),
                "received the value 'quorum' of type 'longstr' but current is none",
            ),
        ] {
            let text = checked.unwrap_err();
            assert!(text.ends_with(close_reason), "{text}");
        }
    }
}
