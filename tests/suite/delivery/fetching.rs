//! Tests of `pull`, which takes one message out of a queue, and of `replay`, which moves dead
//! letters back.

use std::collections::BTreeMap;

use amiquip::{AmqpProperties, AmqpValue, ExchangeType};
use rungmq::{Ack, Message, Publish, naming};
use serde_json::Value;

use super::{LIMIT, Q, Seen, Stage, soon};
use crate::harness::{holds_for, secs, table};

#[test]
fn pull_takes_messages_out_one_by_one_and_then_finds_none() {
    let stage = Stage::new();
    stage.mq.publish("", Q, &"first").unwrap();
    stage
        .mq
        .publish_with(Publish::bytes([0xFF]).routing_key(Q))
        .unwrap();
    let first = stage.mq.pull(Q).unwrap().unwrap();
    assert_eq!(first.payload(), b"\"first\"");
    assert_eq!(first.content_type(), Some("application/json"));
    assert_eq!((first.attempt(), first.routing_key()), (1, Q));
    let second = stage.mq.pull(Q).unwrap().unwrap();
    assert_eq!(second.into_payload(), [0xFF]);
    assert!(stage.mq.pull(Q).unwrap().is_none());
    // Acknowledged: nothing comes back when its channel is closed.
    holds_for(secs(0.3), "the queue is empty", || {
        stage.vhost.queue(Q, &["messages"]).unwrap()["messages"] == 0
    });
}

#[test]
fn pull_names_a_queue_that_is_missing_and_the_connection_lives() {
    let stage = Stage::new();
    let error = stage.mq.pull("nowhere").unwrap_err();
    assert!(error.is_not_found(), "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");
    let error = stage.mq.pull(&"x".repeat(256)).unwrap_err();
    assert!(matches!(error, rungmq::Error::NameTooLong(_)), "{error:?}");
    stage.mq.publish("", Q, &1).unwrap();
    assert!(stage.mq.pull(Q).unwrap().is_some());
}

#[test]
fn pull_leaves_no_channel_behind() {
    let stage = Stage::new();
    stage.raw.send_all(Q, ["1"; 40], &AmqpProperties::default());
    let channels = || stage.vhost.list_channels(&["number"]).len();
    assert!(stage.mq.pull(Q).unwrap().is_some());
    let before = channels();
    for _ in 0..39 {
        assert!(stage.mq.pull(Q).unwrap().is_some());
    }
    crate::harness::wait_until(LIMIT, "the channels are closed", || channels() <= before);
}

/// Publishes to an exchange, has everything dead-lettered, and stops consuming.
fn stage_with_dead_letters(count: usize) -> Stage {
    let stage = Stage::new();
    stage.raw.exchange("events", ExchangeType::Topic);
    stage.raw.bind(Q, "events", "#");
    for number in 0..count {
        let message = Publish::json(&number)
            .unwrap()
            .exchange("events")
            .routing_key("order.placed")
            .id(format!("id {number}"))
            .header("tenant", "acme");
        stage.mq.publish_with(message).unwrap();
    }
    let consumer = stage
        .consumer(&soon(2))
        .start(|_: Message<Value>| Ack::retry("no stock"))
        .unwrap();
    let n = count as u64;
    stage.settled(&[("retried", n), ("dead_lettered", n)]);
    consumer.cancel(LIMIT).unwrap();
    stage
}

