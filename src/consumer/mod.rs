//! Consumers: a handle, a builder, and the thread that keeps a subscription alive.

mod acks;
mod handler;
mod intake;
mod ledger;
mod pace;
mod pool;
mod settling;
mod share;
mod subscription;
mod task;

use crate::ack::Answer;
use crate::clock::Clock;
use crate::codec::{Decode, Json};
use crate::error::Error;
use crate::link::{Admin, Generation, Link, Over, OverSignal, is_owner_thread};
use crate::message::Message;
use crate::metrics::Metrics;
use crate::naming;
use crate::publisher::Publisher;
use crate::retry::{RetryLadder, RetryPolicy};
use crate::shutdown::{Deadline, DrainTimeout, StrandedDelivery};
use crossbeam_channel::{Sender, select};
use handler::handler;
use parking_lot::Mutex;
use pool::Pool;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use task::InFlight;

pub(crate) use task::do_not_wait_for_this_handler;

/// Prefetch unless said otherwise; concurrency where that is larger.
const DEFAULT_PREFETCH: u32 = 20;
/// `basic.qos` has 16 bits for it, and 0 would be no limit at all.
const MOST_PREFETCH: u32 = 65_535;
/// After a deadline, for the broker's last answers; the kill switch comes then.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// What a consumer asks of its connection.
#[derive(Clone, Debug)]
pub(crate) struct Services {
    pub(crate) link: Arc<Link>,
    pub(crate) admin: Admin,
    pub(crate) publisher: Publisher,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    /// Bounds each call to the broker.
    pub(crate) call_timeout: Duration,
}

/// Where the connection keeps its consumers.
pub(crate) trait Registrar {
    /// The services of a connection that is up.
    fn services(&self) -> Result<Services, Error>;

    fn register(&self, consumer: &Consumer);
}

/// What the consumer thread is told from outside.
#[derive(Debug)]
pub(crate) enum Control {
    Stop(Deadline),
    /// There is a delivery more that a drain need not wait for.
    LookAgain,
}

/// What a consumer was built with.
struct Settings {
    queue: Arc<str>,
    policy: RetryPolicy,
    ladder: RetryLadder,
    threshold: Duration,
    concurrency: usize,
    prefetch: u16,
    declare: bool,
    never_reject: bool,
}

/// A consumer of one queue. A cheap handle: clones are the same consumer.
///
/// It belongs to its connection: dropping the handle changes nothing, and closing the connection stops it. See
/// [`Connection::consume`](crate::Connection::consume).
#[derive(Clone)]
pub struct Consumer(Arc<Shared>);

struct Shared {
    queue: Arc<str>,
    control: Sender<Control>,
    pool: Pool,
    in_flight: InFlight,
    running: AtomicBool,
    generation: Mutex<Option<Arc<Generation>>>,
    /// Dropped when a drain has nothing more to wait for.
    busy: Mutex<Option<Over>>,
    quiet: OverSignal,
    ended: OverSignal,
    end: Mutex<Option<End>>,
    cancelled: AtomicBool,
}

/// How a consumer ended.
#[derive(Debug, Default)]
struct End {
    stranded: Vec<StrandedDelivery>,
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

