//! Tests of order, concurrency and prefetch, and of workers that survive their handlers.

use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use amiquip::AmqpProperties;
use crossbeam_channel::bounded;
use parking_lot::Mutex;
use rungmq::{Ack, Message, RetryPolicy, naming};

use super::{LIMIT, Q, Seen, Stage, soon};
use crate::harness::wait::let_pass;
use crate::harness::{holds_for, secs, wait_until};

fn numbers(stage: &Stage, count: u32) {
    stage.raw.send_all(
        Q,
        (0..count).map(|n| n.to_string()),
        &AmqpProperties::default(),
    );
}

/// How many messages the broker has given out without an answer.
fn unacknowledged(stage: &Stage) -> u64 {
    let row = stage.vhost.queue(Q, &["messages_unacknowledged"]).unwrap();
    row["messages_unacknowledged"].as_u64().unwrap()
}

#[test]
fn a_concurrency_of_one_keeps_the_queues_order() {
    let stage = Stage::new();
    numbers(&stage, 500);
    let seen = Seen::default();
    let order = seen.clone();
    stage
        .consumer(&soon(1))
        .prefetch(50)
        .start(move |message: Message<u32>| order.push(*message.payload()))
        .unwrap();
    stage.settled(&[("acked", 500)]);
    assert_eq!(seen.all(), (0..500).collect::<Vec<_>>());
}

#[test]
fn a_retry_that_waits_costs_the_others_neither_time_nor_order() {
    let stage = Stage::new();
    numbers(&stage, 20);
    let seen = Seen::default();
    let order = seen.clone();
    // Below the threshold: it waits in the worker.
    let policy = RetryPolicy::fixed(2, Duration::from_millis(400)).unwrap();
    stage
        .consumer(&policy)
        .start(move |message: Message<u32>| {
            order.push((*message.payload(), message.attempt()));
            if (*message.payload(), message.attempt()) == (0, 1) {
                Ack::retry("no stock")
            } else {
                Ack::accept()
            }
        })
        .unwrap();
    stage.settled(&[("acked", 20), ("retried", 1)]);
    let healthy: Vec<_> = seen
        .all()
        .into_iter()
        .filter(|(_, attempt)| *attempt == 1)
        .map(|(number, _)| number)
        .collect();
    assert_eq!(healthy, (0..20).collect::<Vec<_>>());
}

#[test]
fn concurrency_of_eight_never_runs_nine_handlers() {
    let stage = Stage::new();
    numbers(&stage, 40);
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (open, gate) = bounded::<()>(0);
    let (now, peak) = (running.clone(), most.clone());
    stage
        .consumer(&soon(1))
        .concurrency(8)
        .prefetch(32)
        .start(move |_: Message<u32>| {
            let count = now.fetch_add(1, Ordering::SeqCst) + 1;
            peak.fetch_max(count, Ordering::SeqCst);
            let _ = gate.recv();
            now.fetch_sub(1, Ordering::SeqCst);
        })
        .unwrap();
    wait_until(LIMIT, "eight handlers run", || {
        running.load(Ordering::SeqCst) == 8
    });
    wait_until(LIMIT, "the prefetch is used", || {
        unacknowledged(&stage) == 32
    });
    holds_for(secs(0.3), "no ninth begins", || {
        running.load(Ordering::SeqCst) == 8
    });
    drop(open);
    stage.settled(&[("acked", 40)]);
    assert_eq!(most.load(Ordering::SeqCst), 8);
}

