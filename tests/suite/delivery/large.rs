//! Tests of reasons, headers, bodies and ids that are too large for a frame or a field: the copy
//! arrives and the connection lives.

use amiquip::{AmqpProperties, AmqpValue};
use rungmq::{Ack, Bytes, Message, Publish, naming};
use serde_json::Value;

use super::{LIMIT, LONG_RUNG, Q, Seen, Stage, by_long_rung, by_rung, soon};
use crate::harness::{Got, logs, table};

/// RabbitMQ's `frame_max` unless configured otherwise.
const FRAME_MAX: usize = 131_072;
/// A frame's own bytes, and a content header's before its properties.
const FRAME_OVERHEAD: usize = 8 + 14;

/// Runs `work` and checks that no connection was lost over it, and that publishing and consuming go
/// on.
#[track_caller]
fn without_losing_the_connection(stage: &Stage, work: impl FnOnce()) {
    // The publishing socket is opened when first needed.
    stage.raw.classic("aside");
    stage.mq.publish("", "aside", &"before").unwrap();
    let before = stage.sockets();
    work();
    stage.mq.publish("", "aside", &"after").unwrap();
    assert!(stage.mq.pull("aside").unwrap().is_some());
    assert!(stage.mq.pull("aside").unwrap().is_some());
    assert_eq!(stage.sockets(), before);
}

/// A reason longer than any frame; three bytes a character, so that most cuts would split one.
fn long_reason() -> String {
    "€".repeat(100_000)
}

#[track_caller]
fn assert_cut(got: &Got, prefix: &str, at_least: usize) {
    let error = got.header_text("x-acemq-error").unwrap();
    let reason = error.strip_prefix(prefix).unwrap();
    assert!(reason.chars().all(|c| c == '€'), "cut between characters");
    assert!(
        (at_least..FRAME_MAX).contains(&error.len()),
        "{}",
        error.len()
    );
}

#[test]
fn a_reason_of_300_kib_is_cut_and_the_dead_letter_arrives() {
    let stage = Stage::classic();
    without_losing_the_connection(&stage, || {
        stage
            .raw
            .send_all(Q, ["1", "2", "3", "4"], &AmqpProperties::default());
        stage
            .consumer(&soon(2))
            .start(|message: Message<u32>| -> Ack {
                match message.payload() {
                    1 => Ack::retry(long_reason()),
                    2 => Ack::reject(long_reason()),
                    3 => Ack::park(long_reason()),
                    _ => panic!("{}", long_reason()),
                }
            })
            .unwrap();
        stage.settled(&[
            ("retried", 2),
            ("rejected", 1),
            ("dead_lettered", 2),
            ("parked", 1),
        ]);
    });
    // Nearly the whole frame: only what the other headers take is missing.
    let most = FRAME_MAX - 1000;
    for got in stage.raw.drain(&naming::dead_letter_queue(Q)) {
        let prefix = match got.text() {
            "1" => "gave up after 2 attempts: ",
            "2" => "rejected by the handler: ",
            _ => "gave up after 2 attempts: panicked: ",
        };
        assert_cut(&got, prefix, most);
    }
    assert_cut(&stage.parked(), "parked by the handler: ", most);
}

#[test]
fn headers_of_120_kib_and_a_reason_of_300_kib_go_together() {
    let stage = Stage::classic();
    let big = "x".repeat(120 * 1024);
    without_losing_the_connection(&stage, || {
        let properties = AmqpProperties::default()
            .with_message_id("id-1".to_owned())
            .with_headers(table([("big", big.as_str()), ("tenant", "acme")]));
        stage.raw.send(Q, "1", properties);
        let sizes = Seen::default();
        let seen = sizes.clone();
        stage
            .consumer(&by_rung(3))
            .start(move |message: Message<Value>| {
                let header = message.headers().get("big");
                seen.push(header.and_then(|value| value.as_str()).map(str::len));
                Ack::retry(long_reason())
            })
            .unwrap();
        stage.settled(&[("retried", 2), ("dead_lettered", 1)]);
        assert_eq!(sizes.all(), [Some(120 * 1024); 3]);
    });
    let dead = stage.dead();
    assert_eq!(dead.header_text("big"), Some(big.as_str()));
    assert_eq!(dead.header_text("tenant"), Some("acme"));
    assert_eq!(dead.header_text("x-original-routingKey"), Some(Q));
    assert_eq!(dead.header_number("x-acemq-attempt"), Some(3));
    assert_cut(&dead, "gave up after 3 attempts: ", 5000);
}

/// A header that fills the frame of a message with this one header, to the byte.
fn filling(name: &str) -> String {
    let around = FRAME_OVERHEAD + 4 + 1 + name.len() + 1 + 4;
    "x".repeat(FRAME_MAX - around)
}

#[test]
fn headers_that_fill_the_frame_lose_the_largest() {
    logs::capture();
    let stage = Stage::classic();
    without_losing_the_connection(&stage, || {
        let big = filling("big");
        stage.raw.send(
            Q,
            "1",
            AmqpProperties::default().with_headers(table([("big", big.as_str())])),
        );
        stage
            .consumer(&soon(2))
            .start(|_: Message<Value>| Ack::retry(long_reason()))
            .unwrap();
        stage.settled(&[("retried", 1), ("dead_lettered", 1)]);
    });
    let dead = stage.dead();
    assert_eq!(dead.header("big"), None, "there is no room for it");
    let id = dead.header_text("x-acemq-id").unwrap();
    assert_eq!(dead.message_id(), Some(id));
    assert_eq!(dead.header_number("x-acemq-attempt"), Some(2));
    assert!(dead.header_number("x-acemq-first-seen").unwrap() > 0);
    assert_eq!(dead.text(), "1");
    let warned = logs::captured_with(log::Level::Warn, id);
    assert!(warned.iter().any(|line| line.contains("big")), "{warned:?}");
}

