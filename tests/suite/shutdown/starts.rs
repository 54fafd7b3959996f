//! Tests of what has not started when a shutdown begins: deliveries are requeued in order, a
//! consumer's start ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amiquip::AmqpValue;

use super::*;
use crate::harness::holds_for;
use crate::harness::wait::let_pass;

fn ids(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

fn fill(raw: &Raw, queue: &str, n: usize) {
    for id in ids(0..n) {
        send(raw, queue, &id, 2);
    }
}

#[track_caller]
fn rest_is_in_order(raw: &Raw, queue: &str, handled: usize, all: usize) {
    let rest = ids(handled..all);
    let expected: Vec<_> = rest.iter().map(|id| (id.as_str(), 2)).collect();
    comes_back(raw, queue, &expected);
}

/// Fifty deliveries are received, one handler runs at a time for 0.3 s, and the close comes after
/// half a second.
#[track_caller]
fn prefetched_deliveries_go_back(queue: &str, prefetch: u32, declare: impl FnOnce(&Raw)) {
    let stage = Stage::new();
    declare(&stage.raw);
    // More than are received, so that the order shows where what comes back goes in.
    fill(&stage.raw, queue, 80);
    let started = Log::default();
    let log = started.clone();
    stage
        .mq
        .consumer(queue)
        .prefetch(prefetch)
        .start(move |message: Any| {
            log.add(message.id());
            let_pass(secs(0.3));
        })
        .unwrap();
    started.wait_for(1);
    let_pass(secs(0.5));
    let closing = closing(&stage.mq, secs(20));
    let at_close = started.len();
    closing.join().unwrap().unwrap();

    let handled = started.lines();
    // One more may have been taken by the worker, and not have come to its first line, when close
    // was called.
    assert!(
        handled.len() <= at_close + 1,
        "{} after {at_close}",
        handled.len()
    );
    assert_eq!(handled, ids(0..handled.len()));
    assert_eq!(stage.outcomes(queue, "acked"), handled.len() as u64);
    rest_is_in_order(&stage.raw, queue, handled.len(), 80);
}

#[test]
fn prefetched_deliveries_of_a_classic_queue_go_back_in_order() {
    prefetched_deliveries_go_back(Q, 50, |_| {});
}

/// With a delivery limit, as every quorum queue has it on RabbitMQ 4: without one RabbitMQ 3 puts
/// what comes back last. With no more settlements on their way than the 32 that a channel of
/// RabbitMQ passes on to a quorum queue before the queue has answered: the rest it would forget
/// when the channel closes.
#[test]
fn prefetched_deliveries_of_a_quorum_queue_go_back_in_order() {
    let arguments = table([
        ("x-queue-type", AmqpValue::LongString("quorum".to_owned())),
        ("x-delivery-limit", AmqpValue::LongLongInt(20)),
    ]);
    prefetched_deliveries_go_back("quorum", 20, |raw| raw.queue("quorum", arguments));
}

/// Handlers that say that they have started, and are held at the gate.
#[track_caller]
fn held_handlers(consumer: ConsumerBuilder<'_>) -> (Log, Gate) {
    let (started, gate) = (Log::default(), Gate::new());
    let (log, held) = (started.clone(), gate.held());
    let handle = move |message: Any| {
        log.add(message.id());
        held.wait();
    };
    consumer.start(handle).unwrap();
    (started, gate)
}

#[test]
fn nothing_starts_once_close_has_begun_however_long_it_drains() {
    let stage = Stage::new();
    fill(&stage.raw, Q, 30);
    let (started, gate) = held_handlers(stage.mq.consumer(Q).concurrency(2).prefetch(20));
    started.wait_for(2);
    let closing = closing(&stage.mq, secs(20));
    // What was received and not started is back while the handlers still run.
    stage.raw.wait_for_count(Q, 28, LIMIT);
    gate.open();
    closing.join().unwrap().unwrap();
    assert_eq!(started.len(), 2);
    rest_is_in_order(&stage.raw, Q, 2, 30);
}

#[test]
fn close_without_time_requeues_unstarted_deliveries_in_order() {
    let stage = Stage::new();
    fill(&stage.raw, Q, 30);
    let (started, gate) = held_handlers(stage.mq.consumer(Q));
    started.wait_for(1);
    let timeout = drain_timeout(in_time(Duration::ZERO, || {
        stage.mq.close_within(Duration::ZERO)
    }));
    assert_eq!(stranded(&timeout), [(Q, 1)]);
    rest_is_in_order(&stage.raw, Q, 0, 30);
    gate.open();
    stage.wait_for_outcomes(Q, "discarded", 1);
    assert_eq!(started.len(), 1);
    assert_eq!(stage.raw.count(Q), 0);
}

/// Rounds of a race: deliveries end and begin all the time until `stop` is called.
#[track_caller]
fn nothing_starts_after(rounds: usize, stop: impl Fn(&Connection, &Consumer)) {
    const CONCURRENCY: usize = 2;
    let stage = Stage::new();
    for round in 0..rounds {
        let queue = format!("q{round}");
        stage.raw.classic(&queue);
        let bodies = (0..200).map(|n| n.to_string());
        stage
            .raw
            .send_all(&queue, bodies, &AmqpProperties::default());
        let (mq, _) = counted(&stage.vhost.url());
        let started = Log::default();
        let log = started.clone();
        let consumer = mq
            .consumer(&queue)
            .concurrency(CONCURRENCY as u32)
            .prefetch(200)
            .start(move |_: Any| {
                log.add("");
                let_pass(Duration::from_millis(1));
            })
            .unwrap();
        started.wait_for(1 + round * 3);
        let watching = AtomicBool::new(true);
        let at_stop = thread::scope(|scope| {
            // Sees the very moment from which on nothing may start, without the pause of
            // `wait_until`.
            let watch = scope.spawn(|| {
                while consumer.is_running() && watching.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                started.len()
            });
            stop(&mq, &consumer);
            watching.store(false, Ordering::SeqCst);
            watch.join().unwrap()
        });
        let all = started.len();
        // Each worker may have taken one and not have come to the handler's first line.
        assert!(all <= at_stop + CONCURRENCY, "{all}, {at_stop} at the stop");
        stage
            .raw
            .wait_for_count(&queue, 200 - u32::try_from(all).unwrap(), LIMIT);
        assert_eq!(started.len(), all, "started after the end");
        mq.close_within(secs(20)).unwrap();
    }
}

#[test]
fn nothing_starts_after_close_was_called_in_many_rounds() {
    nothing_starts_after(15, |mq, _| mq.close_within(secs(20)).unwrap());
}

#[test]
fn nothing_starts_after_cancel_was_called_in_many_rounds() {
    nothing_starts_after(15, |_, consumer| consumer.cancel(secs(20)).unwrap());
}

#[test]
fn close_during_a_consumer_start_keeps_its_deadline() {
    let (stage, proxy) = Stage::through_a_proxy();
    proxy.pause();
    let mq = stage.mq.clone();
    let starting = thread::spawn(move || mq.consume(Q, |_: Any| {}));
    holds_for(secs(0.1), "it starts", || !starting.is_finished());
    in_time(secs(0.5), || stage.mq.close_within(secs(0.5))).unwrap();
    let started = in_time(Duration::ZERO, || starting.join().unwrap());
    assert!(started.is_err(), "{started:?}");
    proxy.resume();
    wait_until_disconnected(&stage.vhost);
    stage.raw.wait_for_consumers(Q, 0, LIMIT);
}

#[test]
fn a_close_that_races_with_a_start_leaves_nothing_running() {
    let stage = Stage::new();
    for id in ["1", "2", "3", "4", "5"] {
        stage.send(Q, id, 2);
    }
    stage.mq.close().unwrap();
    for round in 0..20 {
        let (mq, _) = counted(&stage.vhost.url());
        let other = mq.clone();
        let starting = thread::spawn(move || {
            other
                .consumer(Q)
                .declare(false)
                .retry_policy(long_wait())
                .retry_threshold(Duration::ZERO)
                .start(|_: Any| Err::<(), _>("not yet"))
        });
        // A start takes some milliseconds; the close comes at another point of it each time.
        let_pass(Duration::from_micros(500 * round));
        mq.close_within(secs(20)).unwrap();
        if let Ok(consumer) = starting.join().unwrap() {
            wait_until(LIMIT, "it has ended", || {
                !consumer.is_running() && consumer.in_flight() == 0
            });
        }
    }
    wait_until_disconnected(&stage.vhost);
    let ids = ["1", "2", "3", "4", "5"].map(|id| (id, 2));
    stage.comes_back(Q, &ids);
}
