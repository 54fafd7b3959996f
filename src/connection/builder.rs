//! How a connection is made.

use super::Connection;
#[cfg(any(test, feature = "testing"))]
use crate::broker::{self, MemoryTransport, MemoryUrl};
use crate::error::Error;
use crate::metrics::{Metrics, Observer};
use crate::retry::{DEFAULT_THRESHOLD, RetryPolicy};
use crate::time::clock::SystemClock;
use crate::transport::Transport;
#[cfg(feature = "tls")]
use crate::transport::amqp::tls::TlsOptions;
use crate::transport::amqp::{AmqpTransport, BrokerUrl};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_RECOVERY_BACKOFF: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(30));

/// How a connection is made. Made by [`Connection::builder`]; [`open`](Self::open) ends it.
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
#[must_use = "no connection is made until it is opened"]
pub struct ConnectionBuilder {
    url: String,
    hosts: Vec<String>,
    pub(super) origin: Option<String>,
    pub(super) policy: RetryPolicy,
    pub(super) threshold: Duration,
    pub(super) prefetch: Option<u32>,
    pub(super) confirm_timeout: Duration,
    connect_timeout: Option<Duration>,
    heartbeat: Option<Duration>,
    pub(super) recovery_backoff: (Duration, Duration),
    pub(super) recovery_attempts: Option<u32>,
    pub(super) metrics: Metrics,
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

    /// Further addresses, `host` or `host:port`, with the URL's login and, where none is named, its port. Each attempt to
    /// connect tries all of them in turn, the URL's own first, later the one that answered last. There are none by default.
    ///
    /// An embedded broker, `memory://`, has none: to open a connection to it with further addresses is
    /// [`Error::Configuration`].
    pub fn hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.hosts = hosts.into_iter().map(Into::into).collect();
        self
    }

    /// Who publishes, as `service@host`: the `x-acemq-origin` of messages published here. Defaults to `rungmq@{hostname}`.
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.origin = Some(origin.into());
        self
    }

    /// The retry policy of consumers that name none. Defaults to [`RetryPolicy::none`].
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// From this delay on a retry waits on the broker, for consumers that name no threshold. Defaults to 30 s; zero is
    /// never on the broker.
    pub fn retry_threshold(mut self, threshold: Duration) -> Self {
        self.threshold = threshold;
        self
    }

    /// The prefetch of consumers that name none, from 1 to 65535. Defaults to 20, or to the consumer's concurrency if that
    /// is larger.
    pub fn prefetch(mut self, deliveries: u32) -> Self {
        self.prefetch = Some(deliveries);
        self
    }

    /// How long a publish or a copy waits for the broker's confirm once it is sent. Defaults to 10 s. After that it is unknown
    /// whether the broker has the message.
    pub fn confirm_timeout(mut self, timeout: Duration) -> Self {
        self.confirm_timeout = timeout;
        self
    }

    /// How long one attempt to connect to one address may take, and how long each call that waits for the broker (to declare,
    /// to check, to pull). Defaults to the URL's `connection_timeout`, else to 10 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// The heartbeat that is asked for, in whole seconds, rounded up; the broker may insist on a shorter one. A dead peer is
    /// noticed after about twice that. Defaults to the URL's `heartbeat`, else to 10 s. Zero turns heartbeats off: a dead
    /// peer is then noticed only by a call that gets no answer.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = Some(interval);
        self
    }

    /// How long to pause before a lost connection is tried again: `first`, doubling to `longest`, spread by a fifth both
    /// ways. Defaults to 0.5 s and 30 s. The first attempt comes at once, unless the connection is lost a second time soon
    /// after. Less than 10 ms counts as 10 ms.
    pub fn recovery_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.recovery_backoff = (first, longest);
        self
    }

    /// How many attempts in a row are made to recover a lost connection; then it counts as closed, and
    /// [`Connection::wait`] returns the reason. Each tries every address. Defaults to no limit; 0 makes a
    /// loss the end.
    pub fn recovery_attempts(mut self, attempts: u32) -> Self {
        self.recovery_attempts = Some(attempts);
        self
    }

    /// Who hears of everything worth measuring. Nobody does by default; each call adds one.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.metrics.add(observer);
        self
    }

    /// How `amqps://` connections verify the broker. Defaults to the system's certificate authorities.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.tls = options;
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] when the URL, an option or a certificate file cannot be used, or no thread can be started;
    /// [`Error::Connect`] when no address could be reached or logged in to within the limit. It has the last address and
    /// reason; a wrong password takes RabbitMQ some seconds to refuse.
    pub fn open(self) -> Result<Connection, Error> {
        let unusable = |error: &dyn fmt::Display| Error::Configuration(error.to_string());
        if is_embedded(&self.url) {
            return self.open_embedded();
        }
        let mut url = BrokerUrl::parse(&self.url).map_err(|error| unusable(&error))?;
        if let Some(interval) = self.heartbeat {
            let seconds = interval.as_millis().div_ceil(1000);
            url.heartbeat = u16::try_from(seconds)
                .map_err(|_| unusable(&"the heartbeat is longer than 65535 s"))?;
        }
        let limit = self.limit(url.connection_timeout);
        let mut urls = vec![url.clone()];
        for host in &self.hosts {
            urls.push(url.at(host).map_err(|error| unusable(&error))?);
        }
        let transports = urls
            .into_iter()
            .map(|url| self.transport(url))
            .collect::<Result<Vec<_>, _>>()?;
        Connection::open_over(self, transports, limit, SystemClock::shared())
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
            let text = "an embedded broker has no further hosts".to_owned();
            return Err(Error::Configuration(text));
        }
        let broker = broker::named(&url.name, url.profile).map_err(Error::Configuration)?;
        let clock = broker.clock().clone();
        let transport = MemoryTransport {
            broker,
            heartbeat: self.heartbeat.unwrap_or(url.heartbeat),
            channel_max: url.channel_max.filter(|most| *most > 0).unwrap_or(u16::MAX),
        };
        let limit = self.limit(url.connection_timeout);
        Connection::open_over(self, vec![Arc::new(transport)], limit, clock)
    }

    fn limit(&self, of_url: Option<Duration>) -> Duration {
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
