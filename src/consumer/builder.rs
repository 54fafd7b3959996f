//! The builder of a consumer: its options, their defaults, and their validation.

use super::{Consumer, Registrar, Settings, thread};
use crate::error::Error;
use crate::handler::Answer;
use crate::handler::calling::handler;
use crate::message::Message;
use crate::message::codec::{Decode, Json};
use crate::naming;
use crate::retry::{RetryLadder, RetryPolicy};
use crate::time::deadline::Deadline;
use std::fmt;
use std::time::Duration;

/// Default prefetch; a larger concurrency replaces it.
const DEFAULT_PREFETCH: u32 = 20;
/// Half of RabbitMQ's own timeout for an unsettled delivery.
const DEFAULT_LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);
/// The limit of the 16-bit field in `basic.qos`, where 0 means no limit.
const MOST_PREFETCH: u32 = 65_535;

/// Configures a consumer. Created by [`Connection::consumer`](crate::Connection::consumer), used up
/// by [`start`](Self::start).
///
/// ```no_run
/// use rungmq::{Ack, Connection, Message, RetryPolicy, Text};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mq = Connection::open("amqp://localhost")?;
/// let consumer = mq
///     .consumer("orders.new")
///     .concurrency(8)
///     .prefetch(64)
///     .retry_policy(RetryPolicy::fixed(3, Duration::from_secs(60))?)
///     .codec(Text)
///     .start(|order: Message<String>| match order.payload().as_str() {
///         "" => Ack::reject("an order has to name an item"),
///         _ => Ack::accept(),
///     })?;
/// consumer.cancel(Duration::from_secs(20))?;
/// # Ok(())
/// # }
/// ```
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
    longest_wait: Duration,
}

/// What becomes of a message that cannot be set aside.
///
/// A message cannot be set aside when its dead-letter or parked queue is missing and cannot be
/// declared again, or when the user may not publish to the default exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetAsideFailure {
    /// Reject the message. It goes to the queue's own dead-letter exchange, and is lost when there
    /// is none. The default.
    #[default]
    Reject,
    /// Requeue the message, with growing pauses, until it can be set aside. On a quorum queue each
    /// requeue counts against the delivery limit.
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
            longest_wait: DEFAULT_LONGEST_WAIT,
        }
    }
}

impl<'a, C> ConsumerBuilder<'a, C> {
    /// Number of handlers that run at a time. Defaults to 1, which preserves the queue's order
    /// except for retries.
    pub fn concurrency(mut self, handlers: u32) -> Self {
        self.concurrency = handlers;
        self
    }

    /// Limit of unsettled deliveries, including those that wait, from 1 to 65535. Defaults to 20,
    /// or to the concurrency if that is larger.
    ///
    /// RabbitMQ closes the channel of a delivery that stays unsettled for 30 minutes, so prefetch ×
    /// handler time / concurrency must stay well below that.
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

    /// The delay from which a retry waits on the broker, in a rung (a retry queue); shorter delays
    /// wait in the consumer. Zero keeps all waits in the consumer. Defaults to the connection's
    /// threshold, which defaults to 30 s. It must equal the threshold of the topology.
    ///
    /// Waits in the consumer are capped, see [`longest_wait`](Self::longest_wait).
    pub fn retry_threshold(mut self, threshold: Duration) -> Self {
        self.threshold = threshold;
        self
    }

    /// The longest wait of a retry in the consumer. Defaults to 15 min.
    ///
    /// RabbitMQ closes the channel of a delivery that stays unsettled for 30 minutes. A longer
    /// delay is capped, with a warning, and the next attempt comes early.
    pub fn longest_wait(mut self, wait: Duration) -> Self {
        self.longest_wait = wait;
        self
    }

    /// Whether the consumer declares its dead-letter and parked queues and its rungs before it
    /// subscribes. Defaults to true.
    ///
    /// With false it still declares a dead-letter or parked queue again when a copy to it is
    /// returned.
    pub fn declare(mut self, declare: bool) -> Self {
        self.declare = declare;
        self
    }

    /// What becomes of a message that cannot be set aside. Defaults to [`SetAsideFailure::Reject`].
    pub fn on_set_aside_failure(mut self, failure: SetAsideFailure) -> Self {
        self.never_reject = failure == SetAsideFailure::Requeue;
        self
    }

    /// The codec that decodes bodies into payloads. Defaults to [`Json`].
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
            longest_wait: self.longest_wait,
        }
    }

    /// Declares the consumer's queues, subscribes, and calls `handle` for every delivery on the
    /// library's threads. Returns once the broker has accepted the subscription.
    ///
    /// # Errors
    ///
    /// Nothing is consumed after an error.
    ///
    /// - [`Error::Configuration`]: contradictory or out-of-range options.
    /// - [`Error::Ladder`], [`Error::NameTooLong`]: invalid rungs, or names too long for AMQP.
    /// - [`Error::Broker`]: the source queue does not exist, or the broker refuses something else;
    ///   its own text is included.
    /// - [`Error::Timeout`], [`Error::ConnectionLost`], [`Error::Closed`], [`Error::OwnThread`].
    pub fn start<T, R, F>(self, handle: F) -> Result<Consumer, Error>
    where
        C: Decode<T>,
        T: 'static,
        R: Answer,
        F: Fn(Message<T>) -> R + Send + Sync + 'static,
    {
        let settings = self.settings()?;
        thread::start(self.connection, settings, handler(self.codec, handle))
    }

    /// Starts `size` consumers that share one handler. When one fails to start, the earlier ones
    /// are stopped.
    pub(crate) fn start_members<T, R, F>(
        self,
        size: usize,
        handle: F,
    ) -> Result<Vec<Consumer>, Error>
    where
        C: Decode<T>,
        T: 'static,
        R: Answer,
        F: Fn(Message<T>) -> R + Send + Sync + 'static,
    {
        let settings = self.settings()?;
        let handler = handler(self.codec, handle);
        let mut members: Vec<Consumer> = Vec::with_capacity(size);
        for number in 1..=size {
            let label = format!("{}#{number}", settings.label).into();
            let settings = Settings {
                label,
                ..settings.clone()
            };
            match thread::start(self.connection, settings, handler.clone()) {
                Ok(member) => members.push(member),
                Err(error) => {
                    let now = Deadline::within(Duration::ZERO);
                    members.iter().for_each(|member| member.stop(now));
                    return Err(error);
                }
            }
        }
        Ok(members)
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
            // The label is part of thread names, which cannot contain a NUL.
            label: self.queue.replace('\0', "\u{2400}").into(),
            policy: self.policy.clone(),
            ladder,
            threshold: self.threshold,
            concurrency: self.concurrency as usize,
            prefetch: u16::try_from(prefetch).unwrap_or(u16::MAX),
            declare: self.declare,
            never_reject: self.never_reject,
            longest_wait: self.longest_wait,
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
