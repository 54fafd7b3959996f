//! The messages that RabbitMQ itself loses, each by a rule that is as narrow as can be seen from
//! outside: see "What RabbitMQ can lose" in `src/docs/guarantees.md`. What no rule excuses is
//! missing, and the run fails.

use super::drops::Drops;
use super::gremlin::{Event, What};
use super::producer::Published;
use super::queues::{CLASSIC, QUORUM};
use super::story::Story;
use super::times::{LANDS, SIGNAL, Times, UNWRITTEN};
use crate::harness::work::{Goes, Line};

/// One that lands later than the consumers' confirm timeout goes back as well. Said by the log, a
/// loss need not be near.
const LANDS_AT_LAST: u64 = 3_000;

/// What RabbitMQ does not promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lost {
    /// Its wait in a rung ended while its quorum queue had no leader.
    WithoutLeader,
    /// It had just come home from a rung when the broker was killed.
    Unwritten,
    /// Its copy was on its way to an empty queue just when that was deleted.
    WithQueue,
}

impl Lost {
    pub(crate) const ALL: [Self; 3] = [Self::WithoutLeader, Self::Unwritten, Self::WithQueue];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WithoutLeader => {
                "lost by the broker: came home from a rung while its quorum queue had no leader"
            }
            Self::Unwritten => {
                "lost by the broker: had just come home from a rung when it was killed"
            }
            Self::WithQueue => "lost by the broker: on its way to an empty queue that was deleted",
        }
    }
}

/// What the gremlin did, and how many losses the broker has owned up to.
pub(crate) struct Losses<'a> {
    times: Times<'a>,
    drops: Drops,
}

impl<'a> Losses<'a> {
    /// `dropped` has a number for each kill of the broker in `events`: of the messages dropped at
    /// the next start, by the log.
    pub(crate) fn new(events: &'a [Event], dropped: Vec<usize>) -> Self {
        Self {
            times: Times(events),
            drops: Drops::new(dropped),
        }
    }

    /// How RabbitMQ has lost a message that was confirmed and ended nowhere; `None` when it has
    /// not.
    pub(crate) fn excuse(&mut self, story: &Story, published: &Published) -> Option<Lost> {
        let queue = published.queue;
        let mut into_rungs = Vec::new();
        for line in story.last_ended() {
            let copied_to = match published.plan.goes(line.attempt) {
                Goes::Away | Goes::Back => continue,
                Goes::IntoRung(wait) => {
                    into_rungs.push((line, wait));
                    format!("{queue}.retry.{wait}ms")
                }
                Goes::Dead => format!("{queue}.dlq"),
                Goes::Parked => format!("{queue}.parked"),
            };
            if self.deleted_under(line, &copied_to) {
                return Some(Lost::WithQueue);
            }
        }
        if queue == QUORUM && self.drops.claim(self.without_leader(&into_rungs)) {
            return Some(Lost::WithoutLeader);
        }
        let just_before = into_rungs.iter().any(|(line, wait)| {
            let mut kills = self
                .times
                .kills_just_after_wait(line, *wait, unwritten_for(queue));
            kills.next().is_some()
        });
        let unwritten = just_before || queue == CLASSIC && self.taken_back(story, published);
        unwritten.then_some(Lost::Unwritten)
    }

    fn deleted_under(&self, line: &Line, queue: &str) -> bool {
        let (first, last) = self.times.landing(line, LANDS);
        self.times.0.iter().any(|event| {
            let What::Deleted(queues) = &event.what else {
                return false;
            };
            event.from <= last && event.to >= first && queues.iter().any(|deleted| deleted == queue)
        })
    }

    /// The starts at which one of the waits may have ended: rungs send home what has expired as
    /// soon as the broker is up, a quorum queue has its election after that.
    fn without_leader(&self, into_rungs: &[(&Line, u64)]) -> Vec<usize> {
        let may_end_at = |kill: &Event| {
            into_rungs.iter().any(|(line, wait)| {
                let (due, due_at_last) = self.times.due(line, *wait, LANDS_AT_LAST);
                due <= kill.to && due_at_last >= kill.from
            })
        };
        let kills = self.times.kills().enumerate();
        kills
            .filter_map(|(start, kill)| may_end_at(kill).then_some(start))
            .collect()
    }

    /// Whether a handler has had it, straight from a rung, and the broker was killed before it had
    /// written it down.
    fn taken_back(&self, story: &Story, published: &Published) -> bool {
        let attempt = story.last_attempt();
        let from_rung =
            attempt > 1 && matches!(published.plan.goes(attempt - 1), Goes::IntoRung(_));
        let started = story.started(attempt);
        let unwritten = |line: &&Line| {
            self.times
                .kills()
                .any(|kill| line.at <= kill.from + SIGNAL && line.at + UNWRITTEN >= kill.from)
        };
        from_rung && started.first().is_some_and(unwritten)
    }
}

/// A quorum queue writes before it confirms; a message may still be on its way to it.
fn unwritten_for(queue: &str) -> u64 {
    if queue == QUORUM { SIGNAL } else { UNWRITTEN }
}
