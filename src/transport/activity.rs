//! When a socket last received or took something, for whoever judges whether the broker is still there.

use crate::time::instant::monotonic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shared by a socket, which writes it, and its readers on other threads.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    opened: Instant,
    /// Nanoseconds from `opened`, as the next one.
    last_read: Arc<AtomicU64>,
    last_write: Arc<AtomicU64>,
    heartbeat: Duration,
}

impl Activity {
    /// A socket that has just been opened, over which the broker says something at least every `heartbeat`; zero when it
    /// need not.
    pub(crate) fn new(heartbeat: Duration) -> Self {
        Self {
            opened: monotonic(),
            last_read: Arc::default(),
            last_write: Arc::default(),
            heartbeat,
        }
    }

    /// Takes note of bytes that have just arrived.
    pub(crate) fn note_read(&self) {
        self.last_read.store(self.nanos(), Ordering::Release);
    }

    /// Takes note of bytes that the socket has just taken.
    pub(crate) fn note_write(&self) {
        self.last_write.store(self.nanos(), Ordering::Release);
    }

    fn nanos(&self) -> u64 {
        let since_opened = monotonic().saturating_duration_since(self.opened);
        u64::try_from(since_opened.as_nanos()).unwrap_or(u64::MAX)
    }

    /// When the socket last took bytes; when it was opened, if it took none.
    pub(crate) fn last_write(&self) -> Instant {
        self.opened + Duration::from_nanos(self.last_write.load(Ordering::Acquire))
    }

    /// When bytes last arrived; when the socket was opened, if none did.
    pub(crate) fn last_read(&self) -> Instant {
        self.opened + Duration::from_nanos(self.last_read.load(Ordering::Acquire))
    }

    /// Whether the broker has been silent for three quarters of its heartbeat: it sends twice as often as that.
    pub(crate) fn is_silent(&self) -> bool {
        !self.heartbeat.is_zero() && self.last_read().elapsed() > self.heartbeat * 3 / 4
    }

    /// Whether silence says nothing, because there are no heartbeats.
    pub(crate) fn has_no_heartbeat(&self) -> bool {
        self.heartbeat.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_noted_with_its_instant() {
        let activity = Activity::new(Duration::from_secs(60));
        let opened = activity.last_read();
        activity.note_read();
        let before = monotonic();
        assert!(activity.last_read() >= opened && activity.last_read() <= before);
        assert!(!activity.is_silent());
    }

    #[test]
    fn silence_counts_only_where_there_are_heartbeats() {
        let silent = |heartbeat| Activity::new(heartbeat).is_silent();
        assert!(silent(Duration::from_nanos(1)));
        assert!(!silent(Duration::ZERO) && !silent(Duration::from_secs(60)));
    }
}
