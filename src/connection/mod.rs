//! The connection: the handle that a service holds, and the parts that it opens.
//!
//! The public handles share one `Handle`, and through it the core; the supervisor and the owner
//! threads share the core's parts but never a handle, so the drop of the last handle closes.

mod builder;
mod declare;
mod fetch;
mod group;
mod health;
mod shutdown;
mod state;
mod supervisor;

pub use builder::ConnectionBuilder;
pub use group::{ConsumerGroup, RunningGroup};
pub use health::{Health, HealthStatus};

use crate::consumer::{Consumer, ConsumerBuilder, Registrar, Services};
use crate::error::Error;
use crate::handler::Answer;
use crate::link::Uplink;
use crate::message::Message;
use crate::message::delivery::Outgoing;
use crate::message::envelope::Envelope;
use crate::message::publish::Publish;
use crate::message::publish::error::{PublishError, PublishErrorKind};
use crate::retry::RetryPolicy;
use crate::time::deadline::Deadline;
use serde::Serialize;
use serde::de::DeserializeOwned;
use state::{ConnectionState, Phase};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The timeout of [`Connection::close`].
const DEFAULT_CLOSE_TIMEOUT: Duration = Duration::from_secs(20);
/// How many messages of [`Connection::publish_all`] are encoded at a time, which bounds its memory.
const BATCH_SIZE: usize = 1024;

/// A connection to RabbitMQ: publishes, consumes, declares, and closes by a deadline.
///
/// It is a cheap handle: clones are the same connection, and any thread may use it. It has two
/// sockets, so that acknowledgements are never stuck behind publishes that the broker has blocked;
/// the publishing socket is opened when it is first needed.
///
/// Dropping the last handle without [`close`](Self::close) stops everything immediately, like
/// `close_within(Duration::ZERO)`, and takes a second at most; unsettled deliveries are
/// redelivered. A handler that holds a clone keeps the connection open until its consumer has
/// ended.
///
/// A lost connection is recovered, and its consumers subscribe again; until then calls are refused.
/// See [`recovery_backoff`](ConnectionBuilder::recovery_backoff) and [`health`](Self::health).
///
/// ```no_run
/// use rungmq::{Ack, Connection, Message};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mq = Connection::open("amqp://localhost")?;
/// mq.consume("orders.new", |message: Message<String>| {
///     println!("{}", message.payload());
///     Ack::accept() // an Err or Ack::retry, without a retry policy, goes to the dead-letter queue
/// })?;
/// mq.wait()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Connection(Arc<Handle>);

/// Shared by the public handles only, so that its drop is that of the last handle.
struct Handle {
    core: Arc<Core>,
}

/// What every call on a handle uses.
struct Core {
    settings: ConnectionSettings,
    services: Services,
    state: ConnectionState,
}

struct ConnectionSettings {
    origin: String,
    policy: RetryPolicy,
    threshold: Duration,
    prefetch: Option<u32>,
}

impl Connection {
    /// Connects with every option at its default.
    ///
    /// # Errors
    ///
    /// Those of [`ConnectionBuilder::open`].
    pub fn open(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder(url).open()
    }

    /// Configures a connection to `url`: `amqp://user:password@host:port/virtual-host`, or
    /// `amqps://` with the feature `tls`.
    ///
    /// Missing parts have RabbitMQ's defaults: `guest`, `localhost`, 5672 (5671 for TLS), `/`.
    /// Parameters are `heartbeat` (s), `channel_max`, `connection_timeout` (ms) and
    /// `auth_mechanism=external`.
    ///
    /// `memory://name` is the embedded broker of that name in this process, which starts with its
    /// first connection: see [`testing`](crate::testing). It takes the first three of these
    /// parameters, and `profile`.
    pub fn builder(url: impl Into<String>) -> ConnectionBuilder {
        ConnectionBuilder::new(url.into())
    }

