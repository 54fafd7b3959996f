//! How long to pause before trying again. Pure.

use std::time::Duration;

/// Pauses that double from the first to the longest, spread by a fifth both ways so that a fleet does not try in step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
    last: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        let longest = longest.max(first);
        Self {
            first,
            longest,
            next: first,
            last: Duration::ZERO,
        }
    }

    /// The next pause; `uniform` is a random number from 0 to 1.
    pub(crate) fn pause(&mut self, uniform: f64) -> Duration {
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

    /// Whether nothing has failed since pauses began anew: the first try needs no pause.
    pub(crate) fn is_fresh(&self) -> bool {
        self.last.is_zero()
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
        assert!(backoff.is_fresh());
        pauses(&mut backoff, 3);
        backoff.lasted(1_999 * MS);
        assert_eq!(pauses(&mut backoff, 1), [4000]);
        backoff.lasted(4_001 * MS);
        assert!(backoff.is_fresh());
        assert_eq!(pauses(&mut backoff, 1), [500]);
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
