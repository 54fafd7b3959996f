//! What lives on a node that is down is waited for, and nothing else is.
//!
//! RabbitMQ 3 says by a 404 that a queue's node is down. RabbitMQ 4 says nothing: declarations
//! succeed, and what is published to the queue is refused.

use std::time::Duration;

use log::Level;
use rungmq::{Ack, HealthStatus, Message, Queue, Topology};

use super::{HOME, assert_nothing_rejected, prepare, raw, send, to_all, witness};
use crate::harness::observed::{Observed, SOON, diary, fixed, wait_until_empty};
use crate::harness::wait::{Stopwatch, let_pass, timed};
use crate::harness::{Cluster, Vhost, logs, secs, wait_until};

/// How long a consumer takes at most to see that a node is back: it asks when a copy lands there,
/// and every half minute.
const HEALED: Duration = Duration::from_secs(60);

/// What takes less has waited for no call to fail.
const CALL_LIMIT: Duration = Duration::from_secs(10);

#[track_caller]
fn assert_one_warning_for_each(queues: [&str; 3]) {
    for queue in queues {
        let warnings = logs::captured_with(Level::Warn, &format!("queue {queue:?}"));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("node that is down"), "{warnings:?}");
    }
}

/// How many deliveries of `queue` were counted under `name` with this label.
fn counted(service: &Observed, name: &str, queue: &str, label: (&str, &str)) -> u64 {
    service.counter(name, &[("queue", queue), label])
}

#[test]
fn consumer_started_while_dead_letter_node_is_down_heals() {
    logs::capture();
    let cluster = Cluster::alone();
    let policy = fixed(2, 1.0);
    let vhost = prepare(&cluster, "late", &policy);
    witness(&cluster, &vhost, "late");
    cluster.kill_9(HOME);

    let service = Observed::with(to_all(&cluster, &vhost));
    let (diary, read) = diary();
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        match message.payload() {
            1 => Ack::reject("wrong"),
            2 => Ack::park("look at it"),
            3 if message.attempt() == 1 => Ack::retry("once"),
            _ => Ack::accept(),
        }
    };
    let consumer = service.mq.consumer("late").retry_policy(policy);
    let (started, took) = timed(|| consumer.start(handle));
    started.unwrap();
    assert!(took < CALL_LIMIT, "{took:?}");
    let told = cluster.node(0).major() < 4;
    if told {
        let queues = ["late.dlq", "late.parked", "late.retry.1s"];
        assert_one_warning_for_each(queues);
        let health = service.mq.health();
        assert_eq!(health.status, HealthStatus::Degraded, "{health}");
        assert_eq!(health.consumers_running, 1, "{health}");
        let detail = health.detail.unwrap();
        assert!(
            queues.iter().all(|queue| detail.contains(queue)),
            "{detail}"
        );
    }

    for payload in [1, 2, 3, 5] {
        send(&cluster, 0, &vhost, "late", payload);
    }
    read.wait_for(5, 1);
    let seen = read.wait_for(1, 3);
    let pauses = [seen[1].at - seen[0].at, seen[2].at - seen[1].at];
    assert!(
        pauses[0] >= secs(0.95) && pauses[1] >= secs(1.95),
        "{pauses:?}"
    );
    assert!(seen.iter().all(|seen| seen.attempt == 1), "{seen:?}");
    let target = ("target", "late.dlq");
    let failed = counted(&service, "acemq.messages.set.aside.failed", "late", target);
    assert!(failed >= 2, "{failed}");
    if told {
        assert_eq!(service.mq.health().status, HealthStatus::Degraded);
        // Its rung is not there, so it has waited in the consumer.
        assert_eq!(read.wait_for(3, 2)[1].attempt, 2);
    }

    cluster.start_again(HOME);
    let back = raw(&cluster, HOME, &vhost);
    for (queue, payload) in [("late.dlq", "1"), ("late.parked", "2")] {
        let got = back.wait_for_get(queue, SOON);
        assert_eq!(got.text(), payload);
        assert_eq!(got.header_number("x-acemq-attempt"), Some(1));
    }
    wait_until(SOON, "the retry has been accepted", || {
        read.attempts(3).contains(&2)
    });
    wait_until(HEALED, "health is up again", || {
        service.mq.health().status == HealthStatus::Up
    });
    send(&cluster, 0, &vhost, "late", 3);
    wait_until(SOON, "a retry comes out of its rung", || {
        read.of(3).iter().any(|seen| seen.exchange == "acemq.retry")
    });
    wait_until_empty(&vhost, "late");
    assert_nothing_rejected(&cluster, &vhost);
}