    /// Whether there is a live subscription.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.0.running.load(Ordering::Acquire)
    }

    /// Stops this consumer and waits for what it has started, for at most `timeout`.
    ///
    /// Deliveries that were received but not started go back to the queue, and so do messages that wait in a worker for
    /// their next attempt; a running handler may still return and is settled as always. The connection and its other
    /// consumers are not touched. A second call returns `Ok` at once.
    ///
    /// # Errors
    ///
    /// [`Error::Drain`] when handlers were still running at the deadline: they run on, and their outcome is thrown away.
    pub fn cancel(&self, timeout: Duration) -> Result<(), Error> {
        if is_owner_thread() {
            return Err(Error::OwnThread);
        }
        do_not_wait_for_this_handler();
        if self.0.cancelled.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let deadline = Deadline::within(timeout);
        self.stop(deadline);
        if !self.is_drained_by(deadline) {
            self.cut();
            self.join(deadline.plus(GRACE));
        }
        match DrainTimeout::new(timeout, self.stranded()) {
            Some(timeout) => Err(timeout.into()),
            None => Ok(()),
        }
    }

    /// Begins the drain, without waiting for it. No handler starts and no wait goes on once this has returned.
    pub(crate) fn stop(&self, deadline: Deadline) {
        self.0.running.store(false, Ordering::Release);
        self.0.pool.shut();
        if let Some(generation) = &*self.0.generation.lock() {
            generation.drain();
        }
        drop(self.0.control.send(Control::Stop(deadline)));
    }

    /// Waits until there is nothing more to wait for, at most until the deadline.
    pub(crate) fn is_drained_by(&self, deadline: Deadline) -> bool {
        select! {
            recv(self.0.ended) -> _ => true,
            recv(self.0.quiet) -> _ => true,
            default(deadline.left()) => false,
        }
    }

    /// The deadline has passed: whatever is still running, its outcome is thrown away.
    pub(crate) fn cut(&self) {
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
    pub(crate) fn quiet(&self) -> &OverSignal {
        &self.0.quiet
    }

    /// What the drain left behind. Of a consumer thread that is stuck in a call only what can be seen from outside.
    pub(crate) fn stranded(&self) -> Vec<StrandedDelivery> {
        match &*self.0.end.lock() {
            Some(end) => end.stranded.clone(),
            None => self.0.in_flight.stranded(&self.0.queue),
        }
    }
}

impl Shared {
    /// A new subscription begins. It finds a stop that came before it.
    fn begin_generation(&self) -> Arc<Generation> {
        let generation = Arc::new(Generation::new());
        *self.generation.lock() = Some(generation.clone());
        generation
    }

    fn become_quiet(&self) {
        self.busy.lock().take();
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

/// How a queue is consumed. Made by [`Connection::consumer`](crate::Connection::consumer); [`start`](Self::start) ends it.
#[must_use = "a consumer does nothing until it is started"]
pub struct ConsumerBuilder<'a, C = Json> {
    connection: &'a dyn Registrar,
    queue: String,
    codec: C,
    policy: RetryPolicy,
    threshold: Duration,
    concurrency: u32,
    prefetch: Option<u32>,
    declare: bool,
    never_reject: bool,
}

/// What becomes of a message that can neither be handled nor set aside.
///
/// That is so when its dead-letter or parked queue is gone and cannot be declared again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetAsideFailure {
    /// It is rejected: it ends once and visibly, in the queue's own dead-letter exchange if it has one, and is lost
    /// otherwise. The default.
    #[default]
    Reject,
    /// It is handed back, paced, for as long as it takes.
    Requeue,
}

impl<'a> ConsumerBuilder<'a> {
    pub(crate) fn new(
        connection: &'a dyn Registrar,
        queue: String,
        policy: RetryPolicy,
        threshold: Duration,
    ) -> Self {
        Self {
            connection,
            queue,
            codec: Json,
            policy,
            threshold,
            concurrency: 1,
            prefetch: None,
            declare: true,
            never_reject: false,
        }
    }
}

impl<'a, C> ConsumerBuilder<'a, C> {
    /// How many handlers run at a time. Defaults to 1, which keeps the queue's order but for retries.
    pub fn concurrency(mut self, handlers: u32) -> Self {
        self.concurrency = handlers;
        self
    }

    /// How many deliveries may be unsettled, waiting ones included, from 1 to 65535. Defaults to 20, or to the concurrency
    /// if that is larger.
    ///
    /// A delivery that is held for 30 minutes makes RabbitMQ close the channel: prefetch × handler time / concurrency must
    /// stay well below that.
    pub fn prefetch(mut self, deliveries: u32) -> Self {
        self.prefetch = Some(deliveries);
        self
    }

