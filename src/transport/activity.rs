//! The times of the last read and the last write on a socket, by which a dead peer is detected.

use crate::time::instant::monotonic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shared between the I/O thread of a socket, which writes it, and the threads that read it.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    opened: Instant,
    /// The time of the last read, in nanoseconds since `opened`. The I/O thread stores it with
    /// release and other threads load it with acquire. The value is complete in itself: no other
    /// field is read together with it.
    last_read: Arc<AtomicU64>,
    /// The time of the last write, like `last_read`.
    last_write: Arc<AtomicU64>,
    heartbeat: Duration,
}

impl Activity {
    /// Starts at the opening of a socket. `heartbeat` is the heartbeat timeout; zero means that
    /// there are no heartbeats.
    pub(crate) fn new(heartbeat: Duration) -> Self {
        Self {
            opened: monotonic(),
            last_read: Arc::default(),
            last_write: Arc::default(),
            heartbeat,
        }
    }

    /// Records that bytes have arrived.
    pub(crate) fn note_read(&self) {
        self.last_read.store(self.nanos(), Ordering::Release);
    }

    /// Records that the socket has accepted bytes.
    pub(crate) fn note_write(&self) {
        self.last_write.store(self.nanos(), Ordering::Release);
    }

    fn nanos(&self) -> u64 {
        let since_opened = monotonic().saturating_duration_since(self.opened);
        u64::try_from(since_opened.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The time of the last write; the time of the opening if there was none.
    pub(crate) fn last_write(&self) -> Instant {
        self.opened + Duration::from_nanos(self.last_write.load(Ordering::Acquire))
    }

    /// The time of the last read; the time of the opening if there was none.
    pub(crate) fn last_read(&self) -> Instant {
        self.opened + Duration::from_nanos(self.last_read.load(Ordering::Acquire))
    }

    /// Whether the broker has been silent for three quarters of the heartbeat timeout. A live
    /// broker sends a heartbeat every half of it.
    pub(crate) fn is_silent(&self) -> bool {
        !self.heartbeat.is_zero() && self.last_read().elapsed() > self.heartbeat * 3 / 4
    }

    /// Whether heartbeats are off, so that silence has no meaning.
    pub(crate) fn has_no_heartbeat(&self) -> bool {
        self.heartbeat.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_is_recorded_with_its_time() {
        let activity = Activity::new(Duration::from_secs(60));
        let opened = activity.last_read();
        activity.note_read();
        let before = monotonic();
        assert!(activity.last_read() >= opened && activity.last_read() <= before);
        assert!(!activity.is_silent());
    }

    #[test]
    fn silence_needs_heartbeats() {
        let silent = |heartbeat| Activity::new(heartbeat).is_silent();
        assert!(silent(Duration::from_nanos(1)));
        assert!(!silent(Duration::ZERO) && !silent(Duration::from_secs(60)));
    }
}
