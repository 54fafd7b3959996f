//! The connection: the handle that a service holds, and what stands behind it.

pub(crate) mod declare;
pub(crate) mod health_report;
pub(crate) mod state;

mod builder;
mod fetch;
mod group;
mod health;
mod supervisor;

pub use builder::ConnectionBuilder;
pub use group::{ConsumerGroup, RunningGroup};

use crate::consumer::{Consumer, ConsumerBuilder, Registrar, Services};
use crate::error::Error;
use crate::handler::Answer;
use crate::link::{Backoff, Dialler, Sockets, Uplink};
use crate::message::Message;
use crate::message::delivery::Outgoing;
use crate::message::envelope::Envelope;
use crate::message::publish::Publish;
use crate::message::publish::error::{PublishError, PublishErrorKind};
use crate::publisher::{Publisher, PublisherSettings};
use crate::retry::RetryPolicy;
use crate::time::clock::Clock;
use crate::time::deadline::Deadline;
use crate::transport::Transport;
use crossbeam_channel::unbounded;
use serde::Serialize;
use serde::de::DeserializeOwned;
use state::{Phase, Status};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use supervisor::{Supervisor, open_uplink};

/// What [`Connection::close`] allows.
const DEFAULT_CLOSE_TIMEOUT: Duration = Duration::from_secs(20);
/// How many publishes of a batch are prepared at a time.
const BATCH: usize = 1024;

/// A connection to RabbitMQ: publishes, consumes, declares, and closes by a deadline.
///
/// A cheap handle: clones are the same connection, and may be used from any thread. It holds two sockets, so that
/// acknowledgements are never stuck behind publishes that the broker has blocked; the one that publishes is opened when it is
/// first needed.
///
/// Dropping the last handle without [`close`](Self::close) stops everything at once, as `close_within(Duration::ZERO)` does,
/// and takes a second at most: unsettled deliveries are delivered again. A handler that holds a clone keeps the connection
/// open until its consumer has ended.
///
/// A connection that is lost is made again, and its consumers subscribe again; until then calls are refused. See
/// [`recovery_backoff`](ConnectionBuilder::recovery_backoff) and [`health`](Self::health).
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

/// The public handles share this; internals never hold it, so that its drop is the end.
struct Handle {
    core: Arc<Core>,
}

/// What the handles and the supervisor share.
struct Core {
    settings: ConnectionSettings,
    services: Services,
    status: Status,
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
    /// As [`ConnectionBuilder::open`].
    pub fn open(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder(url).open()
    }

    /// How a connection to `url` is made: `amqp://user:password@host:port/virtual-host`, or `amqps://` with the feature
    /// `tls`.
    ///
    /// Whatever is missing has RabbitMQ's default: `guest`, `localhost`, 5672 (5671 for TLS), `/`. Parameters are `heartbeat`
    /// (s), `channel_max`, `connection_timeout` (ms) and `auth_mechanism=external`.
    ///
    /// `memory://name` is the embedded broker of that name in this process, made when it is first asked for: see
    /// [`testing`](crate::testing). It takes the first three of these parameters, and `profile`.
    pub fn builder(url: impl Into<String>) -> ConnectionBuilder {
        ConnectionBuilder::new(url.into())
    }

    fn open_over(
        builder: ConnectionBuilder,
        transports: Vec<Arc<dyn Transport>>,
        limit: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let sockets = Sockets::default();
        let dialler = Arc::new(Dialler::new(
            transports,
            limit,
            sockets.clone(),
            clock.clone(),
        ));
        let commands = unbounded();
        let uplink =
            open_uplink(&dialler, limit, 0, &commands.0).map_err(|error| Error::Connect {
                address: error.address,
                reason: error.reason,
            })?;
        let (first, longest) = builder.recovery_backoff;
        let backoff = Backoff::new(first, longest);
        let (publisher, publisher_ended) = Publisher::start(PublisherSettings {
            dialler: dialler.clone(),
            clock: clock.clone(),
            metrics: builder.metrics.clone(),
            confirm_timeout: builder.confirm_timeout,
            connect_timeout: limit,
            backoff,
            view: Arc::default(),
            writing: Arc::default(),
        })?;
        let services = Services {
            publisher: publisher.clone(),
            clock,
            metrics: builder.metrics.clone(),
            call_timeout: limit,
        };
        let status = Status::new(commands.0.clone(), uplink.clone(), services.clock.clone());
        let supervisor = Supervisor {
            commands,
            status: status.clone(),
            dialler,
            sockets,
            publisher,
            publisher_ended,
            clock: services.clock.clone(),
            metrics: builder.metrics,
            call_timeout: limit,
            backoff,
            attempts: builder.recovery_attempts,
        };
        supervisor.start(uplink)?;
        let settings = ConnectionSettings {
            origin: builder.origin.unwrap_or_else(default_origin),
            policy: builder.policy,
            threshold: builder.threshold,
            prefetch: builder.prefetch,
        };
        let core = Arc::new(Core {
            settings,
            services,
            status,
        });
        Ok(Self(Arc::new(Handle { core })))
    }

