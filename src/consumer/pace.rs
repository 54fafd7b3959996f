//! How long to pause before a message is handed back. Pure.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// A quorum queue drops a message once its delivery limit is used up, so one that has come back often waits longest.
const OFTEN_DELIVERED: i64 = 10;
const LONGEST_OFTEN_DELIVERED: Duration = Duration::from_secs(5 * 60);

/// The pace of hand-backs to one target queue: doubles with each failed round. A copy that lands there ends it.
///
/// Copies that were under way together fail together: they are one round, and their pauses run side by side. So is what
/// fails while such a pause still runs: other messages, which say nothing about how long the trouble has lasted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    rounds: u32,
    round_began: Option<Instant>,
}

impl Pace {
    /// A copy that was handed over at `since` has failed; returns the pause before its message goes back.
    pub(crate) fn failed(&mut self, since: Instant, now: Instant, delivery_count: i64) -> Duration {
        let same_round = self
            .round_began
            .is_some_and(|began| since <= began || now < began + self.pause());
        if !same_round {
            self.rounds = self.rounds.saturating_add(1);
            self.round_began = Some(now);
        }
        if delivery_count >= OFTEN_DELIVERED {
            return LONGEST_OFTEN_DELIVERED;
        }
        self.pause()
    }

    /// The pause of the present round.
    fn pause(&self) -> Duration {
        let doublings = self.rounds.saturating_sub(1).min(16);
        (FIRST * 2_u32.pow(doublings)).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    #[test]
    fn doubles_from_a_second_to_a_minute() {
        let (mut pace, start) = (Pace::default(), monotonic());
        let mut failed = |n: u64| {
            let since = start + Duration::from_secs(n * 100);
            pace.failed(since, since + Duration::from_secs(1), 0)
                .as_secs()
        };
        assert_eq!(
            (0..8).map(&mut failed).collect::<Vec<_>>(),
            [1, 2, 4, 8, 16, 32, 60, 60]
        );
    }

    #[test]
    fn copies_under_way_together_are_one_round() {
        let (mut pace, start) = (Pace::default(), monotonic());
        let pauses: Vec<_> = (0..400)
            .map(|n| pace.failed(start, start + Duration::from_millis(n), 0))
            .collect();
        assert!(pauses.iter().all(|pause| *pause == FIRST), "{pauses:?}");
    }

    #[test]
    fn a_stream_of_failures_doubles_with_the_pauses_and_not_with_the_messages() {
        let (mut pace, start) = (Pace::default(), monotonic());
        let mut failed = |ms: u64| {
            let since = start + Duration::from_millis(ms);
            pace.failed(since, since + Duration::from_millis(1), 0)
                .as_secs()
        };
        let pauses: Vec<_> = (0..100).map(|n| failed(n * 100)).collect();
        // Rounds begin at 0, 1, 3 and 7 s.
        assert_eq!(pauses[..11], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]);
        assert_eq!([pauses[29], pauses[31], pauses[99]], [2, 4, 8]);
    }

    #[test]
    fn a_message_delivered_often_waits_longest() {
        let (mut pace, start) = (Pace::default(), monotonic());
        assert_eq!(pace.failed(start, start, 10), Duration::from_secs(300));
    }
}
