//! Tests of handlers that outlive the deadline, and of copies that are on their way when it is set.

use std::time::Duration;

use rungmq::{Ack, FatalError};

use super::*;
use crate::harness::wait::{let_pass, timed};
use crate::harness::{Way, holds_for};

/// One queue for each way a delivery may end; its name says what its handler answers.
const WAYS: [&str; 9] = [
    "accept", "short", "at-once", "rung", "give-up", "reject", "fatal", "park", "panic",
];

/// Consumes `queue` as its name says. Handlers wait for `held` first.
#[track_caller]
fn consume(mq: &Connection, queue: &'static str, held: &Held, started: &Log) -> Consumer {
    let policy = match queue {
        "short" => RetryPolicy::fixed(9, secs(0.3)),
        "at-once" => RetryPolicy::fixed(9, Duration::ZERO),
        "rung" => RetryPolicy::fixed(9, secs(3600)),
        _ => RetryPolicy::fixed(3, secs(0.3)),
    };
    let (held, log) = (held.clone(), started.clone());
    mq.consumer(queue)
        .retry_policy(policy.unwrap())
        .start(move |_: Any| -> Result<Ack, FatalError> {
            log.add(queue);
            held.wait();
            match queue {
                "accept" => Ok(Ack::accept()),
                "reject" => Ok(Ack::reject("no")),
                "park" => Ok(Ack::park("later")),
                "fatal" => Err(FatalError::new("never")),
                "panic" => panic!("late"),
                _ => Ok(Ack::retry("again")),
            }
        })
        .unwrap()
}

/// The attempt that the messages have: the last one where the handler gives up by it.
fn attempt(queue: &str) -> i64 {
    if matches!(queue, "give-up" | "panic") {
        3
    } else {
        2
    }
}

/// Starts a handler on every queue, all of them held by `held`.
#[track_caller]
fn all_ways(stage: &Stage, held: &Held) -> Vec<Consumer> {
    let started = Log::default();
    let consumers = WAYS
        .iter()
        .map(|queue| {
            stage.raw.classic(queue);
            stage.send(queue, "late", attempt(queue));
            consume(&stage.mq, queue, held, &started)
        })
        .collect();
    started.wait_for(WAYS.len());
    consumers
}

/// The late handlers have returned: nothing anywhere but what the broker had back by itself.
#[track_caller]
fn nothing_came_of_it(stage: &Stage) {
    for queue in WAYS {
        stage.wait_for_outcomes(queue, "discarded", 1);
        for outcome in ["acked", "retried", "rejected", "dead_lettered", "parked"] {
            assert_eq!(stage.outcomes(queue, outcome), 0, "{queue} {outcome}");
        }
    }
}

/// Messages in all queues, by name, those that are out included.
#[track_caller]
fn everywhere(stage: &Stage) -> Vec<(String, u64)> {
    let mut counts = stage.elsewhere("");
    counts.sort();
    counts
}

fn one_each() -> Vec<(String, u64)> {
    let mut ways: Vec<_> = WAYS.iter().map(|way| ((*way).to_owned(), 1)).collect();
    ways.sort();
    ways
}

#[test]
fn late_outcome_after_close_is_discarded_on_every_path() {
    let stage = Stage::new();
    let gate = Gate::new();
    let _consumers = all_ways(&stage, &gate.held());
    let timeout = drain_timeout(in_time(secs(0.3), || stage.mq.close_within(secs(0.3))));
    assert_eq!(timeout.deliveries().len(), WAYS.len());
    for queue in WAYS {
        assert_eq!(timeout.stranded()[queue], 1, "{queue}");
        stage.raw.wait_for_count(queue, 1, LIMIT);
    }
    gate.open();
    nothing_came_of_it(&stage);
    holds_for(secs(0.3), "no copy anywhere", || {
        everywhere(&stage) == one_each()
    });
    for queue in WAYS {
        stage.comes_back(queue, &[("late", attempt(queue))]);
    }
}

