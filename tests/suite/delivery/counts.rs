//! Tests that deliveries, copies and publishes are each counted once, with their outcome.

use amiquip::{AmqpProperties, ExchangeType};
use rungmq::metrics::Snapshot;
use rungmq::{Ack, FatalError, Message, Publish};
use serde_json::Value;

use super::{LIMIT, Q, Seen, Stage, by_rung};
use crate::harness::wait_until;

fn counter(snapshot: &Snapshot, name: &str, labels: &[(&str, &str)]) -> u64 {
    snapshot.counter(name, labels)
}

/// The sum of a counter over all its labels.
fn total(snapshot: &Snapshot, name: &str) -> u64 {
    snapshot
        .iter()
        .filter(|sample| sample.name() == name)
        .map(|sample| match sample.value() {
            rungmq::metrics::Value::Counter(count) => *count,
            other => panic!("{name} is {other:?}"),
        })
        .sum()
}

#[test]
fn every_delivery_is_counted_exactly_once() {
    let stage = Stage::new();
    let said: [(&str, usize); 7] = [
        ("accept", 5),
        ("second", 3),
        ("never", 2),
        ("reject", 4),
        ("fatal", 2),
        ("park", 1),
        ("panic", 1),
    ];
    for (word, count) in said {
        let body = format!("{word:?}");
        stage
            .raw
            .send_all(Q, (0..count).map(|_| &body), &AmqpProperties::default());
    }
    stage
        .raw
        .send_all(Q, ["not JSON", ""], &AmqpProperties::default());
    stage
        .consumer(&by_rung(2))
        .concurrency(4)
        .start(|message: Message<String>| -> Result<Ack, FatalError> {
            Ok(match (message.payload().as_str(), message.attempt()) {
                ("accept", _) | ("second", 2) => Ack::accept(),
                ("second" | "never", _) => Ack::retry("not yet"),
                ("reject", _) => Ack::reject("no"),
                ("park", _) => Ack::park("hm"),
                ("fatal", _) => return Err(FatalError::new("no use")),
                _ => panic!("panic"),
            })
        })
        .unwrap();
    // Retried: 3 seconds, 2 nevers, 1 panic. Dead-lettered: 2 nevers, 2 fatals, 1 panic. Parked: 1,
    // and 2 undecodable.
    stage.settled(&[
        ("acked", 8),
        ("retried", 6),
        ("rejected", 4),
        ("dead_lettered", 5),
        ("parked", 3),
    ]);
    let snapshot = stage.snapshot();
    let deliveries = 5 + 3 * 2 + 2 * 2 + 4 + 2 + 1 + 2 + 2;
    assert_eq!(total(&snapshot, "acemq.consume.total"), deliveries);
    assert_eq!(
        counter(
            &snapshot,
            "acemq.messages.retried.total",
            &[("queue", Q), ("outcome", "retried")]
        ),
        6
    );
    assert_eq!(total(&snapshot, "acemq.messages.retried.total"), 6);
    for (outcome, count) in [("dead_lettered", 5), ("parked", 3), ("rejected", 0)] {
        assert_eq!(
            counter(
                &snapshot,
                "acemq.messages.dead.lettered.total",
                &[("queue", Q), ("outcome", outcome)]
            ),
            count,
            "{outcome}"
        );
    }
    assert_eq!(total(&snapshot, "acemq.messages.dead.lettered.total"), 8);

    let attempts = snapshot
        .histogram("acemq.consume.attempts", &[("queue", Q)])
        .unwrap();
    assert_eq!(attempts.count(), deliveries);
    let second_attempts = 3 + 2 + 1;
    assert_eq!(attempts.sum(), (deliveries + second_attempts) as f64);
    assert_eq!(
        attempts.buckets().next(),
        Some((1.0, deliveries - second_attempts))
    );

    // The handler's time: not of what it never saw.
    for (outcome, count) in [
        ("acked", 8),
        ("retried", 6),
        ("rejected", 4),
        ("dead_lettered", 5),
        ("parked", 1),
    ] {
        let duration = snapshot
            .histogram(
                "acemq.consume.duration",
                &[("queue", Q), ("outcome", outcome)],
            )
            .unwrap();
        assert_eq!(duration.count(), count, "{outcome}");
        assert!(duration.sum() < 3.0, "{outcome} without the wait");
    }

    // Only the library published: one copy for each delivery that was not accepted.
    let copies = [("exchange", ""), ("outcome", "confirmed")];
    assert_eq!(
        counter(&snapshot, "acemq.publish.total", &copies),
        6 + 4 + 5 + 3
    );
    assert_eq!(total(&snapshot, "acemq.publish.total"), 6 + 4 + 5 + 3);
    let duration = snapshot.histogram("acemq.publish.duration", &copies);
    assert_eq!(duration.unwrap().count(), 6 + 4 + 5 + 3);
    for nothing in [
        "acemq.messages.set.aside.failed",
        "acemq.retry.rung.missing",
        "acemq.retry.handed.back",
        "acemq.connection.recovered",
    ] {
        assert_eq!(total(&snapshot, nothing), 0, "{nothing}");
    }
}

