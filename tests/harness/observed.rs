//! A connection of the library's with its counts, and what its handlers were given.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use rungmq::metrics::Registry;
use rungmq::{Connection, ConnectionBuilder, Message, Queue, RetryPolicy, Topology};

use crate::VirtualHost;
use crate::rabbitmq::Row;
use crate::wait::{secs, wait_for_value, wait_until};

/// A delay of a second or two then waits in a rung.
pub const THRESHOLD: Duration = Duration::from_millis(500);
/// For whatever takes milliseconds on a quiet machine.
pub const SOON: Duration = Duration::from_secs(30);

/// A connection whose retries of half a second and more wait in rungs.
pub struct Observed {
    pub mq: Connection,
    registry: Registry,
}

impl Observed {
    #[track_caller]
    pub fn on(vhost: &impl VirtualHost) -> Self {
        Self::to(&vhost.url())
    }

    #[track_caller]
    pub fn to(url: &str) -> Self {
        Self::with(Connection::builder(url))
    }

    #[track_caller]
    pub fn with(builder: ConnectionBuilder) -> Self {
        let registry = Registry::new();
        let builder = builder
            .retry_threshold(THRESHOLD)
            .observer(registry.clone());
        Self {
            mq: builder.open().unwrap(),
            registry,
        }
    }

    /// Declares the queue `q`, dead-lettered, with the rungs of `policy`.
    #[track_caller]
    pub fn declare(&self, policy: &RetryPolicy) {
        self.declare_queue(Queue::new("q"), policy);
    }

    /// The same for a queue of any name and type.
    #[track_caller]
    pub fn declare_queue(&self, queue: Queue, policy: &RetryPolicy) {
        let queue = queue.dead_letter().retry(policy).retry_threshold(THRESHOLD);
        Topology::new().queue(queue).apply(&self.mq).unwrap();
    }

    pub fn counter(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.registry.snapshot().counter(name, labels)
    }

    /// How many publishes to `exchange` ended as `outcome`.
    pub fn published(&self, exchange: &str, outcome: &str) -> u64 {
        let labels = [("exchange", exchange), ("outcome", outcome)];
        self.counter("acemq.publish.total", &labels)
    }

    /// How many deliveries from `q` ended as `outcome`.
    pub fn consumed(&self, outcome: &str) -> u64 {
        let labels = [("queue", "q"), ("outcome", outcome)];
        self.counter("acemq.consume.total", &labels)
    }

    /// How many rounds failed to set a message of `q` aside in `target`.
    pub fn set_aside_failed(&self, target: &str) -> u64 {
        let labels = [("queue", "q"), ("target", target)];
        self.counter("acemq.messages.set.aside.failed", &labels)
    }

    /// How many deliveries of `q` were handed back for `reason`.
    pub fn handed_back(&self, reason: &str) -> u64 {
        let labels = [("queue", "q"), ("reason", reason)];
        self.counter("acemq.retry.handed.back", &labels)
    }

    /// Waits until exactly `n` deliveries from `q` ended as `outcome`.
    #[track_caller]
    pub fn wait_for_consumed(&self, outcome: &str, n: u64) {
        wait_for_value(SOON, outcome, &n, || self.consumed(outcome));
    }
}

/// A delivery as a handler saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub payload: u64,
    pub id: String,
    pub attempt: u32,
    pub redelivered: bool,
    /// Empty for a copy that came straight back, `acemq.retry` for one out of a rung.
    pub exchange: String,
    pub at: Instant,
}

/// Where handlers report what they are given.
#[derive(Clone)]
pub struct Diary {
    entries: Sender<Seen>,
}

/// A diary and its reader.
pub fn diary() -> (Diary, Reader) {
    let (entries, read) = unbounded();
    let reader = Reader {
        entries: read,
        all: Mutex::default(),
    };
    (Diary { entries }, reader)
}

impl Diary {
    pub fn note(&self, message: &Message<u64>) {
        let seen = Seen {
            payload: *message.payload(),
            id: message.id().to_owned(),
            attempt: message.attempt(),
            redelivered: message.redelivered(),
            exchange: message.exchange().to_owned(),
            at: now(),
        };
        // A test that has ended reads nothing more.
        let _ = self.entries.send(seen);
    }

    /// A handler that accepts what it notes.
    pub fn noting(self) -> impl Fn(Message<u64>) + Send + Sync + 'static {
        move |message| self.note(&message)
    }

    /// A handler that fails what it notes once, and then accepts it.
    pub fn failing_once(
        self,
    ) -> impl Fn(Message<u64>) -> Result<(), &'static str> + Send + Sync + 'static {
        move |message| {
            self.note(&message);
            if message.attempt() == 1 {
                Err("once")
            } else {
                Ok(())
            }
        }
    }
}

pub struct Reader {
    entries: Receiver<Seen>,
    all: Mutex<Vec<Seen>>,
}

impl Reader {
    /// The next delivery.
    #[track_caller]
    pub fn next(&self) -> Seen {
        let seen = self.entries.recv_timeout(SOON).expect("a delivery");
        self.all.lock().push(seen.clone());
        seen
    }

    /// Every delivery of `payload` so far, in order.
    pub fn of(&self, payload: u64) -> Vec<Seen> {
        let mut all = self.all.lock();
        all.extend(self.entries.try_iter());
        all.iter()
            .filter(|seen| seen.payload == payload)
            .cloned()
            .collect()
    }

    /// The attempts of the deliveries of `payload` so far.
    pub fn attempts(&self, payload: u64) -> Vec<u32> {
        self.of(payload).iter().map(|seen| seen.attempt).collect()
    }

    /// Waits until `payload` has been delivered `n` times, and returns them.
    #[track_caller]
    pub fn wait_for(&self, payload: u64, n: usize) -> Vec<Seen> {
        crate::wait_for(SOON, &format!("{n} deliveries of {payload}"), || {
            Some(self.of(payload)).filter(|seen| seen.len() >= n)
        })
    }
}

/// A policy of `attempts` with `seconds` between them.
pub fn fixed(attempts: u32, seconds: f64) -> RetryPolicy {
    RetryPolicy::fixed(attempts, secs(seconds)).unwrap()
}

/// How many deliveries are unacknowledged on all channels. Counts of quorum queues lag by seconds,
/// this does not.
#[track_caller]
pub fn unacknowledged(vhost: &impl VirtualHost) -> u64 {
    let rows = vhost.list_channels(&["messages_unacknowledged"]);
    rows.iter()
        .map(|row| number(row, "messages_unacknowledged"))
        .sum()
}

/// Waits until a queue holds no message, delivered ones included.
#[track_caller]
pub fn wait_until_empty(vhost: &impl VirtualHost, queue: &str) {
    wait_until(SOON, &format!("{queue} is empty"), || {
        vhost.message_count(queue) == 0
    });
}

/// A column that is a number; 0 where the broker shows none.
pub fn number(row: &Row, column: &str) -> u64 {
    row[column].as_u64().unwrap_or(0)
}

#[allow(
    clippy::disallowed_methods,
    reason = "a test measures what the real broker takes"
)]
pub fn now() -> Instant {
    Instant::now()
}
