//! Tests of retries whose rung is gone, and of what asking for rungs costs other channels.

use std::time::Duration;

use amiquip::AmqpProperties;
use rungmq::{Ack, Connection, Message};

use crate::harness::observed::{Observed, SOON, diary, fixed, unacknowledged, wait_until_empty};
use crate::harness::wait::wait_for_value;
use crate::harness::{Vhost, secs, wait_until};

/// A connection publishes on three channels; they open in the background.
const TO_PUBLISH: usize = 3;

/// Fails every first attempt.
fn once(message: &Message<u64>) -> Ack {
    if message.attempt() == 1 {
        Ack::retry("once")
    } else {
        Ack::accept()
    }
}

fn missing(service: &Observed) -> u64 {
    service.counter("acemq.retry.rung.missing", &[("queue", "q")])
}

#[test]
fn deleted_rung_is_replaced_by_in_consumer_waits() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let service = Observed::on(&vhost);
    let policy = fixed(3, 1.0);
    service.declare(&policy);
    let (diary, read) = diary();
    let consumer = service.mq.consumer("q").retry_policy(policy.clone());
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        once(&message)
    };
    consumer.start(handle).unwrap();
    let came_by = |payload: u64| {
        service.mq.publish("", "q", &payload).unwrap();
        let seen = read.wait_for(payload, 2);
        service.wait_for_consumed("acked", payload);
        assert_eq!(read.attempts(payload), [1, 2]);
        assert_eq!(seen[0].id, seen[1].id);
        assert!(!seen[1].redelivered);
        let waited = seen[1].at - seen[0].at;
        assert!(waited >= secs(0.95), "{waited:?}");
        seen[1].exchange.clone()
    };

    assert_eq!(came_by(1), "acemq.retry");
    raw.delete_queue("q.retry.1s");
    assert_eq!(came_by(2), "");
    assert_eq!(missing(&service), 1);
    // By now it knows, so nothing has to come back first; it is missing all the same.
    assert_eq!(came_by(3), "");
    assert_eq!(missing(&service), 2);
    assert_eq!(service.published("", "unroutable"), 1);

    service.declare(&policy);
    assert_eq!(came_by(4), "acemq.retry");
    assert_eq!(missing(&service), 2);
    assert_eq!(service.consumed("retried"), 4);
    assert_eq!(service.consumed("handed_back"), 0);
}

#[test]
fn asking_for_a_rung_costs_no_channel() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.quorum("q");
    let service = Observed::on(&vhost);
    let (diary, read) = diary();
    let (release, gate) = crossbeam_channel::bounded::<()>(0);
    let consumer = service.mq.consumer("q").declare(false);
    let consumer = consumer.retry_policy(fixed(3, 1.0));
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        if *message.payload() == 99 {
            return once(&message);
        }
        let _ = gate.recv();
        Ack::accept()
    };
    consumer.concurrency(21).prefetch(50).start(handle).unwrap();
    for payload in 0..20 {
        service.mq.publish("", "q", &payload).unwrap();
    }
    wait_until(SOON, "20 handlers run", || {
        (0..20).all(|payload| read.attempts(payload) == [1])
    });
    let channels = || {
        let rows = vhost.list_channels(&["pid"]);
        let mut pids: Vec<_> = rows.iter().map(|row| row["pid"].to_string()).collect();
        pids.sort();
        pids
    };
    // Its own, the observer's, and those to publish.
    wait_until(SOON, "all channels are open", || {
        channels().len() == 2 + TO_PUBLISH
    });
    let before = channels();
    service.mq.publish("", "q", &99).unwrap();
    let seen = read.wait_for(99, 2);
    assert_eq!((seen[1].attempt, missing(&service)), (2, 1));
    service.wait_for_consumed("acked", 1);
    wait_for_value(SOON, "the channels", &before, channels);
    wait_for_value(SOON, "deliveries out", &20, || unacknowledged(&vhost));

    drop(release);
    service.wait_for_consumed("acked", 21);
    for payload in 0..20 {
        assert_eq!(read.of(payload).len(), 1, "{payload}");
    }
}