    /// Publishes a JSON payload to an exchange, waits for the broker's confirm, and returns the
    /// message's envelope.
    ///
    /// The message is persistent. Without [`Publish::mandatory`] the broker drops a message that no
    /// queue takes, which is not an error.
    ///
    /// Once the message is sent, the call waits at most for the [confirm
    /// timeout](ConnectionBuilder::confirm_timeout). A message that cannot be sent within that plus
    /// the [connect timeout](ConnectionBuilder::connect_timeout) is refused; while the broker has
    /// blocked the connection it is refused immediately.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]: its predicates tell whether the broker may have the message, and it
    /// returns the message.
    pub fn publish<T: Serialize + ?Sized>(
        &self,
        exchange: &str,
        routing_key: &str,
        payload: &T,
    ) -> Result<Envelope, PublishError> {
        let message = Publish::json(payload).map_err(|error| PublishError::encoding(&error))?;
        self.publish_with(message.exchange(exchange).routing_key(routing_key))
    }

    /// Publishes a message, waits for the broker's confirm, and returns the message's envelope.
    ///
    /// # Errors
    ///
    /// See [`PublishError`].
    pub fn publish_with(&self, message: Publish) -> Result<Envelope, PublishError> {
        let (envelope, outgoing) = match self.prepare(&message) {
            Ok(prepared) => prepared,
            Err(kind) => return Err(PublishError::new(kind, Some(message))),
        };
        match PublishErrorKind::of(self.0.core.services.publisher.publish(outgoing)) {
            None => Ok(envelope),
            Some(kind) => Err(PublishError::new(kind, Some(message))),
        }
    }

