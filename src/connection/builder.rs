//! The builder of connections: its options, and the parts that an open connection starts.

use super::state::ConnectionState;
use super::supervisor::{Supervisor, SupervisorSettings, open_uplink};
use super::{Connection, ConnectionSettings, Core, Handle};
#[cfg(any(test, feature = "testing"))]
use crate::broker::{self, MemoryTransport, MemoryUrl};
use crate::consumer::Services;
use crate::error::Error;
use crate::link::{Backoff, Dialler, Sockets};
use crate::metrics::{Metrics, Observer};
use crate::publisher::{Publisher, PublisherSettings};
use crate::retry::{DEFAULT_THRESHOLD, RetryPolicy};
use crate::time::clock::{Clock, SystemClock};
use crate::transport::Transport;
#[cfg(feature = "tls")]
use crate::transport::amqp::tls::TlsOptions;
use crate::transport::amqp::{AmqpTransport, BrokerUrl};
use crossbeam_channel::unbounded;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_RECOVERY_BACKOFF: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(30));

/// The options of a connection, from [`Connection::builder`] to [`open`](Self::open).
///
/// ```no_run
/// use rungmq::{Connection, RetryPolicy};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mq = Connection::builder("amqp://guest:guest@localhost:5672")
///     .origin("checkout@pod-7")
///     .retry_policy(RetryPolicy::exponential(5, Duration::from_secs(1), Duration::from_secs(60))?)
///     .confirm_timeout(Duration::from_secs(5))
///     .open()?;
/// # let _ = mq;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it is opened"]
pub struct ConnectionBuilder {
    url: String,
    hosts: Vec<String>,
    origin: Option<String>,
    policy: RetryPolicy,
    threshold: Duration,
    prefetch: Option<u32>,
    confirm_timeout: Duration,
    connect_timeout: Option<Duration>,
    heartbeat: Option<Duration>,
    recovery_backoff: (Duration, Duration),
    recovery_attempts: Option<u32>,
    metrics: Metrics,
    #[cfg(feature = "tls")]
    tls: TlsOptions,
}

