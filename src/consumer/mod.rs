//! Consumers: a handle, a builder, and the thread that keeps a subscription alive.

pub(crate) mod in_flight;
pub(crate) mod thread;
pub(crate) mod workers;

mod builder;
mod subscription;

use crate::error::{DrainTimeout, Error, StrandedDelivery};
use crate::link::{Generation, Link, Over, OverSignal, Uplink};
use crate::metrics::Metrics;
use crate::publisher::Publisher;
use crate::retry::{RetryLadder, RetryPolicy};
use crate::time::clock::Clock;
use crate::time::deadline::Deadline;
use crate::time::threads::is_owner_thread;
use crate::topology::declaration::Declaration;
use crossbeam_channel::{Sender, select};
use in_flight::InFlight;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use workers::WorkerPool;

pub use builder::{ConsumerBuilder, SetAsideFailure};
pub(crate) use in_flight::{DrainExclusion, exclude_current_handler_from_drain};

/// After a deadline, for the broker's last answers; the kill switch comes then.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// What a consumer asks of its connection.
#[derive(Clone, Debug)]
pub(crate) struct Services {
    pub(crate) publisher: Publisher,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    /// Bounds each call to the broker.
    pub(crate) call_timeout: Duration,
}

/// Where the connection keeps its consumers.
pub(crate) trait Registrar {
    /// The services of a connection that is up, and its present link.
    fn services(&self) -> Result<(Services, Uplink), Error>;

    fn register(&self, consumer: &Consumer);
}

/// What the consumer thread is told from outside.
#[derive(Debug)]
pub(crate) enum Control {
    Stop(Deadline),
    /// Something has changed that a wait may be for.
    Wake,
}

/// What a subscription works with.
#[derive(Clone, Copy)]
struct Context<'a> {
    settings: &'a Settings,
    services: &'a Services,
    uplink: &'a Uplink,
}

/// What a consumer was built with.
#[derive(Clone)]
pub(crate) struct Settings {
    queue: Arc<str>,
    /// The queue, and which member of a group this is: for logs and thread names.
    label: Arc<str>,
    policy: RetryPolicy,
    ladder: RetryLadder,
    threshold: Duration,
    concurrency: usize,
    prefetch: u16,
    declare: bool,
    never_reject: bool,
    longest_wait: Duration,
}

/// A consumer of one queue. A cheap handle: clones are the same consumer.
///
/// It belongs to its connection: dropping the handle changes nothing, and closing the connection stops it. See
/// [`Connection::consume`](crate::Connection::consume).
#[derive(Clone)]
pub struct Consumer(Arc<ConsumerShared>);

struct ConsumerShared {
    queue: Arc<str>,
    control: Sender<Control>,
    pool: WorkerPool,
    in_flight: InFlight,
    running: AtomicBool,
    generation: Mutex<Option<Arc<Generation>>>,
    /// Dropped when a drain has nothing more to wait for.
    waiters: Mutex<Option<Over>>,
    drained: OverSignal,
    ended: OverSignal,
    stranded: Mutex<Option<Vec<StrandedDelivery>>>,
    cancelled: AtomicBool,
    /// A cancel has said what it left behind.
    reported: AtomicBool,
    /// By when it has to end, once it has been stopped.
    deadline: Mutex<Option<Deadline>>,
    /// The link over which the connection is up again, until the consumer thread takes it.
    recovered: Mutex<Option<Uplink>>,
    /// Queues of its share that are on a cluster node that is down.
    unavailable: Mutex<Vec<String>>,
    /// Why there is no subscription at the moment.
    trouble: Mutex<Option<String>>,
}