#[test]
fn workers_returning_from_a_wait_keep_the_concurrency() {
    let stage = Stage::new();
    numbers(&stage, 30);
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let peak = most.clone();
    // Every wait needs a worker of its own, so that there are many more of them than may run
    // handlers.
    stage
        .consumer(&soon(4))
        .concurrency(2)
        .prefetch(30)
        .start(move |_: Message<u32>| {
            let count = running.fetch_add(1, Ordering::SeqCst) + 1;
            peak.fetch_max(count, Ordering::SeqCst);
            let_pass(Duration::from_millis(2));
            running.fetch_sub(1, Ordering::SeqCst);
            Ack::retry("no stock")
        })
        .unwrap();
    stage.settled(&[("retried", 90), ("dead_lettered", 30)]);
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

#[test]
fn prefetch_bounds_what_the_broker_gives_out() {
    let stage = Stage::new();
    numbers(&stage, 30);
    let (open, gate) = bounded::<()>(0);
    stage
        .consumer(&soon(1))
        .concurrency(2)
        .prefetch(7)
        .start(move |_: Message<u32>| {
            let _ = gate.recv();
        })
        .unwrap();
    wait_until(LIMIT, "seven are out", || unacknowledged(&stage) == 7);
    holds_for(secs(0.3), "no more are given out", || {
        unacknowledged(&stage) == 7
    });
    drop(open);
    stage.settled(&[("acked", 30)]);
}

#[test]
fn default_prefetch_is_20_or_a_larger_concurrency() {
    for (concurrency, out) in [(1, 20), (25, 25)] {
        let stage = Stage::new();
        numbers(&stage, 30);
        let (open, gate) = bounded::<()>(0);
        stage
            .consumer(&soon(1))
            .concurrency(concurrency)
            .start(move |_: Message<u32>| {
                let _ = gate.recv();
            })
            .unwrap();
        wait_until(LIMIT, "the prefetch is used", || {
            unacknowledged(&stage) == out
        });
        drop(open);
        stage.settled(&[("acked", 30)]);
    }
}

#[test]
fn a_waiting_retry_holds_its_prefetch_slot() {
    let stage = Stage::new();
    numbers(&stage, 10);
    // It would be a rung from 500 ms on; 30 s below a threshold of a minute waits in the worker.
    let policy = RetryPolicy::fixed(2, secs(30)).unwrap();
    let started = Seen::default();
    let seen = started.clone();
    let consumer = stage
        .consumer(&policy)
        .retry_threshold(secs(60))
        .prefetch(3)
        .start(move |message: Message<u32>| {
            seen.push(*message.payload());
            Ack::retry("no stock")
        })
        .unwrap();
    started.wait_for(3);
    wait_until(LIMIT, "three are out", || unacknowledged(&stage) == 3);
    holds_for(secs(0.3), "three wait and no fourth is given out", || {
        unacknowledged(&stage) == 3 && started.len() == 3
    });
    wait_until(LIMIT, "three are in flight", || consumer.in_flight() == 3);
}

#[test]
fn waiting_messages_do_not_stop_healthy_ones() {
    let stage = Stage::new();
    numbers(&stage, 2);
    let policy = RetryPolicy::fixed(2, secs(60)).unwrap();
    let handled = Seen::default();
    let seen = handled.clone();
    let consumer = stage
        .consumer(&policy)
        .retry_threshold(secs(120))
        .concurrency(2)
        .prefetch(10)
        .start(move |message: Message<u32>| {
            seen.push(*message.payload());
            if *message.payload() < 2 {
                Ack::retry("no stock")
            } else {
                Ack::accept()
            }
        })
        .unwrap();
    handled.wait_for(2);
    stage.raw.send_all(
        Q,
        ["2", "3", "4", "5", "6", "7"],
        &AmqpProperties::default(),
    );
    let mut handled = handled.wait_for(8);
    handled.sort_unstable();
    assert_eq!(handled, (0..8).collect::<Vec<_>>());
    wait_until(LIMIT, "the healthy ones are settled", || {
        stage.outcomes(Q) == [("acked", 6)]
    });
    wait_until(LIMIT, "two still wait", || consumer.in_flight() == 2);
    // A drain ends the waits; the messages are requeued with their attempt.
    consumer.cancel(LIMIT).unwrap();
    stage.settled_counts(&[("acked", 6), ("handed_back", 2)]);
    stage.raw.wait_for_count(Q, 2, LIMIT);
    for got in stage.raw.drain(Q) {
        assert_eq!(got.header("x-acemq-attempt"), None, "as it came");
    }
    let drained = [("queue", Q), ("reason", "drain")];
    let snapshot = stage.snapshot();
    assert_eq!(snapshot.counter("acemq.retry.handed.back", &drained), 2);
}

#[test]
fn a_pool_survives_twenty_panics() {
    let stage = Stage::new();
    let lock = Arc::new(Mutex::new(0_u32));
    let guarded = lock.clone();
    let at_once = Arc::new(AtomicUsize::new(0));
    let (running, (open, gate)) = (at_once.clone(), bounded::<()>(0));
    let consumer = stage
        .consumer(&soon(2))
        .concurrency(4)
        .start(move |message: Message<u32>| {
            let number = *message.payload();
            if number >= 20 {
                running.fetch_add(1, Ordering::SeqCst);
                let _ = gate.recv();
                return Ack::accept();
            }
            match number % 4 {
                0 => panic!("a text"),
                1 => panic!("number {number}"),
                2 => panic_any(vec![number]),
                _ => {
                    let mut guard = guarded.lock();
                    *guard += 1;
                    panic!("with the lock held");
                }
            }
        })
        .unwrap();
    numbers(&stage, 20);
    stage.settled(&[("retried", 20), ("dead_lettered", 20)]);
    for dead in stage.raw.drain(&naming::dead_letter_queue(Q)) {
        let number: u32 = dead.text().parse().unwrap();
        let text = match number % 4 {
            0 => "panicked: a text".to_owned(),
            1 => format!("panicked: number {number}"),
            2 => "panicked: with a non-string payload".to_owned(),
            _ => "panicked: with the lock held".to_owned(),
        };
        assert_eq!(
            dead.header_text("x-acemq-error"),
            Some(format!("gave up after 2 attempts: {text}").as_str())
        );
    }
    assert_eq!(*lock.lock(), 10, "five of them, twice each");
    wait_until(LIMIT, "nothing is in flight", || consumer.in_flight() == 0);

    stage.raw.send_all(
        Q,
        (20..30).map(|n| n.to_string()),
        &AmqpProperties::default(),
    );
    wait_until(LIMIT, "four workers are at it", || {
        at_once.load(Ordering::SeqCst) == 4
    });
    drop(open);
    stage.settled(&[("acked", 10), ("retried", 20), ("dead_lettered", 20)]);
    assert!(consumer.is_running());
}