#[test]
fn replay_moves_every_dead_letter_back_as_a_fresh_message() {
    let stage = stage_with_dead_letters(3);
    let dead = stage.raw.browse(&naming::dead_letter_queue(Q));
    // Their retries ran side by side.
    let mut sorted: Vec<_> = dead.iter().map(|got| got.text().to_owned()).collect();
    sorted.sort_unstable();
    assert_eq!(sorted, ["0", "1", "2"]);
    assert_eq!(stage.mq.replay(Q).unwrap(), 3);
    assert_eq!(stage.raw.count(&naming::dead_letter_queue(Q)), 0);
    stage.raw.wait_for_count(Q, 3, LIMIT);
    let again = stage.raw.browse(Q);
    for (got, dead) in again.iter().zip(&dead) {
        assert_eq!(got.body, dead.body, "in the same order");
        assert_eq!(got.message_id(), dead.message_id());
        assert_eq!(got.header("x-acemq-attempt"), Some(&AmqpValue::LongInt(1)));
        assert_eq!(got.header("x-acemq-error"), None);
        assert!(
            got.header_number("x-acemq-first-seen") > dead.header_number("x-acemq-first-seen"),
            "its age counts from now"
        );
        assert_eq!(got.header_text("x-original-exchange"), Some("events"));
        assert_eq!(
            got.header_text("x-original-routingKey"),
            Some("order.placed")
        );
        assert_eq!(got.header_text("x-acemq-type"), Some("order.placed"));
        assert_eq!(got.header_text("tenant"), Some("acme"));
    }
    assert_eq!(stage.mq.replay(Q).unwrap(), 0, "nothing is left to move");

    let seen = Seen::default();
    let messages = seen.clone();
    stage
        .consumer(&soon(1))
        .start(move |message: Message<usize>| {
            messages.push((
                *message.payload(),
                message.attempt(),
                message.original_exchange().to_owned(),
                message.original_routing_key().to_owned(),
            ));
        })
        .unwrap();
    let expected = [0, 1, 2].map(|n| (n, 1, "events".to_owned(), "order.placed".to_owned()));
    let mut seen = seen.wait_for(3);
    seen.sort_unstable();
    assert_eq!(seen, expected);
}

#[test]
fn messages_that_fail_again_at_once_do_not_go_round_for_ever() {
    let stage = stage_with_dead_letters(5);
    let calls = Seen::default();
    let seen = calls.clone();
    stage
        .consumer(&soon(1))
        .start(move |message: Message<usize>| {
            seen.push(*message.payload());
            Ack::reject("still no stock")
        })
        .unwrap();
    assert_eq!(stage.mq.replay(Q).unwrap(), 5);
    calls.wait_for(5);
    stage
        .raw
        .wait_for_count(&naming::dead_letter_queue(Q), 5, LIMIT);
    holds_for(secs(0.5), "each failed once more, no oftener", || {
        calls.len() == 5
    });
}

#[test]
fn replay_needs_both_queues_and_loses_nothing_without_them() {
    let stage = Stage::bare();
    let error = stage.mq.replay("nowhere").unwrap_err();
    assert!(error.is_not_found(), "{error}");
    assert!(error.to_string().contains("nowhere.dlq"), "{error}");

    // The source is gone: what was to be moved stays where it was.
    stage.raw.classic("lonely.dlq");
    stage.raw.send("lonely.dlq", "1", AmqpProperties::default());
    let error = stage.mq.replay("lonely").unwrap_err();
    assert!(
        matches!(&error, rungmq::Error::Publish(error) if error.is_unroutable()),
        "{error}"
    );
    stage.raw.wait_for_count("lonely.dlq", 1, LIMIT);
}

#[test]
fn replay_brings_home_what_the_broker_itself_dead_lettered() {
    let stage = Stage::bare();
    stage.raw.queue(
        Q,
        table([
            (
                "x-dead-letter-exchange",
                AmqpValue::LongString(String::new()),
            ),
            (
                "x-dead-letter-routing-key",
                AmqpValue::LongString(naming::dead_letter_queue(Q)),
            ),
            ("x-message-ttl", AmqpValue::LongLongInt(1)),
        ]),
    );
    let dlq = naming::dead_letter_queue(Q);
    stage.raw.classic(&dlq);
    stage.raw.send(Q, "1", AmqpProperties::default());
    stage.raw.wait_for_count(&dlq, 1, LIMIT);
    stage.raw.delete_queue(Q);
    stage.raw.quorum(Q);
    assert_eq!(stage.mq.replay(Q).unwrap(), 1);
    let got = stage.raw.wait_for_get(Q, LIMIT);
    let mut reserved = BTreeMap::new();
    for (name, value) in got.properties.headers().as_ref().unwrap() {
        assert!(!name.contains("death"), "{name}");
        reserved.insert(name.as_str(), value);
    }
    assert_eq!(reserved["x-acemq-attempt"], &AmqpValue::LongInt(1));
}