    /// Publishes many messages, with many in flight at a time, and waits for the result of each.
    ///
    /// The results are in the order of the messages. A message that fails does not affect the
    /// others.
    pub fn publish_all(
        &self,
        messages: impl IntoIterator<Item = Publish>,
    ) -> Vec<Result<Envelope, PublishError>> {
        let mut results = Vec::new();
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            results.extend(self.publish_batch(messages.by_ref().take(BATCH_SIZE).collect()));
        }
        results
    }

    fn publish_batch(&self, messages: Vec<Publish>) -> Vec<Result<Envelope, PublishError>> {
        let mut outgoing = Vec::with_capacity(messages.len());
        let mut prepared = Vec::with_capacity(messages.len());
        for message in messages {
            prepared.push(match self.prepare(&message) {
                Ok((envelope, ready)) => {
                    outgoing.push(ready);
                    Ok((message, envelope))
                }
                Err(kind) => Err(PublishError::new(kind, Some(message))),
            });
        }
        // The publisher answers in the order of `outgoing`, which skips the messages that failed
        // above.
        let publisher = &self.0.core.services.publisher;
        let mut answers = publisher.publish_all(outgoing).into_iter();
        let mut finish = |(message, envelope)| match answers.next().and_then(PublishErrorKind::of) {
            None => Ok(envelope),
            Some(kind) => Err(PublishError::new(kind, Some(message))),
        };
        prepared
            .into_iter()
            .map(|prepared| prepared.and_then(&mut finish))
            .collect()
    }

    fn prepare(&self, message: &Publish) -> Result<(Envelope, Outgoing), PublishErrorKind> {
        let core = &self.0.core;
        let uplink = core.state.uplink();
        let uplink = uplink.map_err(|error| {
            // The message does not reach the publisher, so its refusal is counted here.
            core.services
                .publisher
                .count_refused(message.target_exchange());
            PublishErrorKind::NotSent(error.to_string())
        })?;
        let now = core.services.clock.epoch_millis();
        message.outgoing(&core.settings.origin, now, uplink.link.frame_max())
    }

    /// Consumes a queue with every option at its default: calls `handle` for each delivery, one at
    /// a time, with the decoded JSON payload.
    ///
    /// The return value settles the message: `()` or `Ok` accepts it, `Err` retries it by the retry
    /// policy, and an [`Ack`](crate::Ack) chooses precisely. A panic counts as an error. Without a
    /// [policy](ConnectionBuilder::retry_policy) the first `Err` sends the message to the
    /// dead-letter queue.
    ///
    /// The error is any type that converts into `Box<dyn Error + Send + Sync>`: that box itself (a
    /// `Box<dyn Error>` does not convert), `anyhow::Error`, or any error that is `Send + Sync`.
    ///
    /// Other payloads need [`ConsumerBuilder::codec`] with [`Text`](crate::Text) or
    /// [`Bytes`](crate::Bytes). A payload that cannot be decoded goes to the parked queue.
    ///
    /// # Errors
    ///
    /// Those of [`ConsumerBuilder::start`].
    pub fn consume<T, R, F>(&self, queue: &str, handle: F) -> Result<Consumer, Error>
    where
        T: DeserializeOwned + 'static,
        R: Answer,
        F: Fn(Message<T>) -> R + Send + Sync + 'static,
    {
        self.consumer(queue).start(handle)
    }

    /// Configures a consumer of a queue: its concurrency, prefetch, retry policy and codec.
    pub fn consumer(&self, queue: impl Into<String>) -> ConsumerBuilder<'_> {
        let settings = &self.0.core.settings;
        let builder = ConsumerBuilder::new(
            &*self.0.core,
            queue.into(),
            settings.policy.clone(),
            settings.threshold,
        );
        match settings.prefetch {
            Some(prefetch) => builder.prefetch(prefetch),
            None => builder,
        }
    }

    /// Whether the connection is up: neither lost, nor closing, nor closed.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.0.core.state.phase() == Phase::Up
    }

    /// Closes with a timeout of 20 s. See [`close_within`](Self::close_within).
    ///
    /// # Errors
    ///
    /// Those of [`close_within`](Self::close_within).
    pub fn close(&self) -> Result<(), Error> {
        self.close_within(DEFAULT_CLOSE_TIMEOUT)
    }

    /// Stops every consumer, lets running handlers finish, and closes, all within `timeout`, or at
    /// most a second later when the broker does not answer. `Duration::ZERO` does not wait for
    /// handlers.
    ///
    /// Deliveries that have not started are requeued, and so are messages that wait in a worker for
    /// their next attempt; the attempt of each stays the same. A handler that returns before the
    /// deadline is settled as usual. One that is still running then keeps running in its thread,
    /// and its outcome is discarded.
    ///
    /// Any thread may call it, also one that waits for signals. When the connection has already
    /// ended, the call returns `Ok` immediately. When another call is closing it, both wait by the
    /// earlier deadline, and one of them returns the error.
    ///
    /// A handler may call it, too: the call does not wait for that handler's own delivery.
    ///
    /// # Errors
    ///
    /// [`Error::Drain`] names the deliveries that were left behind, which the broker redelivers.
    /// [`Error::OwnThread`] on a thread of the library that runs no handler, such as an observer's.
    pub fn close_within(&self, timeout: Duration) -> Result<(), Error> {
        self.0.core.state.close(Deadline::within(timeout))
    }

    /// Blocks until any thread has closed the connection. The result of the close goes to its
    /// caller. The recovery of a lost connection does not end the wait.
    ///
    /// # Errors
    ///
    /// [`Error::ConnectionLost`] when recovery was given up; [`Error::OwnThread`] as for
    /// [`close_within`](Self::close_within).
    pub fn wait(&self) -> Result<(), Error> {
        self.0.core.state.wait()
    }
}

impl Registrar for Core {
    fn services(&self) -> Result<(Services, Uplink), Error> {
        let uplink = self.state.uplink()?;
        match self.state.phase() {
            // While the connection closes it can publish, but no consumer may start.
            Phase::Closing => Err(Error::Closed),
            _ => Ok((self.services.clone(), uplink)),
        }
    }

    fn register(&self, consumer: &Consumer) {
        self.state.register(consumer);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.state.abandon();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("running", &self.is_running())
            .finish_non_exhaustive()
    }
}
