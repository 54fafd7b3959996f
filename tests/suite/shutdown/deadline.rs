//! Tests of what happens at a deadline, and of what is reported about it.

use std::time::Duration;

use rungmq::{Ack, Consumer, Error, RetryPolicy};

use super::*;
use crate::harness::holds_for;
use crate::harness::wait::timed;

/// A consumer of a new queue, with the message `waits` in its wait and a handler that is held with
/// the message `runs`.
#[track_caller]
fn busy(stage: &Stage, queue: &str, gate: &Gate) -> Consumer {
    stage.raw.classic(queue);
    stage.send(queue, "waits", 2);
    stage.send(queue, "runs", 3);
    one_waits_and_one_runs(&stage.mq, queue, gate.held())
}

#[test]
fn eight_busy_consumers_end_by_one_deadline() {
    let stage = Stage::new();
    let gate = Gate::new();
    let queues: Vec<String> = (0..8).map(|n| format!("q{n}")).collect();
    let consumers: Vec<_> = queues
        .iter()
        .map(|queue| busy(&stage, queue, &gate))
        .collect();

    let (result, took) = timed(|| stage.mq.close_within(secs(2)));
    assert!(took >= secs(2) && took < secs(2) + GRACE, "{took:?}");
    let timeout = drain_timeout(result);
    assert_eq!(
        timeout.to_string(),
        "the drain did not finish within 2s: 8 deliveries were left unsettled and will be redelivered — \
         q0 (1), q1 (1), q2 (1), q3 (1), q4 (1), q5 (1), q6 (1), q7 (1)"
    );
    assert_eq!(timeout.timeout(), secs(2));
    let counts: Vec<_> = queues.iter().map(|queue| (queue.as_str(), 1)).collect();
    assert_eq!(stranded(&timeout), counts);
    let mut from: Vec<_> = timeout
        .deliveries()
        .iter()
        .map(|delivery| {
            assert_eq!(
                (delivery.message_id.as_str(), delivery.attempt),
                ("runs", 3)
            );
            assert!(delivery.running_for >= secs(2), "{delivery:?}");
            assert!(delivery.running_for < LIMIT, "{delivery:?}");
            delivery.queue.clone()
        })
        .collect();
    from.sort();
    assert_eq!(from, queues);
    assert!(consumers.iter().all(|consumer| !consumer.is_running()));

    for queue in &queues {
        stage.raw.wait_for_count(queue, 2, LIMIT);
    }
    gate.open();
    for queue in &queues {
        stage.wait_for_outcomes(queue, "discarded", 1);
        assert_eq!(stage.outcomes(queue, "handed_back"), 1);
        stage.comes_back(queue, &[("waits", 2), ("runs", 3)]);
    }
    assert_eq!(stage.elsewhere(Q), []);
}

#[test]
fn eight_consumers_with_nothing_running_close_at_once() {
    let stage = Stage::new();
    let consumers: Vec<_> = (0..8)
        .map(|n| {
            let queue = format!("q{n}");
            stage.raw.classic(&queue);
            stage.mq.consume(&queue, |_: Any| {}).unwrap()
        })
        .collect();
    let (result, took) = timed(|| stage.mq.close_within(secs(60)));
    result.unwrap();
    assert!(took < secs(5), "{took:?}");
    assert!(consumers.iter().all(|consumer| !consumer.is_running()));
}

#[test]
fn cancel_reports_what_it_left_and_spares_other_consumers() {
    let stage = Stage::new();
    let gate = Gate::new();
    let other = stage.mq.consume(Q, |_: Any| {}).unwrap();
    let consumer = busy(&stage, "busy", &gate);

    let (result, took) = timed(|| consumer.cancel(secs(0.5)));
    assert!(took >= secs(0.5) && took < secs(0.5) + GRACE, "{took:?}");
    let timeout = drain_timeout(result);
    assert_eq!(
        timeout.to_string(),
        "the drain did not finish within 0.5s: 1 delivery was left unsettled and will be redelivered — busy (1)"
    );
    assert_eq!(consumer.cancel(secs(60)).map_err(|e| e.to_string()), Ok(()));
    stage.raw.wait_for_count("busy", 2, LIMIT);
    assert!(stage.mq.is_running() && other.is_running());
    stage.send(Q, "1", 1);
    stage.wait_for_outcomes(Q, "acked", 1);
    gate.open();
    stage.wait_for_outcomes("busy", "discarded", 1);
    stage.comes_back("busy", &[("waits", 2), ("runs", 3)]);
}

#[test]
fn close_does_not_report_again_what_a_cancel_left() {
    let stage = Stage::new();
    let gate = Gate::new();
    let consumer = busy(&stage, "busy", &gate);
    drain_timeout(consumer.cancel(Duration::ZERO));
    stage.raw.wait_for_count("busy", 2, LIMIT);
    stage.mq.close_within(secs(20)).unwrap();
}

