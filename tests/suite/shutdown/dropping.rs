//! Tests of dropping handles.

use std::time::Duration;

use super::alone::{a_queue, alone, full_name, nothing, threads_left};
use super::*;
use crate::harness::wait::timed;
use crate::harness::{Node, holds_for};

/// Passes the only handle of a connection to a handler.
type Owned = Arc<Mutex<Option<Connection>>>;

#[track_caller]
fn drop_in_time(mq: Connection) {
    let ((), took) = timed(|| drop(mq));
    assert!(took < secs(1) + GRACE, "{took:?}");
}

#[test]
fn dropping_a_consumer_changes_nothing() {
    let stage = Stage::new();
    drop(stage.mq.consume(Q, |_: Any| {}).unwrap());
    stage.send(Q, "1", 1);
    stage.wait_for_outcomes(Q, "acked", 1);
    assert_eq!(stage.raw.consumers(Q), 1);
    stage.mq.close().unwrap();
    stage.raw.wait_for_consumers(Q, 0, LIMIT);
}

#[test]
fn dropping_the_last_handle_stops_everything_at_once() {
    let stage = Stage::new();
    for id in ["waits", "runs", "unstarted"] {
        stage.send(Q, id, 2);
    }
    let gate = Gate::new();
    let consumer = one_waits_and_one_runs(&stage.mq, Q, gate.held());
    drop(stage.mq.clone());
    assert!(consumer.is_running());
    drop_in_time(stage.mq);
    assert!(!consumer.is_running());
    stage.raw.wait_for_consumers(Q, 0, LIMIT);
    stage.raw.wait_for_count(Q, 3, LIMIT);
    wait_until_disconnected(&stage.vhost);
    gate.open();
    wait_until(LIMIT, "the late outcome is thrown away", || {
        outcomes(&stage.registry, Q, "discarded") >= 1
    });
    assert_eq!(outcomes(&stage.registry, Q, "acked"), 0);
    comes_back(
        &stage.raw,
        Q,
        &[("waits", 2), ("runs", 2), ("unstarted", 2)],
    );
}

#[test]
fn last_handle_dropped_in_a_handler_does_not_wait_for_itself() {
    let stage = Stage::new();
    let owned = Owned::default();
    let (own, log) = (owned.clone(), Log::default());
    let done = log.clone();
    let (gate, both) = (Gate::new(), Log::default());
    let (held, started) = (gate.held(), both.clone());
    let handle = move |_: Any| {
        started.add("");
        held.wait();
        if let Some(mq) = own.lock().take() {
            let ((), took) = timed(|| drop(mq));
            done.add(format!("in time: {}", took < GRACE));
        }
    };
    stage.mq.consume(Q, handle).unwrap();
    stage.send(Q, "1", 2);
    *owned.lock() = Some(stage.mq);
    both.wait_for(1);
    gate.open();
    log.wait_for(1);
    assert_eq!(log.lines(), ["in time: true"]);
    stage.raw.wait_for_consumers(Q, 0, LIMIT);
    wait_until(LIMIT, "the outcome is thrown away", || {
        outcomes(&stage.registry, Q, "discarded") == 1
    });
    wait_until_disconnected(&stage.vhost);
    comes_back(&stage.raw, Q, &[("1", 2)]);
}

#[test]
fn a_handler_that_holds_a_handle_keeps_the_connection_open() {
    let stage = Stage::new();
    stage.raw.classic("out");
    let own = stage.mq.clone();
    let handle = move |message: Any| {
        own.publish("", "out", message.id()).unwrap();
        if message.id() == "last" {
            own.close_within(secs(20)).unwrap();
        }
    };
    drop(stage.mq.consume(Q, handle).unwrap());
    drop(stage.mq);
    let raw = &stage.raw;
    holds_for(secs(0.3), "the consumer stays", || raw.consumers(Q) == 1);
    send(raw, Q, "first", 1);
    raw.wait_for_count("out", 1, LIMIT);
    send(raw, Q, "last", 1);
    raw.wait_for_consumers(Q, 0, LIMIT);
    wait_until_disconnected(&stage.vhost);
    wait_until(LIMIT, "both are acknowledged", || {
        outcomes(&stage.registry, Q, "acked") == 2
    });
    assert_eq!(raw.count("out"), 2);
}

