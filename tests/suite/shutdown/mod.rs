//! Tests of shutdown: it keeps its deadline, loses and doubles nothing, and reports what it left.

pub(crate) mod alone;
mod callers;
mod cycles;
mod deadline;
mod dropping;
mod groups;
mod late;
mod starts;
mod trouble;

crate::harness::only_on_rabbitmq! { "processes of their own";
mod programs;
}

use std::convert::Infallible;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use amiquip::AmqpProperties;
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use rungmq::metrics::Registry;
use rungmq::{
    Answer, Connection, Consumer, ConsumerBuilder, DrainTimeout, Error, Message, RetryPolicy,
};
use serde_json::Value;

use crate::harness::wait::{timed, wait_for_value};
use crate::harness::{Got, IN_PROCESS, Proxy, Raw, Vhost, secs, table, wait_until};

/// The source queue of tests that need only one.
const Q: &str = "orders.new";

/// The limit of every wait that has none of its own. Typical is a hundredth of it.
const LIMIT: Duration = Duration::from_secs(30);

/// What a shutdown may take on top of its deadline: one second by the contract. A real broker shares
/// a busy machine with the test, which then needs half a second more to notice.
const GRACE: Duration = Duration::from_millis(if IN_PROCESS { 1000 } else { 1500 });

/// From here on a retry waits on the broker, in these tests.
const THRESHOLD: Duration = Duration::from_millis(500);

type Any = Message<Value>;

/// A virtual host, a connection that counts, and eyes on the broker.
struct Stage {
    mq: Connection,
    registry: Registry,
    raw: Raw,
    vhost: Vhost<'static>,
}

impl Stage {
    /// With [`Q`] as a classic queue.
    #[track_caller]
    fn new() -> Self {
        let vhost = Vhost::new();
        let url = vhost.url();
        Self::over(vhost, &url)
    }

    /// The same, where the library uses `url`.
    #[track_caller]
    fn over(vhost: Vhost<'static>, url: &str) -> Self {
        let raw = vhost.raw();
        raw.classic(Q);
        let (mq, registry) = counted(url);
        Self {
            mq,
            registry,
            raw,
            vhost,
        }
    }

    /// The same, where the library speaks through a proxy.
    #[track_caller]
    fn through_a_proxy() -> (Self, Proxy) {
        let vhost = Vhost::new();
        let proxy = Proxy::to(vhost.node());
        let url = proxy.url_for(vhost.name());
        (Self::over(vhost, &url), proxy)
    }

    /// One delivery of [`Q`] in flight: its handler is held until the gate opens, and then gives
    /// `answer`. The message is
    /// `1`, in its second attempt.
    #[track_caller]
    fn held_delivery<R: Answer + 'static>(&self, answer: fn() -> R) -> (Consumer, Gate) {
        self.held_delivery_of(self.mq.consumer(Q), answer)
    }

    /// The same for a consumer with settings of its own.
    #[track_caller]
    fn held_delivery_of<R: Answer + 'static>(
        &self,
        consumer: ConsumerBuilder<'_>,
        answer: fn() -> R,
    ) -> (Consumer, Gate) {
        let gate = Gate::new();
        let held = gate.held();
        let handle = move |_: Any| {
            held.wait();
            answer()
        };
        let consumer = consumer.start(handle).unwrap();
        self.send(Q, "1", 2);
        wait_until(LIMIT, "its handler runs", || consumer.in_flight() == 1);
        (consumer, gate)
    }

    /// A message that has been tried before, so that an attempt that changes shows both ways.
    #[track_caller]
    fn send(&self, queue: &str, id: &str, attempt: i64) {
        send(&self.raw, queue, id, attempt);
    }

    /// Waits until `queue` holds exactly these messages with these attempts, in this order, and
    /// takes them out.
    #[track_caller]
    fn comes_back(&self, queue: &str, expected: &[(&str, i64)]) {
        comes_back(&self.raw, queue, expected);
    }

    /// Every message on the virtual host, delivered and unsettled ones included, except those in
    /// `queue`.
    #[track_caller]
    fn elsewhere(&self, queue: &str) -> Vec<(String, u64)> {
        let rows = self.vhost.list_queues(&["name", "messages"]);
        let counts = rows.iter().map(|row| {
            let name = row["name"].as_str().unwrap().to_owned();
            (name, row["messages"].as_u64().unwrap_or(0))
        });
        counts
            .filter(|(name, count)| name != queue && *count > 0)
            .collect()
    }

    /// How many deliveries of `queue` ended as `outcome`.
    fn outcomes(&self, queue: &str, outcome: &str) -> u64 {
        outcomes(&self.registry, queue, outcome)
    }

    #[track_caller]
    fn wait_for_outcomes(&self, queue: &str, outcome: &str, n: u64) {
        let what = format!("deliveries of {queue} that were {outcome}");
        wait_for_value(LIMIT, &what, &n, || self.outcomes(queue, outcome));
    }
}

