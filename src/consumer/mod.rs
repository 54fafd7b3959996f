//! Consumers: the handle, its builder, and the thread that keeps a subscription alive.
//!
//! Each consumer has one owner thread ([`thread`]), which alone decides what becomes of a delivery,
//! and a pool of workers ([`workers`]), which run the handler. The handle and the connection reach
//! the thread through [`Control`] and the fields of [`ConsumerShared`].

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

/// How long after a deadline the broker's last answers are awaited before the sockets are shut
/// down.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// What a consumer uses of its connection.
#[derive(Clone, Debug)]
pub(crate) struct Services {
    pub(crate) publisher: Publisher,
    /// Source of waits, ages and pauses.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    /// Limit of each call to the broker.
    pub(crate) call_timeout: Duration,
}

/// The registry of a connection's consumers.
pub(crate) trait Registrar {
    /// Returns the services of a connection that is up, and its current link.
    fn services(&self) -> Result<(Services, Uplink), Error>;

    /// Adds a consumer, so that a close stops it.
    fn register(&self, consumer: &Consumer);
}

/// Messages to the consumer thread.
#[derive(Debug)]
pub(crate) enum Control {
    /// Begins the drain, or moves its deadline earlier.
    Stop(Deadline),
    /// Wakes the thread, so that it looks at shared state again.
    Wake,
}

/// What a subscription is given by its consumer.
#[derive(Clone, Copy)]
struct Context<'a> {
    settings: &'a Settings,
    services: &'a Services,
    uplink: &'a Uplink,
}

/// The validated options of a consumer.
#[derive(Clone)]
pub(crate) struct Settings {
    queue: Arc<str>,
    /// The queue name, with a member number in a group; for logs and thread names.
    label: Arc<str>,
    policy: RetryPolicy,
    ladder: RetryLadder,
    /// From this delay on a retry waits in a rung.
    threshold: Duration,
    concurrency: usize,
    prefetch: u16,
    /// Whether the consumer declares its queues before it subscribes.
    declare: bool,
    /// Whether a message that cannot be set aside is requeued rather than rejected.
    never_reject: bool,
    /// Cap of a wait in the consumer.
    longest_wait: Duration,
}

/// A consumer of one queue. A cheap handle: clones are the same consumer.
///
/// It belongs to its connection: dropping the handle changes nothing, and closing the connection
/// stops it. See [`Connection::consume`](crate::Connection::consume).
#[derive(Clone)]
pub struct Consumer(Arc<ConsumerShared>);

struct ConsumerShared {
    queue: Arc<str>,
    control: Sender<Control>,
    pool: WorkerPool,
    in_flight: InFlight,
    /// True while a subscription lives. No other field depends on it: `trouble` has its own lock.
    /// `Release` on write pairs with `Acquire` in `is_running`.
    running: AtomicBool,
    /// The current or last generation; ended and drained from other threads through this lock.
    generation: Mutex<Option<Arc<Generation>>>,
    /// Dropped once a drain has nothing left to wait for, which makes `drained` ready.
    waiters: Mutex<Option<Over>>,
    /// Ready once `waiters` is dropped.
    drained: OverSignal,
    /// Ready once the consumer thread has ended.
    ended: OverSignal,
    /// What the drain left behind; set once, by the consumer thread.
    stranded: Mutex<Option<Vec<StrandedDelivery>>>,
    /// Set by the first cancel. The swap alone decides which call begins the drain; `AcqRel` orders
    /// it with the stop that follows.
    cancelled: AtomicBool,
    /// Set once a cancel has returned what its drain left behind, so that a close does not report
    /// it again. `Release` pairs with the `Acquire` in `has_reported`.
    reported: AtomicBool,
    /// The earliest deadline given so far; set by the first stop.
    deadline: Mutex<Option<Deadline>>,
    /// The new link after a reconnect, until the consumer thread takes it.
    recovered: Mutex<Option<Uplink>>,
    /// Names of declared queues that are missing or on a cluster node that is down.
    unavailable: Mutex<Vec<String>>,
    /// Why there is no subscription at the moment; for health.
    trouble: Mutex<Option<String>>,
}