#[test]
fn handler_drops_the_last_handle_after_its_consumer_ended() {
    let Stage { mq, raw, vhost, .. } = Stage::new();
    let gate = Gate::new();
    let (own, held) = (mq.clone(), gate.held());
    let consumer = mq
        .consume(Q, move |_: Any| {
            held.wait();
            assert!(own.is_running());
        })
        .unwrap();
    drop(mq);
    send(&raw, Q, "1", 1);
    wait_until(LIMIT, "it runs", || consumer.in_flight() == 1);
    drain_timeout(consumer.cancel(Duration::ZERO));
    let connections = || vhost.list_connections(&["pid"]).len();
    holds_for(secs(0.3), "its handler still holds it", || {
        connections() == 2
    });
    gate.open();
    wait_until(LIMIT, "the connection is closed", || connections() == 1);
}

/// Says on which thread it is dropped, and panics.
struct Bad(Log);

impl Drop for Bad {
    fn drop(&mut self) {
        self.0.add(thread::current().name().unwrap_or_default());
        panic!("dropped");
    }
}

#[test]
fn a_handler_is_dropped_on_a_worker_and_may_panic_there() {
    let stage = Stage::new();
    let log = Log::default();
    let consume = |queue: &str| {
        let bad = Bad(log.clone());
        stage.mq.consume(queue, move |_: Any| {
            let _ = &bad;
        })
    };
    let consumer = consume(Q).unwrap();
    consumer.cancel(secs(20)).unwrap();
    log.wait_for(1);
    // One that is refused never had a worker.
    consume("missing").unwrap_err();
    log.wait_for(2);
    let idle = consume(Q).unwrap();
    stage.send(Q, "1", 1);
    stage.wait_for_outcomes(Q, "acked", 1);
    stage.mq.close().unwrap();
    log.wait_for(3);
    assert!(!idle.is_running());
    let queues = [Q, "missing", Q];
    assert_eq!(
        log.lines(),
        queues.map(|queue| format!("rungmq-worker-{queue}"))
    );
}

#[test]
fn dropping_the_last_handle_of_a_frozen_broker_ends_threads() {
    alone(
        full_name!(dropping_the_last_handle_of_a_frozen_broker_ends_threads),
        nothing,
        |_| {
            let node = Node::start();
            let raw = Raw::open(&node.url());
            raw.classic(Q);
            let (mq, _) = counted(&node.url());
            let gate = Gate::new();
            let held = gate.held();
            let consumer = mq.consume(Q, move |_: Any| held.wait()).unwrap();
            mq.publish("", Q, &1).unwrap();
            wait_until(LIMIT, "it runs", || consumer.in_flight() == 1);
            drop(raw);
            node.freeze();
            drop_in_time(mq);
            threads_left(&["rungmq-worker-o"]);
            gate.open();
            threads_left(&[]);
        },
    );
}

#[test]
fn after_a_close_no_thread_is_left_while_the_handles_live_on() {
    alone(
        full_name!(after_a_close_no_thread_is_left_while_the_handles_live_on),
        a_queue,
        |url| {
            let (mq, registry) = counted(url);
            let consumer = mq.consumer(Q).concurrency(4).start(|_: Any| {}).unwrap();
            mq.publish("", Q, &1).unwrap();
            wait_until(LIMIT, "it is handled", || {
                outcomes(&registry, Q, "acked") == 1
            });
            mq.close().unwrap();
            threads_left(&[]);
            assert!(!consumer.is_running() && !mq.is_running());
        },
    );
}
