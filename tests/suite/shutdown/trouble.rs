//! Tests of shutdown with a broker that does not answer: it keeps its deadline and leaves no thread
//! behind.

use std::time::Duration;

use rungmq::Ack;

use super::alone::{self, alone, full_name, nothing, threads_left, through_a_proxy};
use super::*;
use crate::harness::wait::timed;
use crate::harness::{Flow, Node, logs};

/// What a shutdown meets: a handler that runs on, one that rejects when told to, and a message in
/// its wait.
struct Busy {
    mq: Connection,
    registry: Registry,
    consumer: Consumer,
    runs: Gate,
    copies: Gate,
}

const IDS: [&str; 3] = ["waits", "runs", "copies"];

impl Busy {
    #[track_caller]
    fn start(url: &str) -> Self {
        Self::start_with(url, secs(10))
    }

    #[track_caller]
    fn start_with(url: &str, confirm_timeout: Duration) -> Self {
        let registry = Registry::new();
        let mq = Connection::builder(url)
            .observer(registry.clone())
            .confirm_timeout(confirm_timeout)
            .open()
            .unwrap();
        // The publishing connection is there from the start.
        mq.publish("", "nowhere", &1).unwrap();
        let (runs, copies) = (Gate::new(), Gate::new());
        let (running, copying) = (runs.held(), copies.held());
        let consumer = mq
            .consumer(Q)
            .concurrency(2)
            .retry_policy(long_wait())
            .retry_threshold(Duration::ZERO)
            .start(move |message: Any| match message.id() {
                "waits" => Ack::retry("not yet"),
                "runs" => {
                    running.wait();
                    Ack::accept()
                }
                "copies" => {
                    copying.wait();
                    Ack::reject("no")
                }
                _ => Ack::accept(),
            })
            .unwrap();
        wait_until(LIMIT, "one waits, two run", || consumer.in_flight() == 3);
        Self {
            mq,
            registry,
            consumer,
            runs,
            copies,
        }
    }

    /// By the deadline, with the running one and the copy stranded.
    #[track_caller]
    fn close_strands_two(self) {
        let Self {
            mq, runs, copies, ..
        } = self;
        copies.open();
        let timeout = drain_timeout(in_time(secs(2), || mq.close_within(secs(2))));
        assert_eq!(stranded(&timeout), [(Q, 2)]);
        let mut ids: Vec<_> = timeout
            .deliveries()
            .iter()
            .map(|delivery| delivery.message_id.as_str())
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, ["copies", "runs"]);
        threads_left(&["rungmq-worker-o"]);
        runs.open();
        threads_left(&[]);
    }

    /// The same for the consumer alone; its connection is closed after it.
    #[track_caller]
    fn cancel_strands_two(self) {
        let Self {
            mq,
            consumer,
            runs,
            copies,
            ..
        } = self;
        copies.open();
        // Its outcome is with the consumer's thread, which then stands in a call that the broker
        // does not answer.
        crate::harness::wait::let_pass(secs(0.3));
        let timeout = drain_timeout(in_time(secs(2), || consumer.cancel(secs(2))));
        assert_eq!(stranded(&timeout), [(Q, 2)]);
        // What the cancel has said is not said again, even of a consumer whose thread is still in
        // that call.
        in_time(Duration::ZERO, || mq.close_within(Duration::ZERO)).unwrap();
        threads_left(&["rungmq-worker-o"]);
        runs.open();
        threads_left(&[]);
    }
}

/// Declares the queue and fills it.
#[track_caller]
fn filled(url: &str) {
    let raw = Raw::open(url);
    raw.classic(Q);
    for id in IDS {
        send(&raw, Q, id, 2);
    }
}

/// Everything is back, once, its attempt unchanged. A copy that had no answer may have landed.
#[track_caller]
fn all_are_back(url: &str) {
    let raw = Raw::open(url);
    comes_back(&raw, Q, &IDS.map(|id| (id, 2)));
    let copies = raw.drain("orders.new.dlq");
    let ids: Vec<_> = copies.iter().filter_map(Got::message_id).collect();
    assert!(ids.is_empty() || ids == ["copies"], "{ids:?}");
}

/// On the shared broker, to be reached through a proxy.
#[track_caller]
fn a_filled_queue() -> (String, Vhost<'static>) {
    let vhost = Vhost::new();
    filled(&vhost.url());
    alone::address(vhost)
}

#[test]
fn a_frozen_broker() {
    alone(full_name!(a_frozen_broker), nothing, |_| {
        let node = Node::start();
        for shut in [Busy::close_strands_two, Busy::cancel_strands_two] {
            filled(&node.url());
            let busy = Busy::start(&node.url());
            node.freeze();
            shut(busy);
            node.thaw();
            all_are_back(&node.url());
        }
    });
}

#[test]
fn an_unreachable_broker() {
    alone(
        full_name!(an_unreachable_broker),
        a_filled_queue,
        |argument| {
            let (proxy, url) = through_a_proxy(argument);
            for shut in [Busy::close_strands_two, Busy::cancel_strands_two] {
                let busy = Busy::start(&url);
                proxy.set_both(Flow::Swallow);
                shut(busy);
                proxy.set_both(Flow::Pass);
                proxy.cut();
                all_are_back(&url);
                filled(&url);
            }
        },
    );
}

