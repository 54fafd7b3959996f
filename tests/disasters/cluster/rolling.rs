//! Every node in turn goes down while messages are retried, given up and parked.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rungmq::{Ack, ConnectionBuilder, Message};

use super::{HOME, assert_nothing_rejected, prepare, raw, send, to_all, witness};
use crate::harness::observed::{Observed, Reader, SOON, diary, fixed, wait_until_empty};
use crate::harness::wait::{Stopwatch, let_pass, wait_for_value};
use crate::harness::{Cluster, Raw, secs, wait_until};

/// What the payload says is to become of a message.
const RETRIED_ONCE: u64 = 0;
const REJECTED: u64 = 1;
const PARKED: u64 = 2;
const GIVEN_UP: u64 = 3;
const KINDS: u64 = 4;

#[test]
fn rolling_kills_leave_every_message_where_policy_says() {
    let cluster = Cluster::alone();
    let policy = fixed(2, 1.0);
    let vhost = prepare(&cluster, "q", &policy);
    witness(&cluster, &vhost, "q");
    let service = Observed::with(to_all(&cluster, &vhost));
    let (diary, read) = diary();
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        match message.payload() % KINDS {
            RETRIED_ONCE if message.attempt() == 1 => Ack::retry("once"),
            RETRIED_ONCE => Ack::accept(),
            REJECTED => Ack::reject("wrong"),
            PARKED => Ack::park("look at it"),
            _ => Ack::retry("always"),
        }
    };
    let consumer = service.mq.consumer("q").retry_policy(policy);
    let consumer = consumer.concurrency(4).prefetch(50).start(handle).unwrap();

    let feed = Feed::default();
    thread::scope(|scope| {
        // However a round ends, the feeder must not go on for ever.
        let _over = SetAtEnd(&feed.over);
        scope.spawn(|| feed.publish(to_all(&cluster, &vhost)));
        for n in 0..3 {
            let_pass(secs(1));
            feed.hold_retries(&read);
            let killed = Stopwatch::start();
            cluster.kill_9(n);
            let beside = (n + 1) % 3;
            let marker = 1_000_000 + KINDS * u64::try_from(n).unwrap();
            send(&cluster, beside, &vhost, "q", marker);
            read.wait_for(marker, 1);
            let resumed = killed.elapsed();
            assert!(resumed < secs(5), "node {n}: {resumed:?}");
            feed.retries_held.store(false, Ordering::SeqCst);
            if cluster.node(beside).major() < 4 {
                // RabbitMQ 4 takes more than a minute to say so.
                assert_eq!(raw(&cluster, beside, &vhost).exists("q.dlq"), n != HOME);
            }
            println!("node {n}: consuming again after {resumed:?}");
            let_pass(secs(3));
            cluster.start_again(n);
            println!("node {n}: back after {:?}", killed.elapsed());
        }
    });

    let ended = Stopwatch::start();
    let sent = feed.sent.into_inner();
    let mut found = Found::default();
    let raw = raw(&cluster, HOME, &vhost);
    wait_for_value(secs(60), "what is missing", &Vec::new(), || {
        found.take(&raw);
        found.missing(&sent, &read)
    });
    println!(
        "{} messages, the last at its end after {:?}",
        sent.len(),
        ended.elapsed()
    );
    wait_until_empty(&vhost, "q");
    wait_until_empty(&vhost, "q.retry.1s");
    wait_until(SOON, "nothing is in flight", || consumer.in_flight() == 0);
    assert_nothing_rejected(&cluster, &vhost);
    assert!(
        service.set_aside_failed("q.dlq") > 0,
        "none met the node that was down"
    );
    // A connection that was not on a killed node was not lost.
    let recovered = service.counter("acemq.connection.recovered", &[]);
    assert!((2..=3).contains(&recovered), "{recovered}");
}

struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The publishing thread and what was confirmed to it.
#[derive(Default)]
struct Feed {
    over: AtomicBool,
    retries_held: AtomicBool,
    sent: Mutex<Vec<u64>>,
}

impl Feed {
    /// Publishes numbers until it is over, each until it is confirmed. `RUNGMQ_TEST_BURST` makes it
    /// more.
    fn publish(&self, connection: ConnectionBuilder) {
        let burst = std::env::var("RUNGMQ_TEST_BURST").map_or(8, |burst| burst.parse().unwrap());
        let mq = connection.open().unwrap();
        let mut numbers = 0..;
        while !self.over.load(Ordering::SeqCst) {
            for payload in numbers.by_ref().take(burst) {
                let mut sent = self.sent.lock();
                if is_retried(payload) && self.retries_held.load(Ordering::SeqCst) {
                    continue;
                }
                wait_until(SOON, "a message is published", || {
                    mq.publish("", "q", &payload).is_ok()
                });
                sent.push(payload);
            }
            let_pass(Duration::from_millis(250));
        }
    }

    /// Lets no retry be in its rung. What expires there while its quorum queue has no leader is
    /// lost by RabbitMQ itself.
    fn hold_retries(&self, read: &Reader) {
        self.retries_held.store(true, Ordering::SeqCst);
        let sent = self.sent.lock().clone();
        wait_until(SOON, "every retry is out of its rung", || {
            let mut retried = sent.iter().filter(|payload| is_retried(**payload));
            retried.all(|payload| read.attempts(*payload).contains(&2))
        });
    }
}

fn is_retried(payload: u64) -> bool {
    matches!(payload % KINDS, RETRIED_ONCE | GIVEN_UP)
}

/// What was set aside. A message may be there twice, but never in a wrong place or with a wrong
/// attempt.
#[derive(Default)]
struct Found {
    dead_letters: BTreeSet<u64>,
    parked: BTreeSet<u64>,
}

impl Found {
    fn take(&mut self, raw: &Raw) {
        for got in raw.drain("q.dlq") {
            let payload: u64 = got.text().parse().unwrap();
            let attempt = match payload % KINDS {
                REJECTED => 1,
                GIVEN_UP => 2,
                _ => panic!("{got:?} is no dead letter"),
            };
            assert_eq!(got.header_number("x-acemq-attempt"), Some(attempt));
            self.dead_letters.insert(payload);
        }
        for got in raw.drain("q.parked") {
            let payload: u64 = got.text().parse().unwrap();
            assert_eq!(payload % KINDS, PARKED, "{got:?}");
            assert_eq!(got.header_number("x-acemq-attempt"), Some(1));
            self.parked.insert(payload);
        }
    }

    fn missing(&self, sent: &[u64], read: &Reader) -> Vec<u64> {
        let is_there = |payload: &u64| match payload % KINDS {
            RETRIED_ONCE => read.attempts(*payload).contains(&2),
            PARKED => self.parked.contains(payload),
            _ => self.dead_letters.contains(payload),
        };
        let missing = sent.iter().filter(|payload| !is_there(payload));
        missing.copied().collect()
    }
}