#[test]
fn successive_dead_letters_wait_only_while_node_is_down() {
    logs::capture();
    let cluster = Cluster::alone();
    let vhost = prepare(&cluster, "beside", &fixed(1, 0.0));
    witness(&cluster, &vhost, "beside");
    // On a node that stays up, so that only the dead letters tell.
    let service = Observed::to(&vhost.url());
    let consumer = service.mq.consumer("beside");
    consumer
        .start(|_: Message<u64>| Ack::reject("wrong"))
        .unwrap();
    let down = Stopwatch::start();
    cluster.kill_9(HOME);
    for payload in 0..15 {
        send(&cluster, 0, &vhost, "beside", payload);
        let_pass(Duration::from_millis(200));
    }
    let rejected = ("outcome", "rejected");
    let consumed = || counted(&service, "acemq.consume.total", "beside", rejected);
    assert_eq!(consumed(), 0);
    if cluster.node(0).major() < 4 {
        let health = service.mq.health();
        assert_eq!(health.status, HealthStatus::Degraded, "{health}");
        assert!(health.to_string().contains("beside.dlq"), "{health}");
    }
    let mut warnings = logs::captured_with(Level::Warn, "beside.dlq");
    warnings.retain(|line| line.starts_with("WARN rungmq"));
    assert!((1..=2).contains(&warnings.len()), "{warnings:#?}");

    cluster.start_again(HOME);
    let back = raw(&cluster, HOME, &vhost);
    // Pauses double, so that none is longer than all before it.
    back.wait_for_count("beside.dlq", 15, down.elapsed() + secs(10));
    wait_until(SOON, "all are counted", || consumed() == 15);
    wait_until(HEALED, "health is up again", || {
        service.mq.health().status == HealthStatus::Up
    });
    wait_until_empty(&vhost, "beside");
    assert_nothing_rejected(&cluster, &vhost);
}

#[test]
fn topology_with_node_down_needs_only_its_source_queue() {
    logs::capture();
    let cluster = Cluster::alone();
    let policy = fixed(3, 2.0);
    let vhost = prepare(&cluster, "applied", &policy);
    let there = Observed::to(&cluster.node(HOME).url_for(vhost.name()));
    let gone = || Queue::new("gone").classic();
    there.declare_queue(gone(), &policy);
    cluster.kill_9(HOME);

    let service = Observed::with(to_all(&cluster, &vhost));
    let ((), took) = timed(|| service.declare_queue(Queue::new("applied"), &policy));
    assert!(took < CALL_LIMIT, "{took:?}");
    let told = cluster.node(0).major() < 4;
    if told {
        assert_one_warning_for_each(["applied.dlq", "applied.parked", "applied.retry.2s"]);
    }
    let apply = || {
        Topology::new()
            .queue(gone().dead_letter())
            .apply(&service.mq)
    };
    let consume = || service.mq.consume("gone", |_: Message<u64>| ());
    // RabbitMQ 4 does not answer in time.
    for error in [apply().unwrap_err(), consume().unwrap_err()] {
        assert_eq!(error.is_not_found(), told, "{error}");
        assert!(error.to_string().contains("queue \"gone\""), "{error}");
    }
    // What is new stands in full, on a node that is up.
    service.declare_queue(Queue::new("new"), &policy);
    assert!(raw(&cluster, 0, &vhost).exists("new.dlq"));
    cluster.start_again(HOME);
    apply().unwrap();
    consume().unwrap();
}

#[test]
fn consumer_resumes_when_its_classic_queue_is_back() {
    let cluster = Cluster::alone();
    let vhost = Vhost::on(cluster.node(0));
    raw(&cluster, HOME, &vhost).classic("q");
    let service = Observed::to(&vhost.url());
    let (diary, read) = diary();
    let consumer = service.mq.consume("q", diary.noting()).unwrap();
    send(&cluster, HOME, &vhost, "q", 1);
    read.wait_for(1, 1);
    cluster.kill_9(HOME);
    wait_until(SOON, "the consumer knows", || !consumer.is_running());
    let health = service.mq.health();
    assert_eq!(health.status, HealthStatus::Degraded, "{health}");
    assert!(health.detail.unwrap().starts_with("q: "));
    cluster.start_again(HOME);
    wait_until(SOON, "it consumes again", || consumer.is_running());
    send(&cluster, 0, &vhost, "q", 2);
    read.wait_for(2, 1);
    assert_eq!(service.mq.health().status, HealthStatus::Up);
}