    /// When failed messages are tried again. Defaults to the connection's policy, which defaults to
    /// [`RetryPolicy::none`].
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// From this delay on a retry waits on the broker, in a rung; shorter ones wait in the consumer. Zero is never on the
    /// broker. Defaults to the connection's threshold, which defaults to 30 s. It must be the one that the topology has.
    pub fn retry_threshold(mut self, threshold: Duration) -> Self {
        self.threshold = threshold;
        self
    }

    /// Whether the consumer declares its dead-letter and parked queues and its rungs before it subscribes. Defaults to
    /// true.
    pub fn declare(mut self, declare: bool) -> Self {
        self.declare = declare;
        self
    }

    /// What becomes of a message that cannot be set aside. Defaults to [`SetAsideFailure::Reject`].
    pub fn on_set_aside_failure(mut self, failure: SetAsideFailure) -> Self {
        self.never_reject = failure == SetAsideFailure::Requeue;
        self
    }

    /// How bodies become payloads. Defaults to [`Json`].
    pub fn codec<D>(self, codec: D) -> ConsumerBuilder<'a, D> {
        ConsumerBuilder {
            connection: self.connection,
            queue: self.queue,
            codec,
            policy: self.policy,
            threshold: self.threshold,
            concurrency: self.concurrency,
            prefetch: self.prefetch,
            declare: self.declare,
            never_reject: self.never_reject,
        }
    }

    /// Declares the consumer's share, subscribes, and calls `handle` for every delivery, on the library's threads.
    ///
    /// # Errors
    ///
    /// Options that make no sense; names too long for AMQP; a source queue that does not exist; anything the broker
    /// refuses, with its own words; a connection that is closed or lost. Nothing is consumed then.
    pub fn start<T, R, F>(self, handle: F) -> Result<Consumer, Error>
    where
        C: Decode<T>,
        T: 'static,
        R: Answer,
        F: Fn(Message<T>) -> R + Send + Sync + 'static,
    {
        let settings = self.settings()?;
        subscription::start(self.connection, settings, handler(self.codec, handle))
    }

    fn settings(&self) -> Result<Settings, Error> {
        let wrong =
            |what: String| Error::Configuration(format!("consumer of {:?}: {what}", self.queue));
        let prefetch = self
            .prefetch
            .unwrap_or(DEFAULT_PREFETCH.max(self.concurrency));
        if self.concurrency == 0 {
            return Err(wrong(
                "concurrency is 0, so no handler would ever run".to_owned(),
            ));
        }
        if prefetch == 0 || prefetch > MOST_PREFETCH {
            return Err(wrong(format!(
                "prefetch is {prefetch}, not from 1 to {MOST_PREFETCH}"
            )));
        }
        if prefetch < self.concurrency {
            let concurrency = self.concurrency;
            return Err(wrong(format!(
                "prefetch {prefetch} is below concurrency {concurrency}: handlers would be idle"
            )));
        }
        if self.queue.is_empty() {
            return Err(wrong("a consumer needs the name of a queue".to_owned()));
        }
        let ladder = RetryLadder::new(self.queue.as_str(), &self.policy, self.threshold)?;
        naming::check("dead-letter queue", &naming::dead_letter_queue(&self.queue))?;
        naming::check("parked queue", &naming::parked_queue(&self.queue))?;
        Ok(Settings {
            queue: self.queue.as_str().into(),
            policy: self.policy.clone(),
            ladder,
            threshold: self.threshold,
            concurrency: self.concurrency as usize,
            prefetch: u16::try_from(prefetch).unwrap_or(u16::MAX),
            declare: self.declare,
            never_reject: self.never_reject,
        })
    }
}

impl<C> fmt::Debug for ConsumerBuilder<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerBuilder")
            .field("queue", &self.queue)
            .field("policy", &self.policy)
            .field("concurrency", &self.concurrency)
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}