/// The network holds everything back; the senders feel it.
#[test]
fn a_broker_that_takes_no_bytes() {
    alone(
        full_name!(a_broker_that_takes_no_bytes),
        a_filled_queue,
        |argument| {
            let (proxy, url) = through_a_proxy(argument);
            for shut in [Busy::close_strands_two, Busy::cancel_strands_two] {
                let busy = Busy::start(&url);
                proxy.pause();
                shut(busy);
                proxy.resume();
                proxy.cut();
                all_are_back(&url);
                filled(&url);
            }
        },
    );
}

#[test]
fn a_killed_broker() {
    alone(full_name!(a_killed_broker), nothing, |_| {
        let node = Node::start();

        // Killed before, seen or not.
        filled(&node.url());
        let busy = Busy::start(&node.url());
        node.kill_9();
        busy.copies.open();
        let _ = in_time(secs(2), || busy.mq.close_within(secs(2)));
        busy.runs.open();
        drop((busy.mq, busy.consumer));
        threads_left(&[]);
        assert_eq!(outcomes(&busy.registry, Q, "acked"), 0);

        node.start_again();
        all_are_back(&node.url());

        // Killed while the drain waits for the handler.
        filled(&node.url());
        let busy = Busy::start(&node.url());
        let closing = closing(&busy.mq, secs(2));
        let _ = in_time(secs(2), || {
            node.kill_9();
            closing.join().unwrap()
        });
        drop((busy.copies, busy.runs));
        threads_left(&[]);

        // Killed before a cancel.
        node.start_again();
        all_are_back(&node.url());
        filled(&node.url());
        let busy = Busy::start(&node.url());
        node.kill_9();
        let _ = in_time(secs(2), || busy.consumer.cancel(secs(2)));
        let _ = in_time(Duration::ZERO, || busy.mq.close_within(Duration::ZERO));
        drop((busy.copies, busy.runs));
        threads_left(&[]);
    });
}

const BLOCKED: &str = "the broker has blocked this connection";

/// How often a connection of this process has been blocked.
fn alarms() -> usize {
    logs::captured_with(log::Level::Warn, BLOCKED).len()
}

/// The copy is written, the broker says that it blocks, and no confirm comes.
#[test]
fn a_memory_alarm_with_a_copy_outstanding() {
    alone(
        full_name!(a_memory_alarm_with_a_copy_outstanding),
        nothing,
        |_| {
            logs::capture();
            let node = Node::start();
            for close in [true, false] {
                filled(&node.url());
                let busy = Busy::start(&node.url());
                send(&Raw::open(&node.url()), Q, "next", 2);
                node.memory_alarm(true);
                let before = alarms();
                busy.copies.open();
                // The consuming connection is not blocked, and the copy holds no worker up.
                wait_until(LIMIT, "the next is acknowledged", || {
                    outcomes(&busy.registry, Q, "acked") == 1
                });
                wait_until(LIMIT, "the alarm is known", || alarms() > before);
                let (result, took) = timed(|| {
                    if close {
                        busy.mq.close_within(secs(2))
                    } else {
                        busy.consumer.cancel(secs(2))
                    }
                });
                assert!(took >= secs(2) && took < secs(2) + GRACE, "{took:?}");
                let timeout = drain_timeout(result);
                assert_eq!(stranded(&timeout), [(Q, 2)], "{timeout:?}");
                in_time(secs(1), || busy.mq.close_within(secs(1))).unwrap();
                threads_left(&["rungmq-worker-o"]);
                busy.runs.open();
                threads_left(&[]);
                node.memory_alarm(false);
                all_are_back(&node.url());
            }

            // A caller waits in `publish` instead.
            let (mq, _) = counted(&node.url());
            mq.publish("", "nowhere", &1).unwrap();
            node.memory_alarm(true);
            let before = alarms();
            let publisher = mq.clone();
            let publishing = thread::spawn(move || publisher.publish("", "nowhere", &1));
            wait_until(LIMIT, "the alarm is known", || alarms() > before);
            in_time(secs(2), || mq.close_within(secs(2))).unwrap();
            let published = in_time(Duration::ZERO, || publishing.join().unwrap());
            assert!(published.is_err_and(|error| error.is_unknown()));
            threads_left(&[]);
        },
    );
}

/// A copy that was never written is no reason to wait, and neither is a publish whose caller has
/// given up.
#[test]
fn unwritten_copy_under_an_alarm_is_requeued_promptly() {
    alone(
        full_name!(unwritten_copy_under_an_alarm_is_requeued_promptly),
        nothing,
        |_| {
            logs::capture();
            let node = Node::start();
            filled(&node.url());
            let Busy {
                mq,
                registry,
                consumer,
                runs,
                copies,
            } = Busy::start_with(&node.url(), secs(1));
            node.memory_alarm(true);
            // The broker says that it blocks when the first message comes.
            assert!(mq.publish("", "nowhere", &1).is_err());
            wait_until(LIMIT, "the alarm is known", || alarms() == 1);
            runs.open();
            copies.open();
            wait_until(LIMIT, "the other handler's is acknowledged", || {
                outcomes(&registry, Q, "acked") == 1
            });
            wait_until(LIMIT, "two are in flight", || consumer.in_flight() == 2);
            let (result, took) = timed(|| mq.close_within(secs(20)));
            result.unwrap();
            assert!(took < secs(5), "{took:?}");
            assert_eq!(outcomes(&registry, Q, "handed_back"), 2);
            threads_left(&[]);
            node.memory_alarm(false);
            let raw = Raw::open(&node.url());
            comes_back(&raw, Q, &[("waits", 2), ("copies", 2)]);
            assert_eq!(raw.count("orders.new.dlq"), 0);
        },
    );
}