#[test]
fn thousands_of_retries_leave_no_channel_behind() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    raw.classic("asking");
    let builder = Connection::builder(format!("{}?channel_max=8", vhost.url()));
    let service = Observed::with(builder);
    let consumer = service.mq.consumer("q").concurrency(8).prefetch(200);
    let handle = |_: Message<u64>| Ack::retry("always");
    consumer
        .retry_policy(fixed(6, 0.001))
        .start(handle)
        .unwrap();
    // Its rung is never there, so each retry asks.
    let asking = service.mq.consumer("asking").declare(false).concurrency(8);
    let asking = asking.prefetch(500).retry_policy(fixed(2, 0.6));
    asking
        .start(|message: Message<u64>| once(&message))
        .unwrap();
    service.mq.publish("", "elsewhere", &0).unwrap();

    let channels = || {
        let rows = vhost.list_channels(&["connection"]);
        // The observer has one of its own.
        rows.len() - 1
    };
    let before = 2 + TO_PUBLISH;
    wait_for_value(SOON, "the channels", &before, channels);
    raw.send_all(
        "q",
        (0..1000).map(|n| n.to_string()),
        &AmqpProperties::default(),
    );
    let mut most = before;
    for payload in 0..500 {
        service.mq.publish("", "asking", &payload).unwrap();
        if payload % 10 == 0 {
            most = most.max(channels());
        }
    }
    let asked = [("queue", "asking"), ("outcome", "acked")];
    wait_until(secs(90), "everything is handled", || {
        most = most.max(channels());
        service.consumed("dead_lettered") == 1000
            && service.counter("acemq.consume.total", &asked) == 500
    });
    assert_eq!(service.consumed("retried"), 5000);
    let missing = service.counter("acemq.retry.rung.missing", &[("queue", "asking")]);
    assert_eq!(missing, 500);
    assert!(most <= before + 2, "{most}");
    wait_for_value(SOON, "the channels", &before, channels);
    assert_eq!(raw.count("q.dlq"), 1000);
    assert!(service.mq.is_running());
}

#[test]
fn refusing_rung_requeues_with_growing_pauses() {
    let vhost = Vhost::new();
    let service = Observed::on(&vhost);
    let policy = fixed(3, 1.0);
    service.declare(&policy);
    refuse(&vhost, "q.retry.1s");
    hands_back_and_recovers(&vhost, &service, 1.0);
}

#[test]
fn refusing_source_queue_requeues_with_growing_pauses() {
    let vhost = Vhost::new();
    let service = Observed::on(&vhost);
    let policy = fixed(3, 0.01);
    service.declare_queue(rungmq::Queue::new("q").classic(), &policy);
    hands_back_and_recovers(&vhost, &service, 0.01);
}

/// Sets a policy under which the broker nacks everything that is published to `queue`.
fn refuse(vhost: &Vhost<'_>, queue: &str) {
    let pattern = format!("^{}$", queue.replace('.', "\\."));
    let definition = serde_json::json!({"max-length": 0, "overflow": "reject-publish"});
    vhost.set_policy("refuse", &pattern, &definition);
}

fn hands_back_and_recovers(vhost: &Vhost<'_>, service: &Observed, delay: f64) {
    let (diary, read) = diary();
    let (release, gate) = crossbeam_channel::bounded::<()>(0);
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        if *message.payload() == 1 {
            let _ = gate.recv();
            return once(&message);
        }
        Ack::accept()
    };
    let consumer = service.mq.consumer("q").retry_policy(fixed(3, delay));
    consumer.start(handle).unwrap();
    for payload in [1, 2, 3] {
        service.mq.publish("", "q", &payload).unwrap();
    }
    assert_eq!(read.next().payload, 1);
    if delay < 0.5 {
        refuse(vhost, "q");
    }
    drop(release);
    // The others go on while it is held, in the only permit there is.
    service.wait_for_consumed("acked", 2);
    assert_eq!(read.attempts(1), [1]);

    let seen = read.wait_for(1, 3);
    assert!(seen.iter().all(|seen| seen.attempt == 1), "{seen:?}");
    assert!(seen[1].redelivered && seen[2].redelivered);
    let pauses = [seen[1].at - seen[0].at, seen[2].at - seen[1].at];
    let nominal = [secs(1), secs(2)];
    for (pause, nominal) in pauses.into_iter().zip(nominal) {
        assert!(pause >= nominal - Duration::from_millis(50), "{pauses:?}");
    }
    assert!(service.handed_back("nacked") >= 2);

    vhost.clear_policy("refuse");
    service.wait_for_consumed("acked", 3);
    // Compared at the end: while requeues go on, one counter may be a step ahead of the other.
    assert_eq!(
        service.consumed("handed_back"),
        service.handed_back("nacked")
    );
    let attempts = read.attempts(1);
    assert_eq!(attempts.last(), Some(&2), "{attempts:?}");
    assert_eq!(attempts.iter().filter(|attempt| **attempt == 2).count(), 1);
    wait_until_empty(vhost, "q");
}
