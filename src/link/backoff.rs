//! How long to pause before trying again. Pure.

use std::time::Duration;

/// More than any process waits, and far from every overflow.
const MOST: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// Pauses that double from the first to the longest, spread by a fifth both ways so that a fleet does not try in step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
    last: Duration,
    /// Nothing was tried since pauses began anew.
    fresh: bool,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        let longest = longest.max(first).min(MOST);
        let first = first.min(MOST);
        Self {
            first,
            longest,
            next: first,
            last: Duration::ZERO,
            fresh: true,
        }
    }

    /// The next pause; `uniform` is a random number from 0 to 1.
    pub(crate) fn pause(&mut self, uniform: f64) -> Duration {
        self.fresh = false;
        self.last = self.next;
        self.next = self.next.saturating_mul(2).min(self.longest);
        self.last.mul_f64(0.8 + 0.4 * uniform.clamp(0.0, 1.0))
    }

    /// What was tried lasted for `life`. Only if that is longer than the last pause do pauses begin anew: what comes up and
    /// goes down at once must not be tried in a hot loop.
    pub(crate) fn lasted(&mut self, life: Duration) {
        if life > self.last.max(self.first) {
            *self = Self::new(self.first, self.longest);
        }
    }

    /// Whether the try that is due needs no pause: the first one since pauses began anew, even if it succeeds. What comes
    /// up and goes down at once would be tried without end otherwise.
    pub(crate) fn needs_no_pause(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pauses(backoff: &mut Backoff, count: usize) -> Vec<u128> {
        (0..count).map(|_| backoff.pause(0.5).as_millis()).collect()
    }

    #[test]
    fn doubles_to_the_longest() {
        let mut backoff = Backoff::new(500 * MS, 30_000 * MS);
        let expected = [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000];
        assert_eq!(pauses(&mut backoff, 8), expected);
    }

    #[test]
    fn begins_anew_only_after_a_life_longer_than_the_last_pause() {
        let mut backoff = Backoff::new(500 * MS, 30_000 * MS);
        assert!(backoff.needs_no_pause());
        pauses(&mut backoff, 3);
        backoff.lasted(1_999 * MS);
        assert_eq!(pauses(&mut backoff, 1), [4000]);
        backoff.lasted(4_001 * MS);
        assert!(backoff.needs_no_pause());
        assert_eq!(pauses(&mut backoff, 1), [500]);
    }

    #[test]
    fn only_one_try_needs_no_pause_unless_what_it_brought_lasts() {
        let mut backoff = Backoff::new(500 * MS, 30_000 * MS);
        assert!(backoff.needs_no_pause());
        backoff.lasted(10 * MS);
        assert!(!backoff.needs_no_pause());
        backoff.lasted(501 * MS);
        assert!(backoff.needs_no_pause());
    }

    #[test]
    fn pauses_without_end_do_not_overflow() {
        let mut backoff = Backoff::new(Duration::MAX, Duration::MAX);
        assert!(backoff.pause(1.0) >= MOST);
    }

    #[test]
    fn is_spread_by_a_fifth_both_ways() {
        let pause = |uniform| {
            Backoff::new(1000 * MS, 1000 * MS)
                .pause(uniform)
                .as_millis()
        };
        assert_eq!([pause(0.0), pause(1.0), pause(9.0)], [800, 1200, 1200]);
    }
}
