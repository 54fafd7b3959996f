//! Tests with thousands of messages, hundreds of consumers and flapping connections: every message
//! ends somewhere, and a close ends.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rungmq::metrics::{Consumed, Observer, Published, Received, Recovered};
use rungmq::{Ack, Connection, HealthStatus, Message, Publish, Queue, RetryPolicy, Topology};

use crate::harness::observed::{Observed, SOON, fixed};
use crate::harness::support::Calls;
use crate::harness::wait::{let_pass, timed};
use crate::harness::{Proxy, Vhost, secs, wait_until};

struct Cutter {
    proxy: Arc<Proxy>,
    on: Arc<AtomicBool>,
    recovered: Calls,
}

impl Observer for Cutter {
    fn recovered(&self, _: &Recovered) {
        self.recovered.add();
        if self.on.load(Ordering::SeqCst) {
            self.proxy.cut();
        }
    }
}

#[test]
fn consumers_come_back_after_a_connection_has_flapped() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    for _ in 0..3 {
        let proxy = Arc::new(Proxy::to(vhost.node()));
        let on = Arc::new(AtomicBool::new(true));
        let recovered = Calls::default();
        let mq = Connection::builder(proxy.url_for(vhost.name()))
            .observer(Cutter {
                proxy: proxy.clone(),
                on: on.clone(),
                recovered: recovered.clone(),
            })
            .recovery_backoff(Duration::from_millis(5), Duration::from_millis(20))
            .open()
            .unwrap();
        let calls = Calls::default();
        let counted = calls.clone();
        mq.consumer("q")
            .start(move |_: Message<u64>| counted.add())
            .unwrap();
        proxy.cut();
        let cutting = proxy.clone();
        let on2 = on.clone();
        let random = thread::spawn(move || {
            while on2.load(Ordering::SeqCst) {
                let_pass(Duration::from_micros(u64::from(rand::random::<u16>()) / 4));
                cutting.cut();
            }
        });
        let_pass(secs(2));
        on.store(false, Ordering::SeqCst);
        random.join().unwrap();
        wait_until(SOON, "up", || mq.health().status == HealthStatus::Up);
        Connection::open(vhost.url())
            .unwrap()
            .publish("", "q", &1)
            .unwrap();
        wait_until(SOON, "handled", || calls.count() >= 1);
        wait_until(SOON, "published", || mq.publish("", "q", &2).is_ok());
        wait_until(SOON, "handled", || calls.count() >= 2);
        let (closed, took) = timed(|| mq.close_within(secs(5)));
        closed.unwrap();
        assert!(took < secs(8), "{took:?}");
    }
}

struct Panics;
impl Observer for Panics {
    fn published(&self, _: &Published<'_>) {
        std::panic::resume_unwind(Box::new(()));
    }
    fn received(&self, _: &Received<'_>) {
        std::panic::resume_unwind(Box::new(()));
    }
    fn consumed(&self, _: &Consumed<'_>) {
        std::panic::resume_unwind(Box::new(()));
    }
}

#[test]
fn every_message_ends_somewhere_while_queues_come_and_go() {
    const N: usize = 3000;
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let builder = Connection::builder(vhost.url()).observer(Panics);
    let service = Observed::with(builder);
    let policy = RetryPolicy::fixed(3, secs(0.1)).unwrap();
    service.declare(&policy);
    Topology::new()
        .queue(
            Queue::new("q")
                .dead_letter()
                .retry(&fixed(3, 1.0))
                .retry_threshold(crate::harness::observed::THRESHOLD),
        )
        .apply(&service.mq)
        .unwrap();
    let handled: Arc<Mutex<HashSet<u64>>> = Arc::default();
    let starts = Arc::new(AtomicUsize::new(0));
    let start = |n: usize| {
        let handled = handled.clone();
        let starts = starts.clone();
        let policy = if n.is_multiple_of(2) {
            fixed(3, 1.0)
        } else {
            policy.clone()
        };
        let mq = service.mq.clone();
        service
            .mq
            .consumer("q")
            .prefetch(if n.is_multiple_of(3) { 65535 } else { 50 })
            .concurrency(8)
            .retry_policy(policy)
            .start(move |m: Message<u64>| {
                starts.fetch_add(1, Ordering::SeqCst);
                let id = *m.payload();
                match id % 10 {
                    0 => Ack::retry("again"),
                    1 if m.attempt() == 1 => std::panic::resume_unwind(Box::new("once")),
                    2 => Ack::reject("no"),
                    3 => Ack::park("later"),
                    4 => {
                        let_pass(Duration::from_millis(20));
                        handled.lock().insert(id);
                        Ack::accept()
                    }
                    5 if m.attempt() == 1 => {
                        drop(mq.publish("", "sink", &id));
                        Ack::retry("second")
                    }
                    6 => {
                        drop(mq.health());
                        handled.lock().insert(id);
                        Ack::accept()
                    }
                    _ => {
                        handled.lock().insert(id);
                        Ack::accept()
                    }
                }
            })
            .unwrap()
    };
    raw.classic("sink");
    let mut consumers: Vec<_> = (0..4).map(&start).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let publishing = scope.spawn(|| {
            for chunk in (0..N as u64).collect::<Vec<_>>().chunks(100) {
                let messages = chunk
                    .iter()
                    .map(|n| Publish::json(n).unwrap().routing_key("q"));
                for (n, result) in chunk.iter().zip(service.mq.publish_all(messages)) {
                    if let Err(error) = result {
                        panic!("{n}: {error}")
                    }
                }
            }
        });
        scope.spawn(|| {
            let mut n = 0;
            while !done.load(Ordering::SeqCst) {
                n += 1;
                let queue = ["q.retry.1s", "q.dlq", "q.parked"][n % 3];
                vhost.delete_queue_if_empty(queue);
                vhost.set_policy(
                    "p",
                    "^q$",
                    &serde_json::json!({"max-length": 1_000_000 + n}),
                );
                let_pass(secs(0.2));
            }
        });
        let mut n = 4_usize;
        while !publishing.is_finished() || n < 12 {
            let_pass(secs(0.4));
            let old = consumers.remove(0);
            if n.is_multiple_of(2) {
                old.cancel(secs(5)).unwrap();
            } else {
                drop(old.cancel(Duration::ZERO));
            }
            consumers.push(start(n));
            n += 1;
        }
        publishing.join().unwrap();
        done.store(true, Ordering::SeqCst);
    });
    let raw = vhost.raw();
    let left = || {
        ["q", "q.retry.1s"]
            .iter()
            .map(|q| {
                vhost
                    .queue(q, &["messages"])
                    .map_or(0, |r| r["messages"].as_u64().unwrap_or(0))
            })
            .sum::<u64>()
    };
    wait_until(secs(90), "all settled", || {
        left() == 0
            && service.mq.health().waiting_copies == 0
            && consumers.iter().all(|c| c.in_flight() == 0)
    });
    service.mq.close_within(secs(5)).unwrap();
    let mut seen: HashSet<u64> = handled.lock().clone();
    for queue in ["q", "q.dlq", "q.parked", "q.retry.1s"] {
        if raw.exists(queue) {
            let got = raw.drain(queue);
            seen.extend(got.iter().map(|g| g.text().parse::<u64>().unwrap()));
        }
    }
    let missing: Vec<u64> = (0..N as u64).filter(|n| !seen.contains(n)).collect();
    // A queue may go again between its declaration and the second copy: its messages are rejected,
    // and counted.
    let rejected = service.set_aside_failed("q.dlq") + service.set_aside_failed("q.parked");
    assert!(
        missing.len() as u64 <= rejected,
        "{missing:?}, {rejected} rejected"
    );
}

