//! The messages that RabbitMQ itself loses, each by a rule that is as narrow as can be seen from outside: see "What RabbitMQ can
//! lose" in `src/docs/guarantees.md`. What no rule excuses is missing, and the run fails.

use super::gremlin::{Event, What};
use super::plan::Goes;
use super::producer::Published;
use super::queues::{CLASSIC, QUORUM};
use super::story::Story;
use super::times::{LANDS, SIGNAL, Times, UNWRITTEN};
use super::work::Line;

/// One that lands later than the consumers' confirm timeout goes back as well. Said by the log, a loss need not be near.
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
    /// After each kill, in order: so many messages were dropped by the log, and are not yet accounted for.
    dropped: Vec<usize>,
}

impl<'a> Losses<'a> {
    /// `dropped` has a number for each kill of the broker in `events`.
    pub(crate) fn new(events: &'a [Event], dropped: Vec<usize>) -> Self {
        Self {
            times: Times(events),
            dropped,
        }
    }

    /// How RabbitMQ has lost a message that was confirmed and ended nowhere; `None` when it has not.
    pub(crate) fn excuse(&mut self, story: &Story, published: &Published) -> Option<Lost> {
        for line in story.last_ended() {
            let lost = match published.plan.goes(line.attempt) {
                Goes::Away | Goes::Back => None,
                Goes::IntoRung(wait) => self
                    .deleted_under(line, &format!("{}.retry.{wait}ms", published.queue))
                    .or_else(|| self.lost_on_the_way_home(line, published.queue, wait)),
                Goes::Dead => self.deleted_under(line, &format!("{}.dlq", published.queue)),
                Goes::Parked => self.deleted_under(line, &format!("{}.parked", published.queue)),
            };
            if lost.is_some() {
                return lost;
            }
        }
        (published.queue == CLASSIC && self.taken_back(story, published)).then_some(Lost::Unwritten)
    }

    fn deleted_under(&self, line: &Line, queue: &str) -> Option<Lost> {
        let (first, last) = self.times.landing(line, LANDS);
        let meanwhile = |event: &&Event| event.from <= last && event.to >= first;
        self.times.0.iter().filter(meanwhile).find_map(|event| {
            let What::Deleted(queues) = &event.what else {
                return None;
            };
            queues
                .iter()
                .any(|deleted| deleted == queue)
                .then_some(Lost::WithQueue)
        })
    }

    fn lost_on_the_way_home(&mut self, line: &Line, queue: &str, wait: u64) -> Option<Lost> {
        let (due, due_at_last) = self.times.due(line, wait, LANDS_AT_LAST);
        let dropped = &mut self.dropped;
        // The rungs send home what has expired as soon as the broker is up, a quorum queue has its election after that.
        let mut without_leader = self.times.kills().zip(dropped).filter(|(kill, dropped)| {
            queue == QUORUM && **dropped > 0 && due <= kill.to && due_at_last >= kill.from
        });
        if let Some((_, dropped)) = without_leader.next() {
            *dropped -= 1;
            return Some(Lost::WithoutLeader);
        }
        let mut just_before = self
            .times
            .kills_just_after_wait(line, wait, unwritten_for(queue));
        just_before.next().map(|_| Lost::Unwritten)
    }

    /// Whether a handler has had it, straight from a rung, and the broker was killed before it had written it down.
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

/// A quorum queue writes at once; a message may still be on its way to it.
fn unwritten_for(queue: &str) -> u64 {
    if queue == QUORUM { SIGNAL } else { UNWRITTEN }
}
