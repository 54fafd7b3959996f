//! Tests of a delivery from its receipt to its settlement, and of the copies made of it.

mod addresses;
mod bad_attempts;
mod bad_input;
mod copies;
mod counts;
mod drains;
mod endings;
mod envelopes;
mod fetching;
mod large;
mod messages;
mod policies;
mod reasons;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use amiquip::AmqpProperties;
use parking_lot::Mutex;
use rungmq::metrics::{Registry, Snapshot};
use rungmq::{Ack, Connection, ConsumerBuilder, Message, RetryPolicy, naming};
use serde_json::Value;

use crate::harness::wait::wait_for_value;
use crate::harness::{Got, Raw, Vhost, secs};

/// The source queue.
pub(crate) const Q: &str = "orders.new";

/// From here on a retry waits on the broker, in these tests.
pub(crate) const THRESHOLD: Duration = Duration::from_millis(500);

/// The limit of every wait. Typical is a hundredth of it.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

const OUTCOMES: [&str; 7] = [
    "acked",
    "retried",
    "rejected",
    "dead_lettered",
    "parked",
    "handed_back",
    "discarded",
];

/// A virtual host with a queue, a connection that counts, and eyes on the broker.
pub(crate) struct Stage {
    pub(crate) mq: Connection,
    pub(crate) registry: Registry,
    pub(crate) raw: Raw,
    pub(crate) vhost: Vhost<'static>,
}

impl Stage {
    /// With [`Q`] as a quorum queue.
    #[track_caller]
    pub(crate) fn new() -> Self {
        let stage = Self::bare();
        stage.raw.quorum(Q);
        stage
    }

    /// With [`Q`] as a classic queue, which shows nothing but what was published.
    #[track_caller]
    pub(crate) fn classic() -> Self {
        let stage = Self::bare();
        stage.raw.classic(Q);
        stage
    }

    /// Without a queue.
    #[track_caller]
    pub(crate) fn bare() -> Self {
        let vhost = Vhost::new();
        let raw = vhost.raw();
        let registry = Registry::new();
        let mq = Connection::builder(vhost.url())
            .observer(registry.clone())
            .retry_threshold(THRESHOLD)
            .open()
            .unwrap();
        Self {
            mq,
            registry,
            raw,
            vhost,
        }
    }

    pub(crate) fn consumer(&self, policy: &RetryPolicy) -> ConsumerBuilder<'_> {
        self.mq.consumer(Q).retry_policy(policy.clone())
    }

    /// Consumes [`Q`] with a handler that retries every delivery, and returns what `look` sees of
    /// them.
    #[track_caller]
    pub(crate) fn retrying<S: Clone + Send + 'static>(
        &self,
        policy: &RetryPolicy,
        look: fn(&Message<Value>) -> S,
    ) -> Seen<S> {
        let seen = Seen::default();
        let deliveries = seen.clone();
        let handle = move |message: Message<Value>| {
            deliveries.push(look(&message));
            Ack::retry("no stock")
        };
        self.consumer(policy).start(handle).unwrap();
        seen
    }

    /// Sends a message without any header of the library.
    #[track_caller]
    pub(crate) fn send(&self, body: impl AsRef<[u8]>) {
        self.raw.send(Q, body, AmqpProperties::default());
    }

    /// The next message in the dead-letter queue.
    #[track_caller]
    pub(crate) fn dead(&self) -> Got {
        self.raw.wait_for_get(&naming::dead_letter_queue(Q), LIMIT)
    }

    /// The next message in the parked queue.
    #[track_caller]
    pub(crate) fn parked(&self) -> Got {
        self.raw.wait_for_get(&naming::parked_queue(Q), LIMIT)
    }

    /// The processes behind all sockets on the virtual host: a connection that was made again has
    /// another one.
    pub(crate) fn sockets(&self) -> Vec<String> {
        let rows = self.vhost.list_connections(&["pid"]);
        let mut pids: Vec<_> = rows.iter().map(|row| row["pid"].to_string()).collect();
        pids.sort();
        pids
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.registry.snapshot()
    }

    /// How many deliveries of `queue` ended in `outcome`.
    pub(crate) fn outcomes(&self, queue: &str) -> Vec<(&'static str, u64)> {
        let snapshot = self.snapshot();
        OUTCOMES
            .into_iter()
            .map(|outcome| {
                let labels = [("queue", queue), ("outcome", outcome)];
                (outcome, snapshot.counter("acemq.consume.total", &labels))
            })
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    /// Waits until the deliveries of [`Q`] ended exactly as listed, and nothing is left in it or on
    /// its way.
    #[track_caller]
    pub(crate) fn settled(&self, expected: &[(&'static str, u64)]) {
        self.settled_in(Q, expected);
    }

    /// Waits until the deliveries of [`Q`] ended exactly as listed; messages may be left in it.
    #[track_caller]
    pub(crate) fn settled_counts(&self, expected: &[(&'static str, u64)]) {
        self.wait_for_outcomes(Q, expected);
    }

    #[track_caller]
    fn wait_for_outcomes(&self, queue: &str, expected: &[(&'static str, u64)]) {
        wait_for_value(
            LIMIT,
            &format!("how the deliveries of {queue} ended"),
            &expected.to_vec(),
            || self.outcomes(queue),
        );
    }

    /// [`settled`](Self::settled) for another queue.
    #[track_caller]
    pub(crate) fn settled_in(&self, queue: &str, expected: &[(&'static str, u64)]) {
        self.wait_for_outcomes(queue, expected);
        let labels = [("queue", queue)];
        wait_for_value(LIMIT, "what is in flight", &0, || {
            self.snapshot().gauge("acemq.consume.in.flight", &labels)
        });
        wait_for_value(LIMIT, &format!("what is left in {queue}"), &Some(0), || {
            self.vhost.queue(queue, &["messages"])?["messages"].as_u64()
        });
    }
}

/// Retries after a moment in the worker.
pub(crate) fn soon(attempts: u32) -> RetryPolicy {
    RetryPolicy::fixed(attempts, Duration::from_millis(20)).unwrap()
}

/// Retries by way of a rung, [`RUNG`].
pub(crate) fn by_rung(attempts: u32) -> RetryPolicy {
    RetryPolicy::fixed(attempts, secs(0.6)).unwrap()
}

/// Retries by way of [`LONG_RUNG`], where a message lies still for a test to look at.
pub(crate) fn by_long_rung(attempts: u32) -> RetryPolicy {
    RetryPolicy::fixed(attempts, secs(3600)).unwrap()
}

/// The rung of [`by_long_rung`].
pub(crate) const LONG_RUNG: &str = "orders.new.retry.1h";

/// What handlers saw, in order.
#[derive(Debug)]
pub(crate) struct Seen<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Seen<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone> Seen<T> {
    pub(crate) fn push(&self, value: T) {
        self.0.lock().push(value);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.lock().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Waits until there are `n`, and returns them all.
    #[track_caller]
    pub(crate) fn wait_for(&self, n: usize) -> Vec<T> {
        crate::harness::wait_until(LIMIT, &format!("handler call {n}"), || self.len() >= n);
        self.all()
    }
}