/// Late handlers, for every way to end, beside new consumers: on a new connection or on the same
/// one.
#[track_caller]
fn late_while_others_consume(stop: impl FnOnce(&Stage, &[Consumer]) -> (Connection, Registry)) {
    let stage = Stage::new();
    let gate = Gate::new();
    let consumers = all_ways(&stage, &gate.held());
    let (mq, registry) = stop(&stage, &consumers);

    // The new consumers have their own deliveries out, under the same tags, when the late outcomes
    // come.
    let (seen, again) = (Log::default(), Gate::new());
    let anew: Vec<_> = WAYS
        .iter()
        .map(|queue| {
            let (log, held) = (seen.clone(), again.held());
            mq.consume(queue, move |message: Any| {
                log.add(format!(
                    "{queue} {} {}",
                    message.attempt(),
                    message.redelivered()
                ));
                held.wait();
            })
            .unwrap()
        })
        .collect();
    seen.wait_for(WAYS.len());
    gate.open();
    for queue in WAYS {
        stage.wait_for_outcomes(queue, "discarded", 1);
    }
    // An acknowledgement by a late handler would take the new consumers' delivery off the queue.
    holds_for(secs(0.3), "the messages are out", || {
        everywhere(&stage) == one_each()
    });
    again.open();
    for queue in WAYS {
        wait_until(LIMIT, "the redelivery is acknowledged", || {
            outcomes(&registry, queue, "acked") == 1
        });
    }
    wait_until(LIMIT, "nothing is left anywhere", || {
        everywhere(&stage).is_empty()
    });
    let mut expected: Vec<_> = WAYS
        .iter()
        .map(|queue| format!("{queue} {} true", attempt(queue)))
        .collect();
    let mut found = seen.lines();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    // An unknown delivery tag would have closed a channel.
    assert!(mq.is_running() && anew.iter().all(Consumer::is_running));
    mq.close().unwrap();
}

#[test]
fn late_handler_does_not_touch_a_new_connection() {
    late_while_others_consume(|stage, _| {
        drain_timeout(stage.mq.close_within(secs(0.3)));
        counted(&stage.vhost.url())
    });
}

#[test]
fn late_handler_of_a_cancelled_consumer_is_harmless() {
    late_while_others_consume(|stage, consumers| {
        for consumer in consumers {
            drain_timeout(consumer.cancel(Duration::ZERO));
        }
        (stage.mq.clone(), stage.registry.clone())
    });
}

#[test]
fn cut_wait_copies_nothing_and_requeues_promptly() {
    for close in [true, false] {
        let stage = Stage::new();
        let consumer = stage
            .mq
            .consumer(Q)
            .retry_policy(long_wait())
            .retry_threshold(Duration::ZERO)
            .start(|_: Any| Err::<(), _>("not yet"))
            .unwrap();
        for id in ["1", "2", "3"] {
            stage.send(Q, id, 7);
        }
        wait_until(LIMIT, "three wait", || consumer.in_flight() == 3);
        wait_until(LIMIT, "all have failed", || {
            stage.raw.count(Q) == 0 && consumer.in_flight() == 3
        });
        let (result, took) = timed(|| {
            if close {
                stage.mq.close_within(secs(20))
            } else {
                consumer.cancel(secs(20))
            }
        });
        result.unwrap();
        assert!(took < secs(5), "{took:?}");
        assert_eq!(stage.outcomes(Q, "handed_back"), 3);
        let labels = [("queue", Q), ("reason", "drain")];
        let snapshot = stage.registry.snapshot();
        assert_eq!(snapshot.counter("acemq.retry.handed.back", &labels), 3);
        assert_eq!(stage.elsewhere(Q), []);
        stage.comes_back(Q, &[("1", 7), ("2", 7), ("3", 7)]);
    }
}

/// A short retry that is decided while the drain runs does not begin to wait.
#[test]
fn handler_failing_during_the_drain_requeues_without_a_wait() {
    let stage = Stage::new();
    let consumer = stage.mq.consumer(Q).retry_policy(long_wait());
    let consumer = consumer.retry_threshold(Duration::ZERO);
    let (_, gate) = stage.held_delivery_of(consumer, || Err::<(), _>("not yet"));
    let closing = closing(&stage.mq, secs(20));
    gate.open();
    let (result, took) = timed(|| closing.join().unwrap());
    result.unwrap();
    assert!(took < secs(5), "{took:?}");
    assert_eq!(stage.outcomes(Q, "handed_back"), 1);
    stage.comes_back(Q, &[("1", 2)]);
}

/// A stage whose library speaks through a proxy, with both connections made.
#[track_caller]
fn with_both_connections() -> (Stage, Proxy) {
    let (stage, proxy) = Stage::through_a_proxy();
    stage.mq.publish("", "nowhere", &1).unwrap();
    (stage, proxy)
}