#[test]
fn hundreds_of_consumers_come_back_and_close() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let service = Observed::on(&vhost);
    let calls = Calls::default();
    for n in 0..200 {
        let queue = format!("q{}", n % 20);
        if n < 20 {
            raw.classic(&queue);
        }
        let counted = calls.clone();
        service
            .mq
            .consumer(queue.as_str())
            .concurrency(2)
            .start(move |_: Message<u64>| {
                counted.add();
                Ack::accept()
            })
            .unwrap();
    }
    vhost.close_connections();
    // Not by looking for consumers that do not run: all of them may be back before the first look.
    wait_until(SOON, "the connection has recovered", || {
        service.counter("acemq.connection.recovered", &[]) == 1
    });
    wait_until(secs(60), "all back", || {
        service.mq.health().consumers_running == 200
    });
    for n in 0..2000 {
        service.mq.publish("", &format!("q{}", n % 20), &n).unwrap();
    }
    wait_until(SOON, "all handled", || calls.count() >= 2000);
    let (closed, took) = timed(|| service.mq.close_within(secs(5)));
    closed.unwrap();
    assert!(took < secs(8), "{took:?}");
}

#[test]
fn handlers_may_start_consumers_thirty_deep() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    for n in 0..30 {
        raw.classic(&format!("n{n}"));
    }
    let mq = Connection::open(vhost.url()).unwrap();
    let calls = Calls::default();
    fn nest(mq: &Connection, n: u64, calls: &Calls) {
        let (inner, counted) = (mq.clone(), calls.clone());
        mq.consume(&format!("n{n}"), move |m: Message<u64>| {
            counted.add();
            let n = *m.payload() + 1;
            if n < 30 {
                nest(&inner, n, &counted);
                inner.publish("", &format!("n{n}"), &n).unwrap();
            }
        })
        .unwrap();
    }
    nest(&mq, 0, &calls);
    mq.publish("", "n0", &0).unwrap();
    wait_until(SOON, "30 deep", || calls.count() == 30);
    mq.close_within(secs(5)).unwrap();
}

#[test]
fn large_and_empty_bodies_through_everything() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let service = Observed::on(&vhost);
    service.declare(&fixed(2, 1.0));
    service
        .mq
        .consumer("q")
        .codec(rungmq::Bytes)
        .concurrency(4)
        .retry_policy(fixed(2, 1.0))
        .start(|m: Message<Vec<u8>>| {
            if m.payload().is_empty() {
                Ack::park("empty")
            } else {
                Ack::retry("again")
            }
        })
        .unwrap();
    for n in 0..4 {
        service
            .mq
            .publish_with(Publish::bytes(vec![n; 12 << 20]).routing_key("q"))
            .unwrap();
        service
            .mq
            .publish_with(Publish::bytes(Vec::new()).routing_key("q"))
            .unwrap();
    }
    raw.wait_for_count("q.dlq", 4, secs(60));
    raw.wait_for_count("q.parked", 4, SOON);
    service.mq.close_within(secs(5)).unwrap();
}
