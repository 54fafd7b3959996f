//! What a socket has received, for whoever judges whether the broker is still there.

#![cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "the watch over heartbeats that reads it comes next"
    )
)]

use crate::clock::monotonic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shared by a socket, which writes it, and its readers on other threads.
#[derive(Clone, Debug)]
pub(crate) struct Activity(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    opened: Instant,
    bytes_read: AtomicU64,
    /// Nanoseconds from `opened`.
    last_read: AtomicU64,
}

impl Activity {
    /// A socket that has just been opened.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Counts {
            opened: monotonic(),
            bytes_read: AtomicU64::new(0),
            last_read: AtomicU64::new(0),
        }))
    }

    /// Takes note of bytes that have just arrived. One thread alone may call it.
    pub(crate) fn note_read(&self, bytes: usize) {
        let since_opened = monotonic().saturating_duration_since(self.0.opened);
        let nanos = u64::try_from(since_opened.as_nanos()).unwrap_or(u64::MAX);
        self.0.last_read.store(nanos, Ordering::Relaxed);
        self.0.bytes_read.fetch_add(bytes as u64, Ordering::Release);
    }

    /// How many bytes have arrived, TLS taken off.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.0.bytes_read.load(Ordering::Acquire)
    }

    /// When bytes last arrived; when the socket was opened, if none did.
    pub(crate) fn last_read(&self) -> Instant {
        self.0.opened + Duration::from_nanos(self.0.last_read.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_remembers_when() {
        let activity = Activity::new();
        let opened = activity.last_read();
        assert_eq!(activity.bytes_read(), 0);
        activity.note_read(3);
        activity.clone().note_read(4);
        assert_eq!(activity.bytes_read(), 7);
        assert!(activity.last_read() > opened);
        assert!(activity.last_read() <= monotonic());
    }
}
