//! The deadline of a shutdown: one instant that every wait of it shares.

use super::instant::monotonic;
use std::time::{Duration, Instant};

/// An instant that is computed once and passed down, with the timeout it was computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// `None` is never: the timeout overflows the clock.
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

    /// The timeout that it was computed from.
    pub(crate) fn timeout(self) -> Duration {
        self.timeout
    }

    /// The earlier of the two, with its timeout.
    pub(crate) fn min(self, other: Self) -> Self {
        match (self.instant, other.instant) {
            (Some(a), Some(b)) if b < a => other,
            (None, Some(_)) => other,
            _ => self,
        }
    }

    /// A deadline that is `more` later, with the same timeout.
    pub(crate) fn plus(self, more: Duration) -> Self {
        let instant = self.instant.and_then(|instant| instant.checked_add(more));
        Self { instant, ..self }
    }

    pub(crate) fn has_passed(self) -> bool {
        self.instant.is_some_and(|instant| instant <= monotonic())
    }

    /// The time until it; zero once it has passed.
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