impl Consumer {
    /// The queue that is consumed.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.0.queue
    }

    /// How many deliveries are between decoding and settlement: their handler runs, or they wait, or their copy is on its
    /// way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.in_flight.len()
    }

    /// Whether there is a live subscription. False after a cancel or a close, and for as long as the connection is lost, the
    /// queue is gone, or the broker has closed the channel: the consumer subscribes again by itself.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.0.running.load(Ordering::Acquire)
    }

    /// Stops this consumer and waits for what it has started, for at most `timeout`.
    ///
    /// Deliveries that were received but not started go back to the queue, and so do messages that wait in a worker for
    /// their next attempt; a running handler may still return and is settled as always. The connection and its other
    /// consumers are not touched. A second call returns `Ok` at once. A handler may call it: its own delivery is not waited for.
    ///
    /// # Errors
    ///
    /// [`Error::Drain`] when handlers were still running at the deadline, or their copies were not confirmed: handlers run
    /// on, and their outcome is thrown away. [`Error::OwnThread`] on a thread of the library that runs no handler.
    pub fn cancel(&self, timeout: Duration) -> Result<(), Error> {
        cancel(&[self], timeout)
    }

    /// The connection is up again.
    pub(crate) fn recover(&self, uplink: Uplink) {
        *self.0.recovered.lock() = Some(uplink);
        drop(self.0.control.send(Control::Wake));
    }

    /// Why this consumer does not do all of its work, when it does not.
    pub(crate) fn trouble(&self) -> Option<String> {
        if !self.is_running() {
            let trouble = self.0.trouble.lock().clone();
            return Some(trouble.unwrap_or_else(|| "not subscribed yet".to_owned()));
        }
        let unavailable = self.0.unavailable.lock();
        (!unavailable.is_empty()).then(|| {
            format!(
                "gone or on a cluster node that is down: {}",
                unavailable.join(", ")
            )
        })
    }

    /// Whether the handler that made a call is one of this consumer's.
    pub(crate) fn has_handler(&self, exclusion: &DrainExclusion) -> bool {
        exclusion.is_of(&self.0.control)
    }

    /// Begins the drain, unless somebody has cancelled before; whether it did.
    fn begin_cancel(&self, deadline: Deadline) -> bool {
        let first = !self.0.cancelled.swap(true, Ordering::AcqRel);
        if first {
            self.stop(deadline);
        }
        first
    }

    /// Begins the drain, without waiting for it. No handler starts and no wait goes on once this has returned.
    pub(crate) fn stop(&self, deadline: Deadline) {
        let mut earliest = self.0.deadline.lock();
        *earliest = Some(earliest.map_or(deadline, |earlier| earlier.min(deadline)));
        drop(earliest);
        self.0.pool.stop();
        self.0.running.store(false, Ordering::Release);
        if let Some(generation) = &*self.0.generation.lock() {
            generation.drain();
        }
        drop(self.0.control.send(Control::Stop(deadline)));
    }

    /// Waits until there is nothing more to wait for, at most until the deadline.
    pub(crate) fn wait_drained(&self, deadline: Deadline) -> bool {
        select! {
            recv(self.0.ended) -> _ => true,
            recv(self.0.drained) -> _ => true,
            default(deadline.left()) => false,
        }
    }

    /// The deadline has passed: whatever is still running, its outcome is thrown away.
    pub(crate) fn discard_outcomes(&self) {
        if let Some(generation) = &*self.0.generation.lock() {
            generation.end();
        }
    }

    /// Waits for the consumer thread, at most until the deadline; whether it has ended.
    pub(crate) fn join(&self, deadline: Deadline) -> bool {
        select! {
            recv(self.0.ended) -> _ => true,
            default(deadline.left()) => false,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.join(Deadline::within(Duration::ZERO))
    }

    /// Ready once the consumer thread has ended.
    pub(crate) fn ended(&self) -> &OverSignal {
        &self.0.ended
    }

    /// Ready once a drain has nothing more to wait for.
    pub(crate) fn drained(&self) -> &OverSignal {
        &self.0.drained
    }

    /// Whether a cancel has said already what was left behind.
    pub(crate) fn has_reported(&self) -> bool {
        self.0.reported.load(Ordering::Acquire)
    }

    /// What the drain left behind. Of a consumer thread that is stuck in a call only what can be seen from outside.
    fn stranded(&self) -> Vec<StrandedDelivery> {
        match &*self.0.stranded.lock() {
            Some(stranded) => stranded.clone(),
            None => self.0.in_flight.stranded(&self.0.queue),
        }
    }
}

/// Stops consumers together and waits for them by one deadline.
pub(crate) fn cancel(consumers: &[&Consumer], timeout: Duration) -> Result<(), Error> {
    if is_owner_thread() {
        return Err(Error::OwnThread);
    }
    let exclusion = exclude_current_handler_from_drain();
    let deadline = Deadline::within(timeout);
    let mut stopped = consumers.to_vec();
    stopped.retain(|consumer| consumer.begin_cancel(deadline));
    let mut late = stopped.clone();
    late.retain(|consumer| !consumer.wait_drained(deadline));
    late.iter().for_each(|consumer| consumer.discard_outcomes());
    for consumer in late {
        consumer.join(deadline.plus(GRACE));
    }
    if consumers
        .iter()
        .any(|consumer| consumer.has_handler(&exclusion))
    {
        exclusion.keep();
    } else {
        drop(exclusion);
    }
    // A close may have shortened the time.
    let deadlines = stopped
        .iter()
        .filter_map(|consumer| *consumer.0.deadline.lock());
    let deadline = deadlines.fold(deadline, Deadline::min);
    let result = drain_result(stopped.iter().copied(), deadline);
    for consumer in stopped {
        consumer.0.reported.store(true, Ordering::Release);
    }
    result
}

/// What a drain of these consumers has brought.
pub(crate) fn drain_result<'a>(
    consumers: impl IntoIterator<Item = &'a Consumer>,
    deadline: Deadline,
) -> Result<(), Error> {
    let consumers = consumers.into_iter();
    let stranded = consumers.flat_map(Consumer::stranded).collect();
    match DrainTimeout::new(deadline.timeout(), stranded) {
        Some(timeout) => Err(timeout.into()),
        None => Ok(()),
    }
}

impl ConsumerShared {
    /// A new subscription begins. It finds a stop that came before it.
    fn begin_generation(&self, link: &Link) -> Arc<Generation> {
        let generation = Arc::new(Generation::new(link.activity().clone()));
        *self.generation.lock() = Some(generation.clone());
        generation
    }

    fn set_unavailable(&self, unavailable: &[Declaration]) {
        let queues = unavailable
            .iter()
            .filter_map(|declaration| match declaration {
                Declaration::Queue { name, .. } => Some(name.clone()),
                _ => None,
            });
        *self.unavailable.lock() = queues.collect();
    }

    fn release_waiters(&self) {
        self.waiters.lock().take();
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("queue", &self.queue())
            .field("running", &self.is_running())
            .field("in_flight", &self.in_flight())
            .finish()
    }
}
