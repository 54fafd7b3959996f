//! The clock of waits, ages, paces, backoff and expiry, which a test can own.
//!
//! Deadlines, watchdogs and call timeouts use [`monotonic`] instead: in a test they are those of a
//! service.

#![allow(
    clippy::disallowed_methods,
    reason = "this file and instant.rs are the ones that ask the system for the time"
)]

use super::instant::monotonic;
use super::threads::{self, Role, SpawnError};
use crossbeam_channel::{Receiver, Sender};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time, timers, jitter and threads.
pub(crate) trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now, on the clock's monotonic scale.
    fn now(&self) -> Instant;

    /// Now, in milliseconds since 1970.
    fn epoch_millis(&self) -> i64;

    /// Sets a timer for `due`. A wait is one `select` over the timer and the signals that end it
    /// early.
    fn at(&self, due: Instant) -> Timer;

    /// A number from 0 to 1, for the jitter of waits.
    fn chance(&self) -> f64;

    /// Starts a thread. A test clock waits for its work before it moves on.
    fn spawn(
        &self,
        role: Role,
        name: String,
        work: Box<dyn FnOnce() + Send>,
    ) -> Result<(), SpawnError>;
}

/// One-shot timer. Dropping it cancels it.
#[derive(Debug)]
pub(crate) struct Timer {
    pub(super) due: Receiver<Instant>,
    /// Kept by the timers of a test clock only: a receiver without a sender counts as ready.
    pub(super) _sender: Option<Arc<Sender<Instant>>>,
}

impl Timer {
    /// A timer that is never due.
    pub(crate) fn never() -> Self {
        crossbeam_channel::never().into()
    }

    /// Whether it is due. True once: the call that returns true consumes the event.
    pub(crate) fn is_due(&self) -> bool {
        self.due.try_recv().is_ok()
    }
}

impl From<Receiver<Instant>> for Timer {
    fn from(due: Receiver<Instant>) -> Self {
        Self { due, _sender: None }
    }
}

impl Deref for Timer {
    type Target = Receiver<Instant>;

    fn deref(&self) -> &Receiver<Instant> {
        &self.due
    }
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemClock;

impl SystemClock {
    pub(crate) fn shared() -> Arc<dyn Clock> {
        Arc::new(Self)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        monotonic()
    }

    fn epoch_millis(&self) -> i64 {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
    }

    fn at(&self, due: Instant) -> Timer {
        crossbeam_channel::at(due).into()
    }

    fn chance(&self) -> f64 {
        rand::random()
    }

    fn spawn(
        &self,
        role: Role,
        name: String,
        work: Box<dyn FnOnce() + Send>,
    ) -> Result<(), SpawnError> {
        threads::spawn(None, role, name, work)
    }
}
