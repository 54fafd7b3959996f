//! Tests of where a retry goes, and of the address a message was first published to.

use std::time::Duration;

use amiquip::{AmqpProperties, ExchangeType};
use rungmq::{Ack, ExchangeKind, Message, Publish, Queue, Topology, naming};
use serde_json::{Value, json};

use super::{LIMIT, Q, Seen, Stage, by_rung, soon};
use crate::harness::only_on_rabbitmq;
use crate::harness::{holds_for, wait_until};

only_on_rabbitmq! { "direct reply-to";
#[test]
fn a_request_is_answered_on_its_second_attempt() {
    let stage = Stage::new();
    let replies = Seen::default();
    let (seen, mq) = (replies.clone(), stage.mq.clone());
    let consumer = stage
        .consumer(&by_rung(3))
        .start(move |message: Message<Value>| {
            let reply_to = message.properties().reply_to.clone().unwrap();
            seen.push((message.attempt(), reply_to.clone()));
            if message.attempt() == 1 {
                return Err("not yet".to_owned());
            }
            // Not mandatory: to the broker a requester is no queue.
            let answer = Publish::text("42")
                .routing_key(reply_to)
                .correlation_id("request 7");
            mq.publish_with(answer).map_err(|error| error.to_string())?;
            Ok(())
        })
        .unwrap();
    let request = AmqpProperties::default().with_correlation_id("request 7".to_owned());
    let answer = stage
        .raw
        .request(Q, "\"?\"", request, LIMIT)
        .expect("an answer");
    assert_eq!(answer.text(), "42");
    assert_eq!(
        answer.properties.correlation_id().as_deref(),
        Some("request 7")
    );
    stage.settled(&[("acked", 1), ("retried", 1)]);
    let replies = replies.all();
    assert_eq!(replies.len(), 2);
    assert_eq!(replies[0].1, replies[1].1, "carried as it was");
    assert!(replies[0].1.starts_with("amq.rabbitmq.reply-to."));
    // The handler holds a handle, which would keep the connection for the rest of the process.
    consumer.cancel(LIMIT).unwrap();
    stage.mq.close().unwrap();
}
}

#[test]
fn a_retry_reaches_its_own_queue_only() {
    let stage = Stage::bare();
    stage.raw.exchange("events", ExchangeType::Fanout);
    for queue in ["a", "b"] {
        stage.raw.quorum(queue);
        stage.raw.bind(queue, "events", "");
    }
    let (a, b) = (Seen::default(), Seen::default());
    let (seen_a, seen_b) = (a.clone(), b.clone());
    stage
        .mq
        .consumer("a")
        .retry_policy(by_rung(4))
        .start(move |message: Message<Value>| {
            seen_a.push(message.attempt());
            if message.attempt() < 4 {
                Ack::retry("no stock")
            } else {
                Ack::accept()
            }
        })
        .unwrap();
    stage
        .mq
        .consumer("b")
        .retry_policy(by_rung(4))
        .start(move |message: Message<Value>| seen_b.push(message.attempt()))
        .unwrap();
    stage.mq.publish("events", "order.placed", &1).unwrap();
    stage.settled_in("a", &[("acked", 1), ("retried", 3)]);
    stage.settled_in("b", &[("acked", 1)]);
    assert_eq!((a.all(), b.all()), (vec![1, 2, 3, 4], vec![1]));
}

#[test]
fn original_address_is_known_on_every_attempt() {
    let stage = Stage::new();
    stage.raw.exchange("events", ExchangeType::Topic);
    stage.raw.bind(Q, "events", "order.#");
    stage.raw.publish(
        "events",
        "order.placed",
        "1",
        AmqpProperties::default().with_message_id("id-1".to_owned()),
    );
    let addresses = stage.retrying(&by_rung(3), |message| {
        [
            message.exchange().to_owned(),
            message.routing_key().to_owned(),
            message.original_exchange().to_owned(),
            message.original_routing_key().to_owned(),
            message.envelope().kind().to_owned(),
        ]
    });
    let dead = stage.dead();
    assert_eq!(
        addresses.all(),
        [
            [
                "events",
                "order.placed",
                "events",
                "order.placed",
                "order.placed"
            ],
            ["acemq.retry", Q, "events", "order.placed", "order.placed"],
            ["acemq.retry", Q, "events", "order.placed", "order.placed"],
        ]
    );
    assert_eq!(dead.exchange, "", "the library's own copy");
    assert_eq!(dead.header_text("x-original-exchange"), Some("events"));
    assert_eq!(
        dead.header_text("x-original-routingKey"),
        Some("order.placed")
    );
}

