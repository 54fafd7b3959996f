//! Publishes through all trouble, and keeps what it was told of every message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use rungmq::{Connection, Publish};

use super::now_millis;
use super::script::Script;
use crate::harness::secs;
use crate::harness::wait::{let_pass, timed};
use crate::harness::work::{Plan, UNDECODABLE, Work};

/// Carries the number of the message, also where its body cannot be read.
pub(crate) const NUMBER: &str = "chaos-n";
/// Between two messages of one thread.
const PACE: Duration = Duration::from_millis(25);
const THREADS: u64 = 4;

/// What `publish` said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Confirmed,
    /// Not sent, or not taken.
    Refused,
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) n: u64,
    pub(crate) plan: Plan,
    pub(crate) queue: &'static str,
    pub(crate) told: Told,
    /// Milliseconds since 1970.
    pub(crate) at: u64,
    pub(crate) said: String,
}

pub(crate) struct Producer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    mq: Connection,
    stop: AtomicBool,
    next: AtomicU64,
    published: Mutex<Vec<Published>>,
    longest: Mutex<Duration>,
}

impl Producer {
    pub(crate) fn start(url: &str, seed: u64, queues: [&'static str; 2]) -> Self {
        let mq = Connection::builder(url)
            .heartbeat(secs(2))
            .connect_timeout(secs(3))
            .confirm_timeout(secs(3))
            .recovery_backoff(secs(0.2), secs(2))
            .open()
            .unwrap();
        let shared = Arc::new(Shared {
            mq,
            stop: AtomicBool::new(false),
            next: AtomicU64::new(0),
            published: Mutex::default(),
            longest: Mutex::default(),
        });
        let threads = (0..THREADS).map(|thread| {
            let shared = Arc::clone(&shared);
            let script = Script::new(seed, 100 + thread);
            thread::spawn(move || shared.publish(script, queues))
        });
        Self {
            threads: threads.collect(),
            shared,
        }
    }

    /// How many messages were confirmed so far.
    pub(crate) fn confirmed(&self) -> usize {
        let published = self.shared.published.lock();
        published
            .iter()
            .filter(|published| published.told == Told::Confirmed)
            .count()
    }

    /// Stops; everything that was published, in order, and how long the slowest call took.
    pub(crate) fn finish(self) -> (Vec<Published>, Duration) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.shared.mq.close().unwrap();
        let mut published = std::mem::take(&mut *self.shared.published.lock());
        published.sort_by_key(|published| published.n);
        (published, *self.shared.longest.lock())
    }
}

impl Shared {
    fn publish(&self, mut script: Script, queues: [&'static str; 2]) {
        while !self.stop.load(Ordering::SeqCst) {
            let n = self.next.fetch_add(1, Ordering::SeqCst);
            let plan = script.plan();
            let queue = queues[usize::from(n.is_multiple_of(2))];
            let work = Work { n, plan };
            let message = match plan {
                Plan::Undecodable => {
                    Publish::text(format!("{n}{UNDECODABLE}")).content_type("application/json")
                }
                _ => Publish::json(&work).unwrap(),
            };
            let message = message
                .routing_key(queue)
                .mandatory(true)
                .header(NUMBER, i64::try_from(n).unwrap());
            let at = now_millis();
            let (result, took) = timed(|| self.mq.publish_with(message));
            let (told, said) = match result {
                Ok(_) => (Told::Confirmed, String::new()),
                Err(error) if error.is_unknown() => (Told::Unknown, error.to_string()),
                Err(error) => (Told::Refused, error.to_string()),
            };
            self.published.lock().push(Published {
                n,
                plan,
                queue,
                told,
                at,
                said,
            });
            let mut longest = self.longest.lock();
            *longest = took.max(*longest);
            drop(longest);
            let_pass(PACE);
        }
    }
}
