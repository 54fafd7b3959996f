//! Tests of `x-acemq-attempt` of every type: the attempt is read, the message ends, nothing panics.

use std::collections::BTreeMap;

use amiquip::{AmqpProperties, AmqpValue};
use rungmq::{Ack, Message, naming};
use serde_json::Value;

use super::{Q, Seen, Stage, soon};
use crate::harness::{logs, table};

/// What the header holds, and the attempt it reads as.
fn shapes() -> Vec<(&'static str, AmqpValue, u32)> {
    use AmqpValue as V;
    let text = |text: &str| V::LongString(text.to_owned());
    vec![
        ("i8", V::ShortShortInt(2), 2),
        ("u8", V::ShortShortUInt(2), 2),
        ("i16", V::ShortInt(2), 2),
        ("u16", V::ShortUInt(2), 2),
        ("i32", V::LongInt(2), 2),
        ("u32", V::LongUInt(2), 2),
        ("i64", V::LongLongInt(2), 2),
        ("u8 above i8", V::ShortShortUInt(200), 200),
        ("u16 above i16", V::ShortUInt(60_000), 60_000),
        ("text", text("2"), 2),
        ("text with spaces", text(" 2 "), 2),
        ("text with a plus", text("+2"), 2),
        ("byte text", V::ByteArray(b" 2\t".to_vec()), 2),
        ("zero", V::LongInt(0), 1),
        ("negative", V::LongInt(-7), 1),
        ("negative text", text("-7"), 1),
        ("i64::MIN", V::LongLongInt(i64::MIN), 1),
        ("u32 above i32", V::LongUInt(u32::MAX), i32::MAX as u32),
        ("i32::MAX", V::LongInt(i32::MAX), i32::MAX as u32),
        ("i64::MAX", V::LongLongInt(i64::MAX), i32::MAX as u32),
        ("huge text", text(&"9".repeat(300)), i32::MAX as u32),
        ("float", V::Float(2.0), 1),
        ("double", V::Double(2.0), 1),
        ("float text", text("2.0"), 1),
        ("bool", V::Boolean(true), 1),
        ("timestamp", V::Timestamp(2), 1),
        ("void", V::Void, 1),
        ("words", text("two"), 1),
        ("empty text", text(""), 1),
        ("spaces", text("   "), 1),
        ("a minus", text("-"), 1),
        ("hex", text("0x2"), 1),
        ("other digits", text("２"), 1),
        ("bytes", V::ByteArray(vec![0, 0, 0, 2]), 1),
        ("bytes that are no text", V::ByteArray(vec![0xFF, 0xFE]), 1),
        ("table", V::FieldTable(table([("n", 2_i64)])), 1),
        ("array", V::FieldArray(vec![V::LongInt(2)]), 1),
        (
            "decimal",
            V::DecimalValue(amq_protocol_types::DecimalValue { scale: 0, value: 2 }),
            1,
        ),
    ]
}

#[test]
fn attempt_header_of_any_type_is_read_and_the_message_ends() {
    logs::capture();
    let stage = Stage::new();
    let shapes = shapes();
    for (id, value, _) in &shapes {
        let headers = table([("x-acemq-attempt", value.clone())]);
        let properties = AmqpProperties::default()
            .with_message_id((*id).to_owned())
            .with_headers(headers);
        stage.raw.send(Q, "1", properties);
    }
    let seen = Seen::default();
    let attempts = seen.clone();
    stage
        .consumer(&soon(3))
        .concurrency(4)
        .start(move |message: Message<Value>| {
            attempts.push((message.id().to_owned(), message.attempt()));
            Ack::retry("no stock")
        })
        .unwrap();

    let deliveries = |first: u32| u64::from(3_u32.saturating_sub(first).saturating_add(1).max(1));
    let all: u64 = shapes.iter().map(|(_, _, first)| deliveries(*first)).sum();
    let count = shapes.len() as u64;
    stage.settled(&[("retried", all - count), ("dead_lettered", count)]);

    let mut by_id: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (id, attempt) in seen.all() {
        by_id.entry(id).or_default().push(attempt);
    }
    for (id, _, first) in &shapes {
        let expected: Vec<u32> = (*first..=(*first).max(3)).collect();
        assert_eq!(by_id[*id], expected, "{id}");
    }
    for dead in stage.raw.drain(&naming::dead_letter_queue(Q)) {
        let id = dead.message_id().unwrap().to_owned();
        let last = *by_id[&id].last().unwrap() as i32;
        assert_eq!(
            dead.header("x-acemq-attempt"),
            Some(&AmqpValue::LongInt(last)),
            "{id}"
        );
    }
}

#[test]
fn a_saturated_attempt_goes_no_further() {
    let stage = Stage::new();
    let headers = table([("x-acemq-attempt", AmqpValue::LongLongInt(i64::MAX))]);
    stage
        .raw
        .send(Q, "1", AmqpProperties::default().with_headers(headers));
    // The policy allows as many attempts as there can be, so the message is retried once more; the
    // header neither wraps nor changes its type.
    let policy = rungmq::RetryPolicy::fixed(u32::MAX, super::THRESHOLD / 10).unwrap();
    let seen = Seen::default();
    let attempts = seen.clone();
    stage
        .consumer(&policy)
        .start(move |message: Message<Value>| {
            attempts.push(message.attempt());
            if attempts.len() < 3 {
                Ack::retry("no stock")
            } else {
                Ack::reject("enough")
            }
        })
        .unwrap();
    assert_eq!(
        stage.dead().header("x-acemq-attempt"),
        Some(&AmqpValue::LongInt(i32::MAX))
    );
    assert_eq!(seen.all(), [i32::MAX as u32; 3]);
}

#[test]
fn a_message_without_any_properties_lives_like_every_other() {
    let stage = Stage::new();
    stage.send("1");
    let seen = stage.retrying(&super::by_rung(3), |message| {
        (message.id().to_owned(), message.attempt())
    });
    let dead = stage.dead();
    let seen = seen.all();
    let id = dead.message_id().unwrap();
    assert_eq!(
        seen,
        [1, 2, 3].map(|attempt| (id.to_owned(), attempt)),
        "one id for all its attempts"
    );
    assert_eq!(dead.header_text("x-acemq-id"), Some(id));
    assert_eq!(dead.header_text("x-acemq-correlation"), Some(id));
    assert_eq!(dead.header_text("x-acemq-type"), Some(Q));
    assert_eq!(dead.header_number("x-acemq-version"), Some(1));
    assert!(dead.header_number("x-acemq-first-seen").unwrap() > 0);
    for absent in ["x-acemq-origin", "x-acemq-causation", "x-acemq-claim"] {
        assert_eq!(dead.header(absent), None, "{absent}");
    }
    stage.settled(&[("retried", 2), ("dead_lettered", 1)]);
}