#[test]
fn original_address_of_a_direct_send_is_the_default_exchange() {
    let stage = Stage::new();
    stage.send("1");
    let addresses = Seen::default();
    let seen = addresses.clone();
    stage
        .consumer(&soon(2))
        .start(move |message: Message<Value>| {
            seen.push((
                message.original_exchange().to_owned(),
                message.original_routing_key().to_owned(),
            ));
            Ack::park("hm")
        })
        .unwrap();
    let parked = stage.parked();
    assert_eq!(addresses.all(), [(String::new(), Q.to_owned())]);
    assert_eq!(parked.header_text("x-original-exchange"), Some(""));
    assert_eq!(parked.header_text("x-original-routingKey"), Some(Q));
}

#[test]
fn nothing_is_rejected_after_a_copy() {
    let stage = Stage::new();
    stage.raw.classic("x");
    stage.raw.exchange("ops.dlx", ExchangeType::Fanout);
    stage.raw.bind("x", "ops.dlx", "");
    stage.vhost.set_policy(
        "ops",
        &format!("^{Q}$"),
        &json!({"dead-letter-exchange": "ops.dlx"}),
    );
    wait_until(LIMIT, "the policy applies", || {
        stage
            .vhost
            .queue(Q, &["policy"])
            .is_some_and(|row| row["policy"] == "ops")
    });
    stage
        .raw
        .send_all(Q, ["1", "2", "3", "x"], &AmqpProperties::default());
    stage
        .consumer(&soon(2))
        .start(|message: Message<u32>| match message.payload() {
            1 => Ack::retry("no stock"),
            2 => Ack::reject("no"),
            _ => Ack::park("hm"),
        })
        .unwrap();
    stage.settled(&[
        ("retried", 1),
        ("rejected", 1),
        ("dead_lettered", 1),
        ("parked", 2),
    ]);
    assert_eq!(stage.raw.count(&naming::dead_letter_queue(Q)), 2);
    assert_eq!(stage.raw.count(&naming::parked_queue(Q)), 2);
    holds_for(Duration::from_millis(500), "nothing was rejected", || {
        stage.raw.count("x") == 0
    });
}

#[test]
fn original_address_survives_the_brokers_dead_lettering() {
    let stage = Stage::bare();
    Topology::new()
        .exchange("events", ExchangeKind::Topic)
        .queue(Queue::new(Q).dead_letter().argument("x-message-ttl", 200))
        .bind(Q, "events", "order.#")
        .apply(&stage.mq)
        .unwrap();
    let dlq = naming::dead_letter_queue(Q);
    for body in [1, 2] {
        stage.mq.publish("events", "order.placed", &body).unwrap();
    }
    stage.raw.wait_for_count(&dlq, 2, LIMIT);
    let first = stage.mq.pull(&dlq).unwrap().unwrap();
    assert_eq!(first.exchange(), "acemq.dlx", "the broker's own doing");
    assert_eq!(first.original_exchange(), "events");
    assert_eq!(first.original_routing_key(), "order.placed");

    let addresses = Seen::default();
    let seen = addresses.clone();
    stage
        .consumer(&soon(1))
        .start(move |message: Message<Value>| {
            seen.push((
                message.original_exchange().to_owned(),
                message.original_routing_key().to_owned(),
            ));
        })
        .unwrap();
    assert_eq!(stage.mq.replay(Q).unwrap(), 1);
    let expected = ("events".to_owned(), "order.placed".to_owned());
    assert_eq!(addresses.wait_for(1), [expected]);
}