#[test]
fn drain_report_sums_by_queue_in_order() {
    let stage = Stage::new();
    let gate = Gate::new();
    for queue in ["b", "a", "b"] {
        if !stage.raw.exists(queue) {
            stage.raw.classic(queue);
        }
        let held = gate.held();
        let consumer = stage
            .mq
            .consumer(queue)
            .prefetch(1)
            .start(move |_: Any| held.wait())
            .unwrap();
        stage.send(queue, "runs", 1);
        wait_until(LIMIT, "it runs", || consumer.in_flight() == 1);
    }
    let timeout = drain_timeout(stage.mq.close_within(secs(0.5)));
    assert_eq!(
        timeout.to_string(),
        "the drain did not finish within 0.5s: 3 deliveries were left unsettled and will be redelivered — \
         a (1), b (2)"
    );
    assert_eq!(stranded(&timeout), [("a", 1), ("b", 2)]);
    let debug = format!("{timeout:?}");
    assert!(
        debug.contains("running_for") && debug.contains("runs"),
        "{debug}"
    );
    let error = Error::from(timeout.clone());
    assert_eq!(error.to_string(), timeout.to_string());
    assert_eq!(error.drain_timeout(), Some(&timeout));
    stage.raw.wait_for_count("a", 1, LIMIT);
    stage.raw.wait_for_count("b", 2, LIMIT);
}

#[test]
fn handlers_returning_before_the_deadline_settle_normally() {
    let stage = Stage::new();
    let gate = Gate::new();
    let held = gate.held();
    // A delay of zero is the only retry in the consumer that a drain lets through.
    let at_once = RetryPolicy::fixed(9, Duration::ZERO).unwrap();
    let consumer = stage
        .mq
        .consumer(Q)
        .concurrency(4)
        .retry_policy(at_once)
        .start(move |message: Any| {
            held.wait();
            match message.id() {
                "accept" => Ack::accept(),
                "reject" => Ack::reject("no"),
                "park" => Ack::park("later"),
                _ => Ack::retry("again"),
            }
        })
        .unwrap();
    for id in ["accept", "reject", "park", "retry"] {
        stage.send(Q, id, 2);
    }
    wait_until(LIMIT, "all run", || consumer.in_flight() == 4);
    let closing = closing(&stage.mq, secs(20));
    gate.open();
    closing.join().unwrap().unwrap();
    for outcome in ["acked", "rejected", "parked", "retried"] {
        assert_eq!(stage.outcomes(Q, outcome), 1, "{outcome}");
    }
    stage.comes_back(Q, &[("retry", 3)]);
    stage.comes_back("orders.new.dlq", &[("reject", 2)]);
    stage.comes_back("orders.new.parked", &[("park", 2)]);
}

#[test]
fn in_flight_counts_running_waiting_and_copying_deliveries() {
    let (stage, proxy) = Stage::through_a_proxy();
    // The publishing connection stands before the proxy holds everything back.
    stage.mq.publish("", "nowhere", &1).unwrap();
    let (running, copying) = (Gate::new(), Gate::new());
    let (until, copied) = (running.held(), copying.held());
    let consumer = stage
        .mq
        .consumer(Q)
        .retry_policy(long_wait())
        .retry_threshold(Duration::ZERO)
        .concurrency(2)
        .start(move |message: Any| match message.id() {
            "waits" => Ack::retry("not yet"),
            "copies" => {
                copied.wait();
                Ack::reject("no")
            }
            _ => {
                until.wait();
                Ack::accept()
            }
        })
        .unwrap();
    assert_eq!(consumer.in_flight(), 0);
    for id in ["waits", "copies", "runs", "unstarted"] {
        stage.send(Q, id, 1);
    }
    wait_until(LIMIT, "three are in flight", || consumer.in_flight() == 3);
    // The fourth has been delivered, too, before the proxy holds everything back: the answer to a
    // call on the same socket comes behind it.
    stage.raw.wait_for_count(Q, 0, LIMIT);
    assert!(stage.mq.pull(Q).unwrap().is_none());
    proxy.pause();
    copying.open();
    // The next one takes the place of the one whose copy is on its way.
    wait_until(LIMIT, "four are in flight", || consumer.in_flight() == 4);
    holds_for(secs(0.3), "the copy counts", || consumer.in_flight() == 4);
    proxy.resume();
    wait_until(LIMIT, "the copy has landed", || consumer.in_flight() == 3);
    running.open();
    wait_until(LIMIT, "two are handled", || consumer.in_flight() == 1);
    stage.mq.close_within(secs(20)).unwrap();
    assert_eq!(consumer.in_flight(), 0);
    stage.comes_back(Q, &[("waits", 1)]);
}
