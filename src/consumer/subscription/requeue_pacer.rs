//! The pause before a message is requeued after a failed copy. Pure.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// A quorum queue drops a message once its delivery limit is reached, so a message that was
/// delivered often waits longest.
const OFTEN_DELIVERED: i64 = 10;
const LONGEST_OFTEN_DELIVERED: Duration = Duration::from_secs(5 * 60);

/// The pauses of one target queue. They double with each failed round, until a copy lands there.
///
/// A round lasts as long as the pause it began with. Copies that were under way before the round,
/// or fail during it, belong to the round, and their pauses run in parallel. So an outage of a
/// second delays no message by a minute, however many copies fail in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequeuePacer {
    rounds: u32,
    /// Copies handed over before this instant belong to the current round.
    round_ends: Option<Instant>,
}

impl RequeuePacer {
    /// Returns the pause for a message whose copy, handed over at `since`, has failed.
    pub(crate) fn failed(&mut self, since: Instant, now: Instant, delivery_count: i64) -> Duration {
        let same_round = self.round_ends.is_some_and(|end| since < end);
        if !same_round {
            self.rounds = self.rounds.saturating_add(1);
        }
        let doublings = self.rounds.saturating_sub(1).min(16);
        let pause = (FIRST * 2_u32.pow(doublings)).min(LONGEST);
        if !same_round {
            self.round_ends = Some(now + pause);
        }
        if delivery_count >= OFTEN_DELIVERED {
            return LONGEST_OFTEN_DELIVERED;
        }
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::instant::monotonic;

    #[test]
    fn pause_doubles_from_one_second_to_one_minute() {
        let (mut pacer, start) = (RequeuePacer::default(), monotonic());
        let mut failed = |n: u64| {
            let since = start + Duration::from_secs(n * 100);
            pacer
                .failed(since, since + Duration::from_secs(1), 0)
                .as_secs()
        };
        assert_eq!(
            (0..8).map(&mut failed).collect::<Vec<_>>(),
            [1, 2, 4, 8, 16, 32, 60, 60]
        );
    }

    #[test]
    fn concurrent_copies_are_one_round() {
        let (mut pacer, start) = (RequeuePacer::default(), monotonic());
        let pauses: Vec<_> = (0..400)
            .map(|n| pacer.failed(start, start + Duration::from_millis(n), 0))
            .collect();
        assert!(pauses.iter().all(|pause| *pause == FIRST), "{pauses:?}");
    }

    #[test]
    fn ten_seconds_of_failures_pause_eight_seconds_at_most() {
        let (mut pacer, start) = (RequeuePacer::default(), monotonic());
        let mut pauses: Vec<_> = (1..=1000)
            .map(|n| {
                let since = start + Duration::from_millis(n * 10);
                let now = since + Duration::from_millis(5);
                pacer.failed(since, now, 0).as_secs()
            })
            .collect();
        pauses.dedup();
        assert_eq!(pauses, [1, 2, 4, 8]);
    }

    #[test]
    fn often_delivered_message_waits_longest() {
        let (mut pacer, start) = (RequeuePacer::default(), monotonic());
        assert_eq!(pacer.failed(start, start, 10), Duration::from_secs(300));
    }
}
