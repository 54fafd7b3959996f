//! How a test makes a broker, and where connections find it.

use super::model::profile::Profile;
use super::registry;
use super::server::broker::Broker;
use crate::error::Error;
use crate::time::clock::{Clock, SystemClock};
use crate::time::test_clock::TestClock;
use std::sync::Arc;

impl Broker {
    /// A broker of its own, like RabbitMQ 4.0 and on real time.
    ///
    /// # Panics
    ///
    /// When no thread can be started.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().started()
    }

    /// A broker of its own, like RabbitMQ 4.0, on the test's time.
    ///
    /// # Panics
    ///
    /// When no thread can be started.
    #[must_use]
    pub fn with_clock(clock: &TestClock) -> Self {
        Self::builder().clock(clock).started()
    }

    /// For everything that can be chosen.
    pub fn builder() -> BrokerBuilder {
        BrokerBuilder {
            name: None,
            profile: Profile::default(),
            clock: SystemClock::shared(),
        }
    }

    /// The broker at `memory://{name}`, made if it is not there yet, like RabbitMQ 4.0 and on real time.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] when it has to be made and is no name for a URL, or no thread can be started; and for the name
    /// of a broker that was given none and has ended, which nobody makes again.
    pub fn named(name: &str) -> Result<Self, Error> {
        registry::named(name, None).map_err(Error::Configuration)
    }

    /// Where connections find it, such as `memory://orders`. That of a broker without a name of its own does not keep it, and is
    /// refused when it has ended: hold the broker, not only its URL.
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

/// How an embedded broker is made. Made by [`MemoryBroker::builder`](crate::testing::MemoryBroker::builder); [`start`](Self::start) ends it.
#[derive(Debug)]
#[must_use = "no broker is made until it is started"]
pub struct BrokerBuilder {
    name: Option<String>,
    profile: Profile,
    clock: Arc<dyn Clock>,
}

impl BrokerBuilder {
    /// Its name in URLs. Defaults to one that nobody else has, `unnamed.` and a UUID; chosen names do not begin so.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Which version it behaves like. Defaults to [`Profile::V4_0`].
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// The clock that it and its connections run on. Defaults to real time.
    pub fn clock(mut self, clock: &TestClock) -> Self {
        self.clock = Arc::new(clock.clone());
        self
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] when a broker of this name is running already, the name is none for a URL (letters, digits,
    /// `.`, `_` and `-`) or begins with `unnamed.`, or no thread can be started.
    pub fn start(self) -> Result<Broker, Error> {
        registry::make(self.name, self.profile, self.clock).map_err(Error::Configuration)
    }

    fn started(self) -> Broker {
        match self.start() {
            Ok(broker) => broker,
            Err(error) => panic!("the embedded broker was not started: {error}"),
        }
    }
}
