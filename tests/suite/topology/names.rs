//! Tests of names that AMQP cannot carry, given or derived: they are errors before anything is
//! sent, as the broker would close the connection.

use amiquip::AmqpProperties;
use rungmq::{
    Ack, Connection, Error, ExchangeKind, LadderError, Publish, Queue, RetryLadder, RetryPolicy,
    Topology,
};
use std::time::Duration;

use crate::harness::observed::unacknowledged;
use crate::harness::support::{Any, Calls, Declared};
use crate::harness::{Proxy, Vhost, Way, secs};

const THRESHOLD: Duration = Duration::from_millis(500);

fn policy() -> RetryPolicy {
    RetryPolicy::fixed(3, secs(2)).unwrap()
}

fn consume(mq: &Connection, queue: &str, policy: RetryPolicy) -> Result<rungmq::Consumer, Error> {
    mq.consumer(queue)
        .retry_policy(policy)
        .retry_threshold(THRESHOLD)
        .start(|_: Any| Ack::accept())
}

#[test]
fn names_over_255_bytes_are_errors_before_anything_is_sent() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("other");
    let proxy = Proxy::to(vhost.node());
    // Without heartbeats every byte on the wire is one that a call has sent.
    let mq = Connection::open(format!("{}?heartbeat=0", proxy.url_for(vhost.name()))).unwrap();
    let (handled, redelivered) = (Calls::default(), Calls::default());
    let counts = (handled.clone(), redelivered.clone());
    mq.consume("other", move |message: Any| {
        if message.redelivered() {
            counts.1.add();
        }
        counts.0.add();
    })
    .unwrap();
    mq.publish("", "other", &1).unwrap();
    handled.wait_for(1, secs(10));
    crate::harness::wait_until(secs(10), "it is acknowledged", || {
        unacknowledged(&vhost) == 0
    });
    let declared = Declared::on(&vhost);
    crate::harness::wait_until(secs(10), "all is quiet", || {
        let before = proxy.bytes(Way::ToBroker);
        crate::harness::wait::let_pass(secs(0.5));
        proxy.bytes(Way::ToBroker) == before
    });
    let sent = proxy.bytes(Way::ToBroker);

    let wide = |bytes: usize| "é".repeat(bytes / 2) + &"x".repeat(bytes % 2);
    // 255 bytes hold the name but neither `.dlq` nor `.parked`; 249 hold the first only; 248 have
    // no room for `.retry.2s`.
    for (bytes, part) in [
        (256, "queue"),
        (1000, "queue"),
        (255, ".dlq"),
        (252, ".dlq"),
        (249, ".parked"),
    ] {
        let error = consume(&mq, &wide(bytes), RetryPolicy::none()).unwrap_err();
        assert!(
            matches!(
                error,
                Error::NameTooLong(_) | Error::Ladder(LadderError::NameTooLong(_))
            ),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(text.contains(part) && text.contains("255"), "{text}");
    }
    let error = consume(&mq, &wide(248), policy()).unwrap_err();
    assert!(
        error.to_string().contains(".retry.2s"),
        "the rung is named: {error}"
    );
    assert!(RetryLadder::new(wide(248), &policy(), THRESHOLD).is_err());

    let long = wide(256);
    for topology in [
        Topology::new().exchange(&long, ExchangeKind::Topic),
        Topology::new().queue(Queue::new(&long)),
        Topology::new().queue(Queue::new(wide(252)).dead_letter()),
        Topology::new().queue(
            Queue::new(wide(248))
                .retry(&policy())
                .retry_threshold(THRESHOLD),
        ),
        Topology::new()
            .queue(Queue::new("q"))
            .bind("q", "amq.topic", &long),
        Topology::new().queue(Queue::new("q").argument(&long, 1_i64)),
        Topology::new().dead_letter_exchange(&long),
    ] {
        let error = topology.apply(&mq).unwrap_err();
        assert!(matches!(error, Error::Topology(_)), "{error:?}");
        assert!(error.to_string().contains("255"), "{error}");
    }
    let keyed = Publish::text("x").routing_key(&long);
    assert!(
        mq.publish_with(keyed)
            .unwrap_err()
            .to_string()
            .contains("255")
    );
    let to = Publish::text("x").exchange(&long);
    assert!(mq.publish_with(to).unwrap_err().to_string().contains("255"));
    assert!(matches!(mq.pull(&long), Err(Error::NameTooLong(_))));
    assert!(matches!(mq.replay(&wide(252)), Err(Error::NameTooLong(_))));

    assert_eq!(proxy.bytes(Way::ToBroker), sent);
    assert_eq!(Declared::on(&vhost), declared);
    raw.send("other", "2", AmqpProperties::default());
    handled.wait_for(2, secs(10));
    assert_eq!(redelivered.count(), 0);
    assert_eq!(proxy.accepted(), 2, "one socket to consume, one to publish");
    mq.close().unwrap();
}

#[test]
fn the_longest_names_there_are_work() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let mq = Connection::open(vhost.url()).unwrap();
    // `.retry.2s` makes it exactly 255 bytes, of two-byte characters.
    let name = "é".repeat(123);
    assert_eq!(name.len() + ".retry.2s".len(), 255);
    let policy = RetryPolicy::fixed(2, secs(2)).unwrap();
    let exchange = "x".repeat(255);
    let key = "k".repeat(255);
    Topology::new()
        .exchange(&exchange, ExchangeKind::Direct)
        .queue(
            Queue::new(&name)
                .dead_letter()
                .retry(&policy)
                .retry_threshold(THRESHOLD),
        )
        .bind(&name, &exchange, &key)
        .apply(&mq)
        .unwrap();
    let attempts = Calls::default();
    let calls = attempts.clone();
    mq.consumer(name.as_str())
        .retry_policy(policy)
        .retry_threshold(THRESHOLD)
        .start(move |_: Any| {
            calls.add();
            Ack::retry("no stock")
        })
        .unwrap();
    mq.publish_with(
        Publish::json(&1)
            .unwrap()
            .exchange(&exchange)
            .routing_key(&key)
            .mandatory(true),
    )
    .unwrap();
    attempts.wait_for(2, secs(20));
    raw.wait_for_count(&format!("{name}.dlq"), 1, secs(10));
    mq.close().unwrap();
}

#[test]
fn a_queue_without_a_name_is_no_queue() {
    let vhost = Vhost::new();
    let mq = Connection::open(vhost.url()).unwrap();
    let error = consume(&mq, "", policy()).unwrap_err();
    assert!(matches!(error, Error::Configuration(_)), "{error:?}");
    assert_eq!(vhost.queue_names(), [""; 0]);
    mq.close().unwrap();
}
