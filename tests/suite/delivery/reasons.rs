//! Tests of the texts of `x-acemq-error`, and of which of two limits they name.

use std::time::Duration;

use amiquip::{AmqpProperties, AmqpValue};
use rungmq::{Ack, Message, RetryPolicy};
use serde_json::Value;

use super::{Q, Stage, soon};
use crate::harness::table;

fn first_seen(millis: i64) -> AmqpProperties {
    AmqpProperties::default().with_headers(table([("x-acemq-first-seen", millis)]))
}

/// A day of 2001.
const LONG_AGO: i64 = 1_000_000_000_000;

#[test]
fn too_old_message_is_given_up_naming_the_limit() {
    for (limit, text) in [
        (Duration::from_secs(6 * 60 * 60), "21600.0"),
        (Duration::from_millis(1500), "1.5"),
        (Duration::from_millis(2250), "2.25"),
    ] {
        let stage = Stage::new();
        stage.raw.send(Q, "1", first_seen(LONG_AGO));
        stage
            .consumer(&soon(5).give_up_after(limit))
            .start(|_: Message<Value>| Ack::retry("no stock"))
            .unwrap();
        let dead = stage.dead();
        let reason = format!("gave up on a message older than {text} seconds: no stock");
        assert_eq!(dead.header_text("x-acemq-error"), Some(reason.as_str()));
        assert_eq!(dead.header_number("x-acemq-attempt"), Some(1));
        assert_eq!(dead.header_number("x-acemq-first-seen"), Some(LONG_AGO));
        stage.settled(&[("dead_lettered", 1)]);
    }
}

#[test]
fn attempts_are_named_when_both_ends_are_reached() {
    let stage = Stage::new();
    let headers = table([
        ("x-acemq-first-seen", AmqpValue::LongLongInt(LONG_AGO)),
        ("x-acemq-attempt", AmqpValue::LongInt(7)),
    ]);
    stage
        .raw
        .send(Q, "1", AmqpProperties::default().with_headers(headers));
    stage
        .consumer(&soon(3).give_up_after(Duration::from_secs(1)))
        .start(|_: Message<Value>| Ack::retry("no stock"))
        .unwrap();
    let dead = stage.dead();
    // The policy's number, not the message's.
    assert_eq!(
        dead.header_text("x-acemq-error"),
        Some("gave up after 3 attempts: no stock")
    );
    assert_eq!(dead.header_number("x-acemq-attempt"), Some(7));
    stage.settled(&[("dead_lettered", 1)]);
}

#[test]
fn a_policy_of_one_delivery_gives_up_after_it() {
    let stage = Stage::new();
    stage.send("1");
    stage
        .consumer(&RetryPolicy::none())
        .start(|_: Message<Value>| Ack::retry("no stock"))
        .unwrap();
    assert_eq!(
        stage.dead().header_text("x-acemq-error"),
        Some("gave up after 1 attempts: no stock")
    );
    stage.settled(&[("dead_lettered", 1)]);
}

#[test]
fn earlier_error_stays_through_retry_until_a_new_one() {
    let stage = Stage::new();
    let headers = table([("x-acemq-error", "from an earlier life")]);
    stage
        .raw
        .send(Q, "1", AmqpProperties::default().with_headers(headers));
    let errors = stage.retrying(&soon(2), |message| {
        message.envelope().error().map(str::to_owned)
    });
    assert_eq!(
        stage.dead().header_text("x-acemq-error"),
        Some("gave up after 2 attempts: no stock")
    );
    let earlier = Some("from an earlier life".to_owned());
    assert_eq!(errors.all(), [earlier.clone(), earlier]);
}

#[test]
fn a_reason_keeps_its_own_line_breaks_and_any_letters() {
    let stage = Stage::new();
    stage.send("1");
    let text = "déjà vu\n\tat 倉庫 🦀\u{0}end";
    stage
        .consumer(&RetryPolicy::none())
        .start(move |_: Message<Value>| Ack::reject(text))
        .unwrap();
    let reason = format!("rejected by the handler: {text}");
    assert_eq!(
        stage.dead().header_text("x-acemq-error"),
        Some(reason.as_str())
    );
}