/// Lets the handler dead-letter its message. The copy reaches the broker; its confirm does not come
/// back.
#[track_caller]
fn copy_without_confirm(stage: &Stage, proxy: &Proxy, gate: Gate) {
    proxy.swallow(Way::ToClient);
    gate.open();
    stage.raw.wait_for_count("orders.new.dlq", 1, LIMIT);
}

#[test]
fn dead_letter_on_its_way_completes_within_the_deadline() {
    let (stage, proxy) = with_both_connections();
    let (_, gate) = stage.held_delivery(|| Ack::reject("no"));
    proxy.pause();
    gate.open();
    let closing = closing(&stage.mq, secs(20));
    let_pass(secs(1));
    assert!(!closing.is_finished());
    proxy.resume();
    closing.join().unwrap().unwrap();
    assert_eq!(stage.outcomes(Q, "rejected"), 1);
    assert_eq!(stage.raw.count(Q), 0);
    stage.comes_back("orders.new.dlq", &[("1", 2)]);
}

#[test]
fn unconfirmed_dead_letter_is_stranded_at_the_deadline() {
    let (stage, proxy) = with_both_connections();
    let (_, gate) = stage.held_delivery(|| Ack::reject("no"));
    copy_without_confirm(&stage, &proxy, gate);
    let timeout = drain_timeout(in_time(secs(1), || stage.mq.close_within(secs(1))));
    assert_eq!(stranded(&timeout), [(Q, 1)]);
    assert_eq!(timeout.deliveries()[0].message_id, "1");
    // Doubled, as the confirm is unknown: never lost.
    stage.comes_back(Q, &[("1", 2)]);
    stage.comes_back("orders.new.dlq", &[("1", 2)]);
}

#[test]
fn cancel_reports_a_copy_without_confirm_at_its_deadline() {
    let (stage, proxy) = with_both_connections();
    let (consumer, gate) = stage.held_delivery(|| Ack::reject("no"));
    copy_without_confirm(&stage, &proxy, gate);
    let timeout = drain_timeout(in_time(secs(1), || consumer.cancel(secs(1))));
    assert_eq!(stranded(&timeout), [(Q, 1)]);
    drop(stage.mq.close_within(Duration::ZERO));
}

/// The channel's polite close is what hangs here: the cancel was answered before the broker fell
/// silent.
#[test]
fn cancel_reports_the_copy_when_the_broker_falls_silent() {
    let (stage, proxy) = with_both_connections();
    let (consumer, gate) = stage.held_delivery(|| Ack::reject("no"));
    stage.send(Q, "unstarted", 2);
    wait_until(LIMIT, "it is out", || stage.raw.count(Q) == 0);
    let cancelled = in_time(secs(2), || {
        let cancelling = cancelling(&consumer, secs(2));
        // It goes back after the cancel was answered.
        stage.raw.wait_for_count(Q, 1, LIMIT);
        proxy.swallow(Way::ToClient);
        gate.open();
        cancelling.join().unwrap()
    });
    assert_eq!(stranded(&drain_timeout(cancelled)), [(Q, 1)]);
    stage.raw.wait_for_count("orders.new.dlq", 1, LIMIT);
    drop(stage.mq.close_within(Duration::ZERO));
    stage.comes_back(Q, &[("1", 2), ("unstarted", 2)]);
}

/// The publishing connection is still being opened when the deadline passes.
#[test]
fn a_copy_that_was_not_written_by_the_deadline_is_never_written() {
    let (stage, proxy) = Stage::through_a_proxy();
    let (consumer, gate) = stage.held_delivery(|| Ack::reject("no"));
    let connections = proxy.accepted();
    proxy.pause();
    gate.open();
    wait_until(LIMIT, "the copy is on its way", || {
        proxy.accepted() > connections
    });
    let timeout = drain_timeout(in_time(secs(0.5), || consumer.cancel(secs(0.5))));
    assert_eq!(stranded(&timeout), [(Q, 1)]);
    proxy.resume();
    stage.raw.wait_for_count(Q, 1, LIMIT);
    // This goes the way that the copy would have gone before it.
    stage.mq.publish("", "nowhere", &1).unwrap();
    assert_eq!(stage.raw.count("orders.new.dlq"), 0);
    stage.comes_back(Q, &[("1", 2)]);
}