#[test]
fn oversized_headers_drop_expendable_before_small_ones() {
    let stage = Stage::classic();
    without_losing_the_connection(&stage, || {
        // 131 072 bytes hold these with all that they had when they came, but not what a copy adds.
        let mut headers = table([
            ("a-small", "small".to_owned().as_str()),
            ("z-small", "small".to_owned().as_str()),
        ]);
        for name in ["one", "two", "three"] {
            let size = if name == "two" { 45_000 } else { 42_700 };
            headers.insert(name.to_owned(), AmqpValue::LongString("x".repeat(size)));
        }
        headers.insert(
            "x-acemq-origin".to_owned(),
            AmqpValue::LongString("go@host".to_owned()),
        );
        let used: usize = headers
            .iter()
            .map(|(name, value)| match value {
                AmqpValue::LongString(text) => 1 + name.len() + 1 + 4 + text.len(),
                _ => unreachable!(),
            })
            .sum();
        let rest = FRAME_MAX - FRAME_OVERHEAD - 4 - used - (1 + "rest".len() + 5);
        headers.insert("rest".to_owned(), AmqpValue::LongString("x".repeat(rest)));
        stage
            .raw
            .send(Q, "1", AmqpProperties::default().with_headers(headers));
        stage
            .consumer(&soon(1))
            .start(|_: Message<Value>| Ack::reject("no"))
            .unwrap();
        stage.settled(&[("rejected", 1)]);
    });
    let dead = stage.dead();
    for gone in [
        "two",
        "x-original-exchange",
        "x-original-routingKey",
        "x-acemq-origin",
        "x-acemq-correlation",
        "x-acemq-type",
        "x-acemq-error",
    ] {
        assert_eq!(dead.header(gone), None, "{gone}");
    }
    for stays in ["one", "three", "rest", "a-small", "z-small", "x-acemq-id"] {
        assert!(dead.header(stays).is_some(), "{stays}");
    }
}

#[test]
fn ids_over_255_bytes_stay_in_their_header() {
    let stage = Stage::classic();
    let (id, fits) = ("i".repeat(300), "f".repeat(255));
    without_losing_the_connection(&stage, || {
        for id in [&id, &fits] {
            let message = Publish::text("1")
                .content_type("application/json")
                .routing_key(Q)
                .id(id);
            let envelope = stage.mq.publish_with(message).unwrap();
            assert_eq!(envelope.id(), id);
        }
        let seen = stage.retrying(&by_rung(2), |message| {
            (message.id().to_owned(), message.attempt())
        });
        stage.settled(&[("retried", 2), ("dead_lettered", 2)]);
        let mut seen = seen.all();
        seen.sort();
        assert_eq!(
            seen,
            [
                (fits.clone(), 1),
                (fits.clone(), 2),
                (id.clone(), 1),
                (id.clone(), 2)
            ]
        );
    });
    for dead in stage.raw.drain(&naming::dead_letter_queue(Q)) {
        let header = dead.header_text("x-acemq-id").unwrap();
        let expected = (header.len() <= 255).then_some(header);
        assert_eq!(dead.message_id(), expected);
    }
}

#[test]
fn returned_copy_without_message_id_is_recognised() {
    // Returned copies are told apart by their id, which this one does not have on the wire.
    let stage = Stage::classic();
    let id = "i".repeat(300);
    let attempts = stage.retrying(&by_rung(2), Message::attempt);
    stage.raw.delete_queue("orders.new.retry.600ms");
    let message = Publish::json(&1).unwrap().routing_key(Q).id(&id);
    stage.mq.publish_with(message).unwrap();
    let dead = stage.dead();
    assert_eq!(dead.header_text("x-acemq-id"), Some(id.as_str()));
    assert_eq!(attempts.all(), [1, 2]);
    let missing = stage
        .snapshot()
        .counter("acemq.retry.rung.missing", &[("queue", Q)]);
    assert_eq!(missing, 1);
}

#[test]
fn body_of_16_mib_is_retried_and_dead_lettered() {
    let stage = Stage::classic();
    let body: Vec<u8> = (0..16 * 1024 * 1024_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    without_losing_the_connection(&stage, || {
        stage
            .mq
            .publish_with(Publish::bytes(body.clone()).routing_key(Q))
            .unwrap();
        let expected = body.clone();
        stage
            .consumer(&by_rung(3))
            .codec(Bytes)
            .start(move |message: Message<Vec<u8>>| {
                if *message.payload() == expected {
                    Ack::retry("no stock")
                } else {
                    Ack::park("another body")
                }
            })
            .unwrap();
        stage.settled(&[("retried", 2), ("dead_lettered", 1)]);
    });
    assert!(stage.dead().body == body, "byte for byte");
}

#[test]
fn an_empty_body_is_copied_as_it_is() {
    let stage = Stage::classic();
    stage.send("");
    stage
        .consumer(&by_long_rung(2))
        .codec(Bytes)
        .start(|_: Message<Vec<u8>>| Ack::retry("no stock"))
        .unwrap();
    let rung = stage.raw.wait_for_get(LONG_RUNG, LIMIT);
    assert_eq!(rung.body, b"");
    stage.raw.send(Q, "", rung.properties);
    assert_eq!(stage.dead().body, b"");
}
