//! The deadline of a shutdown: one instant, computed once and passed down.

use super::instant::monotonic;
use std::time::{Duration, Instant};

/// An instant that is computed once and passed down, and the time that it was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// `None` is never.
    instant: Option<Instant>,
    timeout: Duration,
}

impl Deadline {
    pub(crate) fn within(timeout: Duration) -> Self {
        Self {
            instant: monotonic().checked_add(timeout),
            timeout,
        }
    }

    pub(crate) fn instant(self) -> Option<Instant> {
        self.instant
    }

    /// How long there was when it was set.
    pub(crate) fn timeout(self) -> Duration {
        self.timeout
    }

    /// Deadlines only move earlier.
    pub(crate) fn min(self, other: Self) -> Self {
        match (self.instant, other.instant) {
            (Some(a), Some(b)) if b < a => other,
            (None, Some(_)) => other,
            _ => self,
        }
    }

    pub(crate) fn plus(self, more: Duration) -> Self {
        let instant = self.instant.and_then(|instant| instant.checked_add(more));
        Self { instant, ..self }
    }

    pub(crate) fn has_passed(self) -> bool {
        self.instant.is_some_and(|instant| instant <= monotonic())
    }

    pub(crate) fn left(self) -> Duration {
        self.instant.map_or(Duration::MAX, |instant| {
            instant.saturating_duration_since(monotonic())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_only_move_earlier() {
        let never = Deadline::within(Duration::MAX);
        let (soon, late) = (
            Deadline::within(Duration::from_secs(1)),
            Deadline::within(Duration::from_secs(9)),
        );
        assert_eq!(late.min(soon), soon);
        assert_eq!(soon.min(late), soon);
        assert_eq!(never.min(soon), soon);
        assert_eq!(never.min(soon).timeout(), Duration::from_secs(1));
        assert_eq!(never.instant(), None);
        assert!(Deadline::within(Duration::ZERO).has_passed() && !never.has_passed());
    }
}