impl Consumer {
    /// The name of the consumed queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.0.queue
    }

    /// Number of deliveries between decoding and settlement: the handler runs, the message waits
    /// for its next attempt, or its copy is being published.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.in_flight.len()
    }

    /// Whether there is a live subscription.
    ///
    /// False after a cancel or a close, and while the connection is lost, the queue is missing, or
    /// the broker has closed the channel. In those last cases the consumer subscribes again by
    /// itself.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.0.running.load(Ordering::Acquire)
    }

    /// Stops this consumer and waits up to `timeout` for the deliveries it has started.
    ///
    /// Deliveries that were received but not started are requeued, and so are messages that wait in
    /// a worker for their next attempt. A running handler may still return, and its answer is
    /// settled as usual. The connection and its other consumers are not affected. A second call
    /// returns `Ok` immediately. A handler may call it; its own delivery is then not waited for.
    ///
    /// # Errors
    ///
    /// [`Error::Drain`] when handlers were still running at the deadline, or their copies were not
    /// confirmed: the handlers run on, and their answers are discarded. [`Error::OwnThread`] on a
    /// library thread that runs no handler.
    pub fn cancel(&self, timeout: Duration) -> Result<(), Error> {
        cancel(&[self], timeout)
    }

    /// Hands the consumer the link of a connection that is up again.
    pub(crate) fn recover(&self, uplink: Uplink) {
        *self.0.recovered.lock() = Some(uplink);
        let _ = self.0.control.send(Control::Wake);
    }

    /// Returns why this consumer does not do all of its work, if it does not.
    pub(crate) fn trouble(&self) -> Option<String> {
        if !self.is_running() {
            let trouble = self.0.trouble.lock().clone();
            return Some(trouble.unwrap_or_else(|| "not subscribed yet".to_owned()));
        }
        let unavailable = self.0.unavailable.lock();
        (!unavailable.is_empty()).then(|| {
            format!(
                "missing or on a cluster node that is down: {}",
                unavailable.join(", ")
            )
        })
    }

    /// Whether the handler that made the call belongs to this consumer.
    pub(crate) fn has_handler(&self, exclusion: &DrainExclusion) -> bool {
        exclusion.is_of(&self.0.control)
    }

    /// Begins the drain unless an earlier cancel has done so. Returns whether it did.
    fn begin_cancel(&self, deadline: Deadline) -> bool {
        let first = !self.0.cancelled.swap(true, Ordering::AcqRel);
        if first {
            self.stop(deadline);
        }
        first
    }

    /// Begins the drain without waiting for it. Once this has returned, no handler starts and no
    /// wait goes on.
    pub(crate) fn stop(&self, deadline: Deadline) {
        let mut earliest = self.0.deadline.lock();
        *earliest = Some(earliest.map_or(deadline, |earlier| earlier.min(deadline)));
        drop(earliest);
        // The pool stops before the generation drains, so that no handler starts in between.
        self.0.pool.stop();
        self.0.running.store(false, Ordering::Release);
        if let Some(generation) = &*self.0.generation.lock() {
            generation.drain();
        }
        let _ = self.0.control.send(Control::Stop(deadline));
    }

    /// Waits until the drain has nothing left to wait for. Returns false at the deadline.
    pub(crate) fn wait_drained(&self, deadline: Deadline) -> bool {
        select! {
            recv(self.0.ended) -> _ => true,
            recv(self.0.drained) -> _ => true,
            default(deadline.left()) => false,
        }
    }

    /// Ends the current generation at the deadline: answers of handlers that still run are
    /// discarded.
    pub(crate) fn discard_outcomes(&self) {
        if let Some(generation) = &*self.0.generation.lock() {
            generation.end();
        }
    }

    /// Waits for the consumer thread to end. Returns false at the deadline.
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

    /// Ready once a drain has nothing left to wait for.
    pub(crate) fn drained(&self) -> &OverSignal {
        &self.0.drained
    }

    /// Whether a cancel has already returned what its drain left behind.
    pub(crate) fn has_reported(&self) -> bool {
        self.0.reported.load(Ordering::Acquire)
    }

    /// Returns what the drain left behind. While the consumer thread is stuck in a call, only what
    /// `in_flight` shows.
    fn stranded(&self) -> Vec<StrandedDelivery> {
        match &*self.0.stranded.lock() {
            Some(stranded) => stranded.clone(),
            None => self.0.in_flight.stranded(&self.0.queue),
        }
    }
}

/// Stops `consumers` together and waits for all of them by one deadline.
pub(crate) fn cancel(consumers: &[&Consumer], timeout: Duration) -> Result<(), Error> {
    if is_owner_thread() {
        return Err(Error::OwnThread);
    }
    // Rule 16: a handler that calls this must not wait for its own delivery.
    let exclusion = exclude_current_handler_from_drain();
    let deadline = Deadline::within(timeout);
    let mut stopped = consumers.to_vec();
    stopped.retain(|consumer| consumer.begin_cancel(deadline));
    let mut late = stopped.clone();
    late.retain(|consumer| !consumer.wait_drained(deadline));
    late.iter().for_each(|consumer| consumer.discard_outcomes());
    for consumer in late {
        // The thread still writes acknowledgements and closes its channel.
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
    // A concurrent close may have set an earlier deadline.
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

/// The result of a drain of these consumers.
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
    /// Starts a new generation. A stop that came before it is found in the pool and in `control`.
    fn begin_generation(&self, link: &Link) -> Arc<Generation> {
        let generation = Arc::new(Generation::new(link.activity().clone()));
        *self.generation.lock() = Some(generation.clone());
        generation
    }

    /// Shows the queues among `unavailable` to health.
    fn set_unavailable(&self, unavailable: &[Declaration]) {
        let queues = unavailable
            .iter()
            .filter_map(|declaration| match declaration {
                Declaration::Queue { name, .. } => Some(name.clone()),
                _ => None,
            });
        *self.unavailable.lock() = queues.collect();
    }

    /// Lets callers of cancel and close return: every delivery left is excluded from drains.
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
