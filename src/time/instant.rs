//! Instants of the real monotonic clock, which deadlines, watchdogs and call timeouts use.

#![allow(
    clippy::disallowed_methods,
    reason = "this file and clock.rs are the ones that ask the system for the time"
)]

use std::time::{Duration, Instant};

/// The real monotonic time, for deadlines and watchdogs.
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

/// The instant `by` after `from`; on overflow, a year after `from`.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);
    from.checked_add(by).unwrap_or_else(|| from + FAR)
}