/// The message is handled with any first-seen header, and its age is known or zero.
#[test]
fn a_first_seen_of_any_shape_is_an_age_or_none() {
    // The year 2100: ahead of any clock that this test runs by.
    let ahead = 4_102_444_800_000_i64;
    let young: Vec<(&str, Option<AmqpValue>)> = vec![
        ("absent", None),
        ("text", Some(AmqpValue::LongString("yesterday".to_owned()))),
        (
            "RFC 3339",
            Some(AmqpValue::LongString("2024-01-01T00:00:00Z".to_owned())),
        ),
        ("timestamp type", Some(AmqpValue::Timestamp(1_000_000_000))),
        ("ahead", Some(AmqpValue::LongLongInt(ahead))),
        ("i64::MAX", Some(AmqpValue::LongLongInt(i64::MAX))),
        ("i64::MIN", Some(AmqpValue::LongLongInt(i64::MIN))),
        ("negative", Some(AmqpValue::LongLongInt(-1))),
        ("zero", Some(AmqpValue::LongLongInt(0))),
        ("float", Some(AmqpValue::Double(1e12))),
        ("bool", Some(AmqpValue::Boolean(true))),
        ("void", Some(AmqpValue::Void)),
        ("huge text", Some(AmqpValue::LongString("9".repeat(400)))),
    ];
    let old: Vec<(&str, AmqpValue)> = vec![
        ("millis", AmqpValue::LongLongInt(LONG_AGO)),
        // Seconds are read as milliseconds: a moment in January 1970.
        ("seconds", AmqpValue::LongLongInt(1_700_000_000)),
        ("seconds as i32", AmqpValue::LongInt(1_700_000_000)),
        (
            "millis as text",
            AmqpValue::LongString(format!(" {LONG_AGO} ")),
        ),
        ("one", AmqpValue::ShortShortInt(1)),
    ];
    let stage = Stage::new();
    let send = |id: &str, value: Option<AmqpValue>| {
        let mut properties = AmqpProperties::default().with_message_id(id.to_owned());
        if let Some(value) = value {
            properties = properties.with_headers(table([("x-acemq-first-seen", value)]));
        }
        stage.raw.send(Q, "1", properties);
    };
    for (id, value) in &young {
        send(id, value.clone());
    }
    for (id, value) in &old {
        send(id, Some(value.clone()));
    }
    // An hour, for a slow machine; what is old is older by far.
    let policy = soon(3).give_up_after(Duration::from_secs(60 * 60));
    stage
        .consumer(&policy)
        .concurrency(4)
        .start(|_: Message<Value>| Ack::retry("no stock"))
        .unwrap();
    let (young_count, old_count) = (young.len() as u64, old.len() as u64);
    stage.settled(&[
        ("retried", 2 * young_count),
        ("dead_lettered", young_count + old_count),
    ]);
    for dead in stage.raw.drain(&rungmq::naming::dead_letter_queue(Q)) {
        let id = dead.message_id().unwrap().to_owned();
        let error = dead.header_text("x-acemq-error").unwrap();
        let attempt = dead.header_number("x-acemq-attempt");
        let (prefix, attempts) = if old.iter().any(|(old, _)| *old == id) {
            ("gave up on a message older than 3600.0 seconds", 1)
        } else {
            ("gave up after 3 attempts", 3)
        };
        assert!(error.starts_with(prefix), "{id}: {error}");
        assert_eq!(attempt, Some(attempts), "{id}");
        // From its first hop on it has a valid one, of the right type.
        let Some(AmqpValue::LongLongInt(millis)) = dead.header("x-acemq-first-seen") else {
            panic!("{id}: {:?}", dead.header("x-acemq-first-seen"));
        };
        assert!(*millis > 0 && *millis < ahead, "{id}: {millis}");
    }
}
