//! Where time comes from: the only file that asks the system for it.
//!
//! There are two kinds. Deadlines, watchdogs and call limits use [`monotonic`], the real clock. Waits, ages, paces and
//! backoff use a [`Clock`], which a test can own.

#![allow(
    clippy::disallowed_methods,
    reason = "this is the one place that may ask the system for the time"
)]

use crossbeam_channel::Receiver;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The real monotonic time, for deadlines and watchdogs.
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

/// `by` after `from`; what would overflow is later than any process lives.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);
    from.checked_add(by).unwrap_or_else(|| from + FAR)
}

/// The time of waits, ages, paces and backoff.
pub(crate) trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now, on the clock's monotonic scale.
    fn now(&self) -> Instant;

    /// Now, in milliseconds since 1970.
    fn epoch_millis(&self) -> i64;

    /// A receiver that becomes ready at `due`, so that a wait is one `select` over time, stop and death.
    fn at(&self, due: Instant) -> Receiver<Instant>;
}

/// The system's own time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemClock;

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

    fn at(&self, due: Instant) -> Receiver<Instant> {
        crossbeam_channel::at(due)
    }
}
