//! Tests of a memory alarm: publishing pauses, consuming does not, and nothing is doubled.

use std::collections::BTreeMap;
use std::fs;

use amiquip::AmqpProperties;
use rungmq::{Ack, Connection, HealthStatus, Message};

use super::{send, told_by, wait_until_up};
use crate::harness::observed::{SOON, diary, fixed, now, wait_until_empty};
use crate::harness::wait::let_pass;
use crate::harness::{Node, Vhost, holds_for, secs, wait_until};
use crate::suite::shutdown::alone::{alone, full_name, nothing};
use crate::suite::{BorrowedNode, steady};

const BLOCKED: &str = "the broker has blocked this connection; publishing is paused";

#[test]
fn alarm_during_retries_delays_only_copies() {
    let node = BorrowedNode::take();
    let vhost = Vhost::on(&node);
    // Far shorter than the alarm: its clock must stand still meanwhile.
    let builder = Connection::builder(vhost.url()).confirm_timeout(secs(3));
    let (service, story) = told_by(builder);
    let policy = fixed(2, 1.0);
    service.declare(&policy);
    let (diary, read) = diary();
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        match message.payload() % 3 {
            0 => Ack::accept(),
            1 if message.attempt() == 1 => Ack::retry("once"),
            1 => Ack::accept(),
            _ => Ack::reject("never"),
        }
    };
    let raw = vhost.raw();
    // All of it stands in the queue before the alarm, which blocks the test's own publishing as
    // well.
    for payload in 0..300 {
        send(&raw, "q", payload, 1);
    }
    let consumer = service.mq.consumer("q").retry_policy(policy);
    let consumer = consumer.prefetch(300).concurrency(2);
    let consumer = consumer
        .start(move |message: Message<u64>| {
            let_pass(secs(0.02));
            handle(message)
        })
        .unwrap();
    wait_until(SOON, "some are done", || service.consumed("acked") >= 10);
    node.memory_alarm(true);
    let alarmed = now();
    wait_until(SOON, "the block is known", || service.mq.health().blocked);
    let health = service.mq.health();
    assert_eq!(health.status, HealthStatus::Up);
    assert!(
        health.detail.as_ref().unwrap().starts_with(BLOCKED),
        "{health}"
    );
    assert_eq!(health.blocked_reason.as_deref(), Some("low on memory"));
    let json = health.to_json();
    assert_eq!(json["parts"]["blocked"], true);
    assert_eq!(json["parts"]["blocked_reason"], "low on memory");
    let error = service.mq.publish("", "q", &1).unwrap_err();
    assert!(
        error.is_refused() && error.to_string().contains(BLOCKED),
        "{error}"
    );

    // Handlers run on, and those that succeed are acknowledged.
    wait_until(SOON, "every message has been handled", || {
        (0..300).all(|payload| !read.of(payload).is_empty())
    });
    wait_until(SOON, "those that succeed are acknowledged", || {
        service.consumed("acked") >= 100
    });
    let settled = || service.consumed("retried") + service.consumed("rejected");
    // What was written before the alarm may still be confirmed.
    let (waiting, before) = steady("the copies that wait", || {
        (service.mq.health().waiting_copies, settled())
    });
    assert!(waiting > 50, "{waiting} copies wait");
    let left = secs(6).saturating_sub(now() - alarmed);
    holds_for(left, "copies wait", || {
        settled() == before && service.mq.health().waiting_copies == waiting
    });
    assert_eq!(consumer.in_flight() as u64 + before, 200);

    node.memory_alarm(false);
    service.wait_for_consumed("retried", 100);
    service.wait_for_consumed("rejected", 100);
    service.wait_for_consumed("acked", 200);
    wait_until_up(&service.mq);
    let health = service.mq.health();
    assert!(
        !health.blocked && health.blocked_reason.is_none(),
        "{health}"
    );
    assert_eq!((health.detail, health.waiting_copies), (None, 0));
    service.mq.publish("", "q", &600).unwrap();
    wait_until_empty(&vhost, "q");
    let raw = vhost.raw();
    raw.wait_for_count("q.dlq", 100, SOON);
    let mut dead = BTreeMap::new();
    for got in raw.drain("q.dlq") {
        *dead.entry(got.text().to_owned()).or_insert(0) += 1;
    }
    for payload in 0..300 {
        let attempts = read.attempts(payload);
        let expected = if payload % 3 == 1 {
            vec![1, 2]
        } else {
            vec![1]
        };
        assert_eq!(attempts, expected, "{payload}");
        let copies = dead.get(&payload.to_string()).copied();
        assert_eq!(copies, (payload % 3 == 2).then_some(1), "{payload}");
    }
    for reason in ["timeout", "lost", "nacked", "unroutable"] {
        assert_eq!(service.handed_back(reason), 0, "{reason}");
    }
    assert!(story.losses().is_empty());

    // A connection that is blocked when it is lost starts afresh.
    node.memory_alarm(true);
    wait_until(SOON, "it is blocked", || {
        drop(service.mq.publish("", "q", &900));
        service.mq.health().blocked
    });
    node.close_connections(vhost.name());
    wait_until(SOON, "the old block is forgotten", || {
        let health = service.mq.health();
        health.status == HealthStatus::Up && !health.blocked
    });
    node.memory_alarm(false);
    wait_until(SOON, "publishing is possible", || {
        service.mq.publish("", "q", &903).is_ok()
    });
}

/// The time that threads of that name have been running for, in hundredths of a second.
fn ticks(name: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let ticks = tasks.filter_map(|task| {
        let stat = fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (start, rest) = stat.rsplit_once(") ")?;
        let times: Vec<u64> = rest
            .split(' ')
            .skip(11)
            .take(2)
            .filter_map(|time| time.parse().ok())
            .collect();
        start.ends_with(name).then(|| times.iter().sum::<u64>())
    });
    ticks.sum()
}

/// A copy is written and the broker blocks, so that its confirm is overdue for as long as the alarm
/// lasts.
#[test]
fn overdue_confirm_under_an_alarm_keeps_no_thread_busy() {
    alone(
        full_name!(overdue_confirm_under_an_alarm_keeps_no_thread_busy),
        nothing,
        |_| {
            let node = Node::start();
            let vhost = Vhost::on(&node);
            let builder = Connection::builder(vhost.url()).confirm_timeout(secs(1));
            let (service, _story) = told_by(builder);
            service.declare(&fixed(1, 0.0));
            let raw = vhost.raw();
            for payload in [1, 2] {
                raw.send("q", payload.to_string(), AmqpProperties::default());
            }
            let (release, gate) = crossbeam_channel::bounded::<()>(0);
            let handle = move |_: Message<u64>| {
                let _ = gate.recv();
                Ack::reject("no")
            };
            // Opens the publishing socket, which is blocked by what it publishes next.
            service.mq.publish("", "nowhere", &0).unwrap();
            service.mq.consume("q", handle).unwrap();
            node.memory_alarm(true);
            drop(release);
            wait_until(SOON, "it is blocked", || service.mq.health().blocked);
            let_pass(secs(1.5));
            let before = ticks("rungmq-publishe");
            let_pass(secs(2));
            let busy = ticks("rungmq-publishe") - before;
            assert!(busy < 50, "{busy} hundredths of two seconds");
            node.memory_alarm(false);
            service.wait_for_consumed("rejected", 2);
            assert_eq!(service.handed_back("timeout"), 0);
        },
    );
}
