//! Exponential backoff with jitter. Pure: it computes pauses and neither waits nor draws numbers.

use std::time::Duration;

/// The minimum: a pause of zero would be a hot loop.
const SHORTEST: Duration = Duration::from_millis(10);
/// The maximum: a pause that no clock can add to the present would be a panic.
const LONGEST: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// Pauses that double from the first to the longest, with a jitter of ±20 %, so that the members of
/// a fleet do not retry in step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
    last: Duration,
    /// Whether something was tried since the last reset.
    tried: bool,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        let first = first.clamp(SHORTEST, LONGEST);
        let longest = longest.clamp(first, LONGEST);
        Self {
            first,
            longest,
            next: first,
            last: Duration::ZERO,
            tried: false,
        }
    }

    /// The next pause. `uniform` is a random number from 0 to 1.
    pub(crate) fn pause(&mut self, uniform: f64) -> Duration {
        self.tried = true;
        self.last = self.next;
        self.next = self.next.saturating_mul(2).min(self.longest);
        self.last.mul_f64(0.8 + 0.4 * uniform.clamp(0.0, 1.0))
    }

    /// Records that the last success lasted for `life`.
    ///
    /// Resets only after a life longer than the last pause: a connection that comes up and goes
    /// down immediately must not be retried in a hot loop.
    pub(crate) fn lasted(&mut self, life: Duration) {
        if life > self.last.max(self.first) {
            self.reset();
        }
    }

    /// Whether the next attempt needs no pause. True once after each reset.
    pub(crate) fn take_immediate_attempt(&mut self) -> bool {
        !std::mem::replace(&mut self.tried, true)
    }

    /// Starts again from the first pause.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.first, self.longest);
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
    fn pauses_double_to_the_longest() {
        let mut backoff = Backoff::new(500 * MS, 30_000 * MS);
        let expected = [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000];
        assert_eq!(pauses(&mut backoff, 8), expected);
    }

    #[test]
    fn resets_only_after_life_longer_than_last_pause() {
        let mut backoff = Backoff::new(500 * MS, 30_000 * MS);
        assert!(backoff.take_immediate_attempt() && !backoff.take_immediate_attempt());
        pauses(&mut backoff, 3);
        backoff.lasted(1_999 * MS);
        assert_eq!(pauses(&mut backoff, 1), [4000]);
        backoff.lasted(4_001 * MS);
        assert!(backoff.take_immediate_attempt());
        assert_eq!(pauses(&mut backoff, 1), [500]);
        assert!(!backoff.take_immediate_attempt());
    }

    #[test]
    fn short_lives_get_one_immediate_attempt() {
        let mut backoff = Backoff::new(500 * MS, 30_000 * MS);
        backoff.lasted(MS);
        assert!(backoff.take_immediate_attempt());
        backoff.lasted(MS);
        assert!(!backoff.take_immediate_attempt());
    }

    #[test]
    fn extreme_options_neither_spin_nor_overflow() {
        let mut backoff = Backoff::new(Duration::ZERO, Duration::ZERO);
        assert_eq!(pauses(&mut backoff, 2), [10, 10]);
        let mut backoff = Backoff::new(Duration::MAX, Duration::MAX);
        let longest = backoff.pause(1.0);
        assert!(
            std::time::SystemTime::UNIX_EPOCH
                .checked_add(longest)
                .is_some()
        );
    }

    #[test]
    fn jitter_is_a_fifth_both_ways() {
        let pause = |uniform| {
            Backoff::new(1000 * MS, 1000 * MS)
                .pause(uniform)
                .as_millis()
        };
        assert_eq!([pause(0.0), pause(1.0), pause(9.0)], [800, 1200, 1200]);
    }
}
