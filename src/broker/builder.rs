//! Creating a broker, and its URL.

use super::model::profile::Profile;
use super::registry;
use super::server::broker::Broker;
use crate::error::Error;
use crate::time::clock::{Clock, SystemClock};
use crate::time::test_clock::TestClock;
use std::sync::Arc;

impl Broker {
    /// Starts a new broker with the profile of RabbitMQ 4.0, on real time.
    ///
    /// # Panics
    ///
    /// When its thread cannot be spawned.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().start_or_panic()
    }

    /// Starts a new broker with the profile of RabbitMQ 4.0, on a test clock.
    ///
    /// # Panics
    ///
    /// When its thread cannot be spawned.
    #[must_use]
    pub fn with_clock(clock: &TestClock) -> Self {
        Self::builder().clock(clock).start_or_panic()
    }

    /// Returns a builder, which sets name, profile and clock.
    pub fn builder() -> BrokerBuilder {
        BrokerBuilder {
            name: None,
            profile: Profile::default(),
            clock: SystemClock::shared(),
        }
    }

    /// Returns the broker at `memory://{name}`. A missing broker is created with the profile of
    /// RabbitMQ 4.0, on real time.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] when the broker is missing and the name is not valid in a URL or
    /// its thread cannot be spawned, and when the name is that of an unnamed broker that has ended.
    pub fn named(name: &str) -> Result<Self, Error> {
        registry::named(name, None).map_err(Error::Configuration)
    }

    /// The URL for connections, such as `memory://orders`.
    ///
    /// The URL of an unnamed broker does not keep it alive, and is refused after the broker has
    /// ended: hold the broker as well.
    #[must_use]
    pub fn url(&self) -> String {
        format!("memory://{}", self.name())
    }
}

impl Default for Broker {
    fn default() -> Self {
        Self::new()
    }
}

/// Configures and starts an embedded broker.
///
/// Created by [`MemoryBroker::builder`](crate::testing::MemoryBroker::builder).
#[derive(Debug)]
#[must_use = "the broker does not exist until it is started"]
pub struct BrokerBuilder {
    name: Option<String>,
    profile: Profile,
    clock: Arc<dyn Clock>,
}

impl BrokerBuilder {
    /// Sets the name in URLs. Defaults to a unique one, `unnamed.` and a UUID; a chosen name must
    /// not begin with `unnamed.`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the version whose behaviour the broker has. Defaults to [`Profile::V4_0`].
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// Sets the clock of the broker and its connections. Defaults to real time.
    pub fn clock(mut self, clock: &TestClock) -> Self {
        self.clock = Arc::new(clock.clone());
        self
    }

    /// Starts the broker.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] when a broker of this name is running already, when the name
    /// contains other characters than letters, digits, `.`, `_` and `-` or begins with `unnamed.`,
    /// or when the thread cannot be spawned.
    pub fn start(self) -> Result<Broker, Error> {
        registry::make(self.name, self.profile, self.clock).map_err(Error::Configuration)
    }

    fn start_or_panic(self) -> Broker {
        match self.start() {
            Ok(broker) => broker,
            Err(error) => panic!("failed to start the embedded broker: {error}"),
        }
    }
}