/// A connection with everything counted.
#[track_caller]
fn counted(url: &str) -> (Connection, Registry) {
    let registry = Registry::new();
    let mq = Connection::builder(url)
        .observer(registry.clone())
        .retry_threshold(THRESHOLD)
        .open()
        .unwrap();
    (mq, registry)
}

fn outcomes(registry: &Registry, queue: &str, outcome: &str) -> u64 {
    let labels = [("queue", queue), ("outcome", outcome)];
    registry.snapshot().counter("acemq.consume.total", &labels)
}

#[track_caller]
fn send(raw: &Raw, queue: &str, id: &str, attempt: i64) {
    let properties = AmqpProperties::default()
        .with_message_id(id.to_owned())
        .with_delivery_mode(2)
        .with_headers(table([("x-acemq-attempt", attempt)]));
    raw.send(queue, format!("{id:?}"), properties);
}

#[track_caller]
fn comes_back(raw: &Raw, queue: &str, expected: &[(&str, i64)]) {
    raw.wait_for_count(queue, u32::try_from(expected.len()).unwrap(), LIMIT);
    let all = raw.drain(queue);
    let found: Vec<_> = all.iter().map(id_and_attempt).collect();
    assert_eq!(found, expected, "in {queue}");
}

#[track_caller]
fn id_and_attempt(got: &Got) -> (&str, i64) {
    (
        got.message_id().unwrap(),
        got.header_number("x-acemq-attempt").unwrap(),
    )
}

/// A consumer of `queue` that has one delivery in a wait of 25 s, that of the message `waits`, and
/// one whose handler is held. Messages for both are there already.
#[track_caller]
fn one_waits_and_one_runs(mq: &Connection, queue: &str, held: Held) -> Consumer {
    let consumer = mq
        .consumer(queue)
        .retry_policy(long_wait())
        .retry_threshold(Duration::ZERO)
        .start(move |message: Any| match message.id() {
            "waits" => Err("not yet"),
            _ => {
                held.wait();
                Ok(())
            }
        })
        .unwrap();
    wait_until(LIMIT, "one waits and one runs", || {
        consumer.in_flight() == 2
    });
    consumer
}

/// In-consumer waits of 25 s, for use with `retry_threshold(Duration::ZERO)`.
fn long_wait() -> RetryPolicy {
    RetryPolicy::fixed(100, secs(25)).unwrap()
}

/// Holds handlers until it is opened, or dropped: a test that fails leaves none behind.
struct Gate {
    _open: Sender<Infallible>,
    held: Held,
}

#[derive(Clone)]
struct Held(Receiver<Infallible>);

impl Gate {
    fn new() -> Self {
        let (open, held) = bounded(0);
        Self {
            _open: open,
            held: Held(held),
        }
    }

    fn held(&self) -> Held {
        self.held.clone()
    }

    fn open(self) {}
}

impl Held {
    fn wait(&self) {
        let _ = self.0.recv();
    }
}

/// What handlers did, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().push(line.into());
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    /// Waits until there are at least `n` lines.
    #[track_caller]
    fn wait_for(&self, n: usize) {
        wait_until(LIMIT, &format!("{n} lines"), || self.len() >= n);
    }
}

/// Waits until the library has no connection left: the one that stays is [`Raw`]'s.
#[track_caller]
fn wait_until_disconnected(vhost: &Vhost<'_>) {
    wait_until(LIMIT, "the sockets are closed", || {
        vhost.list_connections(&["pid"]).len() == 1
    });
}

/// `close_within` on a thread of its own; returns once the close has begun.
#[track_caller]
fn closing(mq: &Connection, timeout: Duration) -> JoinHandle<Result<(), Error>> {
    let handle = mq.clone();
    let closing = thread::spawn(move || handle.close_within(timeout));
    wait_until(LIMIT, "the close has begun", || !mq.is_running());
    closing
}

/// `cancel` on a thread of its own; returns once the cancel has begun.
#[track_caller]
fn cancelling(consumer: &Consumer, timeout: Duration) -> JoinHandle<Result<(), Error>> {
    let handle = consumer.clone();
    let cancelling = thread::spawn(move || handle.cancel(timeout));
    wait_until(LIMIT, "the cancel has begun", || !consumer.is_running());
    cancelling
}

/// Checks that `work` ends by its deadline, as the contract has it.
#[track_caller]
fn in_time<T>(deadline: Duration, work: impl FnOnce() -> T) -> T {
    let (value, took) = timed(work);
    assert!(
        took < deadline + GRACE,
        "took {took:?} at a deadline of {deadline:?}"
    );
    value
}

/// What a drain left behind, by queue.
#[track_caller]
fn drain_timeout(result: Result<(), Error>) -> DrainTimeout {
    match result {
        Err(Error::Drain(timeout)) => timeout,
        other => panic!("no drain timeout but {other:?}"),
    }
}

fn stranded(timeout: &DrainTimeout) -> Vec<(&str, usize)> {
    let counts = timeout.stranded().iter();
    counts
        .map(|(queue, count)| (queue.as_str(), *count))
        .collect()
}