#[test]
fn publishes_are_counted_by_exchange_and_end() {
    let stage = Stage::new();
    stage.raw.exchange("events", ExchangeType::Fanout);
    stage.raw.bind(Q, "events", "");
    stage.mq.publish("events", "order.placed", &1).unwrap();
    stage.mq.publish("events", "order.placed", &2).unwrap();
    stage.mq.publish("", Q, &3).unwrap();
    let lost = Publish::text("4").routing_key("nowhere").mandatory(true);
    assert!(stage.mq.publish_with(lost).unwrap_err().is_unroutable());
    let missing = Publish::text("5").exchange("missing");
    assert!(stage.mq.publish_with(missing).unwrap_err().is_refused());
    let results = stage.mq.publish_all([
        Publish::text("6").exchange("events"),
        Publish::text("7").routing_key("nowhere").mandatory(true),
    ]);
    assert!(results[0].is_ok());
    assert!(results[1].as_ref().unwrap_err().is_unroutable());

    let snapshot = stage.snapshot();
    for (exchange, outcome, count) in [
        ("events", "confirmed", 3),
        ("", "confirmed", 1),
        ("", "unroutable", 2),
        ("missing", "refused", 1),
    ] {
        let labels = [("exchange", exchange), ("outcome", outcome)];
        assert_eq!(
            counter(&snapshot, "acemq.publish.total", &labels),
            count,
            "{labels:?}"
        );
        assert_eq!(
            snapshot
                .histogram("acemq.publish.duration", &labels)
                .unwrap()
                .count(),
            count,
            "{labels:?}"
        );
    }
    assert_eq!(total(&snapshot, "acemq.publish.total"), 7);
}

#[test]
fn in_flight_is_counted_from_decoding_to_settlement() {
    let stage = Stage::new();
    stage
        .raw
        .send_all(Q, ["1", "2", "3"], &AmqpProperties::default());
    let (open, gate) = crossbeam_channel::bounded::<()>(0);
    let started = Seen::default();
    let seen = started.clone();
    let consumer = stage
        .consumer(&by_rung(1))
        .concurrency(2)
        .start(move |message: Message<Value>| {
            seen.push(message.payload().clone());
            let _ = gate.recv();
        })
        .unwrap();
    started.wait_for(2);
    let gauge = || {
        stage
            .snapshot()
            .gauge("acemq.consume.in.flight", &[("queue", Q)])
    };
    assert_eq!((consumer.in_flight(), gauge()), (2, 2));
    // Received, but not started: it counts nowhere yet.
    let attempts = stage.snapshot();
    let attempts = attempts.histogram("acemq.consume.attempts", &[("queue", Q)]);
    assert_eq!(attempts.unwrap().count(), 2);
    drop(open);
    stage.settled(&[("acked", 3)]);
    wait_until(LIMIT, "nothing is in flight", || consumer.in_flight() == 0);
}