    /// Publishes a JSON payload to an exchange and waits until the broker has it; returns the message's envelope.
    ///
    /// The message is persistent. Without [`Publish::mandatory`] a message that no queue takes is dropped by the broker and
    /// is no error.
    ///
    /// It waits for the [confirm timeout](ConnectionBuilder::confirm_timeout) at most once the message is sent. A message that
    /// cannot be sent within that and the [connect timeout](ConnectionBuilder::connect_timeout) together is refused, and at once
    /// while the broker has blocked the connection.
    ///
    /// # Errors
    ///
    /// See [`PublishError`]: its predicates tell whether the broker may have the message, and it gives the message back.
    pub fn publish<T: Serialize + ?Sized>(
        &self,
        exchange: &str,
        routing_key: &str,
        payload: &T,
    ) -> Result<Envelope, PublishError> {
        let message = Publish::json(payload).map_err(|error| PublishError::encoding(&error))?;
        self.publish_with(message.exchange(exchange).routing_key(routing_key))
    }

    /// Publishes a message and waits until the broker has it; returns the message's envelope.
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

    /// Publishes many messages, many of them in flight at a time, and waits until each has its answer. The results stand in
    /// the order of the messages; one failure stops none of the others.
    pub fn publish_all(
        &self,
        messages: impl IntoIterator<Item = Publish>,
    ) -> Vec<Result<Envelope, PublishError>> {
        let mut results = Vec::new();
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            results.extend(self.publish_batch(messages.by_ref().take(BATCH).collect()));
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
        let mut answers = self
            .0
            .core
            .services
            .publisher
            .publish_all(outgoing)
            .into_iter();
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
        let uplink = core.status.uplink();
        let uplink = uplink.map_err(|error| {
            core.services
                .publisher
                .count_refused(message.target_exchange());
            PublishErrorKind::NotSent(error.to_string())
        })?;
        let now = core.services.clock.epoch_millis();
        message.outgoing(&core.settings.origin, now, uplink.link.frame_max())
    }

    /// Consumes a queue with every option at its default: `handle` is called for each delivery, one at a time, with the
    /// JSON payload decoded.
    ///
    /// What it returns settles the message: `()` or `Ok` accepts it, `Err` tries it again as the retry policy says, an
    /// [`Ack`](crate::Ack) says precisely what is to become of it. A panic counts as an error. Without a
    /// [policy](ConnectionBuilder::retry_policy) the first `Err` sends the message to the dead-letter queue.
    ///
    /// The error is anything that turns into `Box<dyn Error + Send + Sync>`: that itself (a `Box<dyn Error>` alone does not),
    /// `anyhow::Error`, any error type that is `Send + Sync`.
    ///
    /// For payloads that are not JSON there is [`ConsumerBuilder::codec`] with [`Text`](crate::Text) or
    /// [`Bytes`](crate::Bytes); what cannot be decoded goes to the parked queue.
    ///
    /// # Errors
    ///
    /// As [`ConsumerBuilder::start`].
    pub fn consume<T, R, F>(&self, queue: &str, handle: F) -> Result<Consumer, Error>
    where
        T: DeserializeOwned + 'static,
        R: Answer,
        F: Fn(Message<T>) -> R + Send + Sync + 'static,
    {
        self.consumer(queue).start(handle)
    }

    /// How a queue is consumed: concurrency, prefetch, retry policy, codec.
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

    /// Whether the connection is up: not closed, not closing, not lost.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.0.core.status.phase() == Phase::Up
    }

    /// Closes within 20 s. See [`close_within`](Self::close_within).
    ///
    /// # Errors
    ///
    /// As [`close_within`](Self::close_within).
    pub fn close(&self) -> Result<(), Error> {
        self.close_within(DEFAULT_CLOSE_TIMEOUT)
    }

    /// Stops every consumer, lets running handlers finish, and closes, all of it within `timeout`, and at most a second more
    /// when the broker does not answer. `Duration::ZERO` does not wait for handlers.
    ///
    /// Deliveries that were not started go back to their queues, and so do messages that wait in a worker for their next
    /// attempt, each with its attempt unchanged. A handler that returns before the deadline is settled as always. One that
    /// still runs then runs on in its thread, and its outcome is thrown away.
    ///
    /// Any thread may call it, also one that waits for signals. A second call returns `Ok` at once when the connection
    /// has been closed or given up, and waits with the first when it has not; the earlier deadline counts for both, and one of
    /// them gets the error.
    ///
    /// A handler may call it: its own delivery is not waited for.
    ///
    /// # Errors
    ///
    /// [`Error::Drain`] names the deliveries that were left behind; they will be delivered again. [`Error::OwnThread`] on a
    /// thread of the library that runs no handler, such as an observer's.
    pub fn close_within(&self, timeout: Duration) -> Result<(), Error> {
        self.0.core.status.close(Deadline::within(timeout))
    }

    /// Blocks until the connection has been closed, by any thread. The result of that close is for whoever called it. While a
    /// lost connection is made again it goes on waiting.
    ///
    /// # Errors
    ///
    /// [`Error::ConnectionLost`] when a lost connection was given up; [`Error::OwnThread`] as for [`close_within`](Self::close_within).
    pub fn wait(&self) -> Result<(), Error> {
        self.0.core.status.wait()
    }
}

impl Registrar for Core {
    fn services(&self) -> Result<(Services, Uplink), Error> {
        let uplink = self.status.uplink()?;
        match self.status.phase() {
            Phase::Closing => Err(Error::Closed),
            _ => Ok((self.services.clone(), uplink)),
        }
    }

    fn register(&self, consumer: &Consumer) {
        self.status.register(consumer);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.status.abandon();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("running", &self.is_running())
            .finish_non_exhaustive()
    }
}

fn default_origin() -> String {
    let host = gethostname::gethostname().to_string_lossy().into_owned();
    format!("rungmq@{}", if host.is_empty() { "unknown" } else { &host })
}