impl ConnectionBuilder {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            hosts: Vec::new(),
            origin: None,
            policy: RetryPolicy::none(),
            threshold: DEFAULT_THRESHOLD,
            prefetch: None,
            confirm_timeout: DEFAULT_CONFIRM_TIMEOUT,
            connect_timeout: None,
            heartbeat: None,
            recovery_backoff: DEFAULT_RECOVERY_BACKOFF,
            recovery_attempts: None,
            metrics: Metrics::default(),
            #[cfg(feature = "tls")]
            tls: TlsOptions::default(),
        }
    }

    /// Sets further addresses, `host` or `host:port`, which use the URL's login and default to its
    /// port. Defaults to none.
    ///
    /// Each attempt to connect tries every address in turn: the URL's own first, later the one that
    /// answered last.
    ///
    /// An embedded broker (`memory://`) has no further addresses; with them, [`open`](Self::open)
    /// fails with [`Error::Configuration`].
    pub fn hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.hosts = hosts.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the origin of published messages, their header `x-acemq-origin`, as `service@host`.
    /// Defaults to `rungmq@{hostname}`.
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.origin = Some(origin.into());
        self
    }

    /// Sets the retry policy of consumers without their own. Defaults to [`RetryPolicy::none`].
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the delay from which on a retry waits on the broker, for consumers without their own
    /// threshold. Defaults to 30 s. With zero no retry waits on the broker.
    pub fn retry_threshold(mut self, threshold: Duration) -> Self {
        self.threshold = threshold;
        self
    }

    /// Sets the prefetch of consumers without their own, from 1 to 65535 deliveries. Defaults to
    /// 20, or to the consumer's concurrency if that is larger.
    pub fn prefetch(mut self, deliveries: u32) -> Self {
        self.prefetch = Some(deliveries);
        self
    }

    /// Sets how long a publish, or a copy of a delivery, waits for the broker's confirm after it is
    /// sent. Defaults to 10 s. After a timeout it is unknown whether the broker has the message.
    pub fn confirm_timeout(mut self, timeout: Duration) -> Self {
        self.confirm_timeout = timeout;
        self
    }

    /// Sets the timeout of one attempt to connect to one address, and of each call that waits for
    /// the broker, such as to declare, check or pull. Defaults to the URL's `connection_timeout`,
    /// else to 10 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Sets the heartbeat interval to request, rounded up to whole seconds; the broker may impose a
    /// shorter one. Defaults to the URL's `heartbeat`, else to 10 s.
    ///
    /// A dead peer is detected after about two intervals. Zero turns heartbeats off: a dead peer is
    /// then detected only by a call without an answer.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = Some(interval);
        self
    }

    /// Sets the pauses between attempts to recover a lost connection: `first`, doubling up to
    /// `longest`, with a jitter of ±20 %. Defaults to 0.5 s and 30 s; the minimum is 10 ms.
    ///
    /// The first attempt has no pause, unless the connection is lost again soon after it came up.
    pub fn recovery_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.recovery_backoff = (first, longest);
        self
    }

    /// Limits the attempts in a row to recover a lost connection, each of which tries every
    /// address. Defaults to no limit; with 0 a lost connection is not recovered.
    ///
    /// After the last attempt the connection counts as closed, and [`Connection::wait`] returns the
    /// reason.
    pub fn recovery_attempts(mut self, attempts: u32) -> Self {
        self.recovery_attempts = Some(attempts);
        self
    }

    /// Adds an observer, which receives every metrics event. There is none by default.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.metrics.add(observer);
        self
    }

    /// Sets how `amqps://` connections verify the broker. Defaults to the system's certificate
    /// authorities.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.tls = options;
        self
    }

    /// Opens the connection.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] when the URL, an option or a certificate file cannot be used, or a
    /// thread fails to start. [`Error::Connect`] when the client cannot connect and log in at any
    /// address within the timeout; it names the last address and the reason. RabbitMQ takes some
    /// seconds to refuse a wrong password.
    pub fn open(self) -> Result<Connection, Error> {
        let configuration = |error: &dyn fmt::Display| Error::Configuration(error.to_string());
        if is_embedded(&self.url) {
            return self.open_embedded();
        }
        let mut url = BrokerUrl::parse(&self.url).map_err(|error| configuration(&error))?;
        if let Some(interval) = self.heartbeat {
            // AMQP negotiates whole seconds; rounding down could turn heartbeats off.
            let seconds = interval.as_millis().div_ceil(1000);
            url.heartbeat = u16::try_from(seconds)
                .map_err(|_| configuration(&"the heartbeat is longer than 65535 s"))?;
        }
        let limit = self.call_timeout(url.connection_timeout);
        let mut urls = vec![url.clone()];
        for host in &self.hosts {
            urls.push(url.at(host).map_err(|error| configuration(&error))?);
        }
        let transports = urls
            .into_iter()
            .map(|url| self.transport(url))
            .collect::<Result<Vec<_>, _>>()?;
        self.connect(transports, limit, SystemClock::shared())
    }

    #[cfg(not(any(test, feature = "testing")))]
    fn open_embedded(self) -> Result<Connection, Error> {
        let text = "a memory:// URL needs the feature `testing` of rungmq".to_owned();
        Err(Error::Configuration(text))
    }

    #[cfg(any(test, feature = "testing"))]
    fn open_embedded(self) -> Result<Connection, Error> {
        let url = MemoryUrl::parse(&self.url).map_err(Error::Configuration)?;
        if !self.hosts.is_empty() {
            let text = "an embedded broker has no further addresses".to_owned();
            return Err(Error::Configuration(text));
        }
        let broker = broker::named(&url.name, url.profile).map_err(Error::Configuration)?;
        // On a broker with a test clock, the connection shares that clock.
        let clock = broker.clock().clone();
        let transport = MemoryTransport {
            broker,
            heartbeat: self.heartbeat.unwrap_or(url.heartbeat),
            channel_max: url.channel_max.filter(|most| *most > 0).unwrap_or(u16::MAX),
        };
        let limit = self.call_timeout(url.connection_timeout);
        self.connect(vec![Arc::new(transport)], limit, clock)
    }

    /// Dials the first link, and starts the publisher and the supervisor. `limit` bounds each
    /// attempt to connect and each call.
    fn connect(
        self,
        transports: Vec<Arc<dyn Transport>>,
        limit: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Connection, Error> {
        let sockets = Sockets::default();
        let dialler = Dialler::new(transports, limit, sockets.clone(), clock.clone());
        let dialler = Arc::new(dialler);
        let commands = unbounded();
        let uplink =
            open_uplink(&dialler, limit, 0, &commands.0).map_err(|error| Error::Connect {
                address: error.address,
                reason: error.reason,
            })?;
        let (first, longest) = self.recovery_backoff;
        let backoff = Backoff::new(first, longest);
        let (publisher, publisher_ended) = Publisher::start(PublisherSettings {
            dialler: dialler.clone(),
            clock: clock.clone(),
            metrics: self.metrics.clone(),
            confirm_timeout: self.confirm_timeout,
            connect_timeout: limit,
            backoff,
            view: Arc::default(),
            writing: Arc::default(),
        })?;
        let services = Services {
            publisher,
            clock: clock.clone(),
            metrics: self.metrics,
            call_timeout: limit,
        };
        let state = ConnectionState::new(commands.0.clone(), uplink.clone(), clock);
        let supervisor = SupervisorSettings {
            commands,
            state: state.clone(),
            services: services.clone(),
            dialler,
            sockets,
            publisher_ended,
            backoff,
            max_attempts: self.recovery_attempts,
        };
        Supervisor::start(supervisor, uplink)?;
        let settings = ConnectionSettings {
            origin: self.origin.unwrap_or_else(default_origin),
            policy: self.policy,
            threshold: self.threshold,
            prefetch: self.prefetch,
        };
        let core = Arc::new(Core {
            settings,
            services,
            state,
        });
        Ok(Connection(Arc::new(Handle { core })))
    }

    fn call_timeout(&self, of_url: Option<Duration>) -> Duration {
        self.connect_timeout
            .or(of_url)
            .unwrap_or(DEFAULT_CONNECT_TIMEOUT)
    }

    fn transport(&self, url: BrokerUrl) -> Result<Arc<dyn Transport>, Error> {
        #[cfg(not(feature = "tls"))]
        if url.tls {
            let text = "an amqps:// URL needs the feature `tls` of rungmq".to_owned();
            return Err(Error::Configuration(text));
        }
        Ok(Arc::new(AmqpTransport {
            information: format!("rungmq {}", env!("CARGO_PKG_VERSION")),
            #[cfg(feature = "tls")]
            tls: url
                .tls
                .then(|| self.tls.config())
                .transpose()
                .map_err(Error::Configuration)?,
            url,
        }))
    }
}

/// Whether the URL is that of an embedded broker.
fn is_embedded(url: &str) -> bool {
    url.trim()
        .split_once("://")
        .is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("memory"))
}

impl fmt::Debug for ConnectionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionBuilder")
            .field("origin", &self.origin)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

fn default_origin() -> String {
    let host = gethostname::gethostname().to_string_lossy().into_owned();
    format!("rungmq@{}", if host.is_empty() { "unknown" } else { &host })
}
