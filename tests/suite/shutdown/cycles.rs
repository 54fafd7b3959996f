//! Tests of starting and stopping many times.

use std::time::Duration;

use amiquip::AmqpValue;

use super::alone::{alone, full_name, library_threads, nothing, threads_left};
use super::*;
use crate::harness::Node;
use crate::suite::steady;

/// Cancels meet deliveries in every state: on the way, unstarted, running, waiting.
#[test]
fn three_thousand_cycles_on_one_connection_leave_it_as_it_was() {
    alone(
        full_name!(three_thousand_cycles_on_one_connection_leave_it_as_it_was),
        nothing,
        |_| {
            let node = Node::start();
            let vhost = Vhost::on(&node);
            let raw = vhost.raw();
            raw.classic(Q);
            let ids: Vec<_> = (0..20).map(|n| n.to_string()).collect();
            for id in &ids {
                send(&raw, Q, id, 2);
            }
            drop(raw);
            let (mq, _) = counted(&vhost.url());
            let cycle = || {
                let consumer = mq
                    .consumer(Q)
                    .declare(false)
                    .retry_policy(long_wait())
                    .retry_threshold(Duration::ZERO)
                    .start(|_: Any| Err::<(), _>("not yet"))
                    .unwrap();
                consumer.cancel(secs(20)).unwrap();
            };
            let channels = || vhost.list_channels(&["number"]).len();
            cycle();
            let threads_before = steady("the threads", || library_threads().len());
            let channels_before = steady("the channels", channels);
            for round in 1..=3000 {
                cycle();
                if round % 500 == 0 {
                    // Workers and channels of the last cancels end in the background.
                    wait_until(LIMIT, "as many threads as before", || {
                        library_threads().len() <= threads_before
                    });
                    wait_until(LIMIT, "as many channels as before", || {
                        channels() <= channels_before
                    });
                }
            }
            assert!(mq.is_running());
            wait_until_disconnected(&vhost);
            mq.close().unwrap();
            threads_left(&[]);
            let expected: Vec<_> = ids.iter().map(|id| (id.as_str(), 2)).collect();
            comes_back(&vhost.raw(), Q, &expected);
        },
    );
}

/// A quorum queue with RabbitMQ 4's default limit, which 3 must be told; what passes it shows.
fn limited(raw: &Raw) {
    let text = |text: &str| AmqpValue::LongString(text.to_owned());
    raw.classic("over-the-limit");
    raw.queue(
        "quorum",
        table([
            ("x-queue-type", text("quorum")),
            ("x-delivery-limit", AmqpValue::LongLongInt(20)),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text("over-the-limit")),
        ]),
    );
}

/// Every restart requeues what was received and not started, and a quorum queue counts each of
/// those.
#[test]
fn ten_restarts_stay_below_a_delivery_limit_of_20() {
    let stage = Stage::new();
    limited(&stage.raw);
    let ids: Vec<_> = (0..60).map(|n| n.to_string()).collect();
    for id in &ids {
        stage.send("quorum", id, 2);
    }
    let handled = Log::default();
    for _ in 0..10 {
        let (gate, started) = (Gate::new(), Log::default());
        let (held, begun, log) = (gate.held(), started.clone(), handled.clone());
        let consumer = stage
            .mq
            .consume("quorum", move |message: Any| {
                begun.add("");
                held.wait();
                log.add(message.id());
            })
            .unwrap();
        started.wait_for(1);
        wait_until(LIMIT, "as many are out as may be", || {
            stage.raw.count("quorum") <= 60 - 20 - u32::try_from(handled.len()).unwrap()
        });
        let cancelling = cancelling(&consumer, secs(20));
        gate.open();
        cancelling.join().unwrap().unwrap();
    }
    assert_eq!(handled.len(), 10);
    let log = handled.clone();
    stage
        .mq
        .consume("quorum", move |message: Any| log.add(message.id()))
        .unwrap();
    stage.wait_for_outcomes("quorum", "acked", 60);
    assert_eq!(stage.raw.count("over-the-limit"), 0);
    assert_eq!(handled.lines(), ids);
}

/// The same without time for anything: what runs goes back too.
#[test]
fn ten_hard_restarts_stay_below_a_delivery_limit_of_20() {
    let stage = Stage::new();
    limited(&stage.raw);
    let ids: Vec<_> = (0..30).map(|n| n.to_string()).collect();
    for id in &ids {
        stage.send("quorum", id, 2);
    }
    for _ in 0..10 {
        let (gate, started) = (Gate::new(), Log::default());
        let (held, begun) = (gate.held(), started.clone());
        let consumer = stage
            .mq
            .consume("quorum", move |_: Any| {
                begun.add("");
                held.wait();
            })
            .unwrap();
        started.wait_for(1);
        drain_timeout(consumer.cancel(Duration::ZERO));
        stage.raw.wait_for_consumers("quorum", 0, LIMIT);
    }
    assert_eq!(stage.raw.count("over-the-limit"), 0);
    let expected: Vec<_> = ids.iter().map(|id| (id.as_str(), 2)).collect();
    stage.comes_back("quorum", &expected);
}
