//! The messages that RabbitMQ itself loses, each by a rule that is as narrow as can be seen from outside: see "What RabbitMQ can
//! lose" in `src/docs/guarantees.md`. What no rule excuses is missing, and the run fails.

use super::gremlin::{Event, What};
use super::plan::Goes;
use super::producer::Published;
use super::queues::QUORUM;
use super::story::Story;
use super::work::Line;

/// What takes milliseconds may take so long while the machine is busy: a copy into its queue, the noting of an event.
const BUSY: u64 = 1_000;
/// An event is noted when it begins; a signal sent has arrived by then.
const SIGNAL: u64 = 200;
/// How long before a kill a classic queue may have taken a message in, and not written it down.
const UNWRITTEN: u64 = 2_000;
/// What a policy of the gremlin cuts the waits in rungs to.
const SHORTEST_WAIT: u64 = 100;

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
    events: &'a [Event],
    /// After each kill, in order: so many messages were dropped by the log, and are not yet accounted for.
    dropped: Vec<usize>,
}

impl<'a> Losses<'a> {
    /// `dropped` has a number for each kill of the broker in `events`.
    pub(crate) fn new(events: &'a [Event], dropped: Vec<usize>) -> Self {
        Self { events, dropped }
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
        self.taken_back(story, published.queue)
    }

    fn deleted_under(&self, line: &Line, queue: &str) -> Option<Lost> {
        let (first, last) = self.landing(line);
        let meanwhile = |event: &&Event| event.from <= last && event.to >= first;
        self.events.iter().filter(meanwhile).find_map(|event| {
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
        let (landed, last) = self.landing(line);
        let due_until = last + wait;
        let cut_short = self.events.iter().any(|event| {
            event.what == What::ShortRungs && event.from <= due_until && event.to >= landed
        });
        let due = landed + if cut_short { SHORTEST_WAIT } else { wait };
        let (events, dropped) = (self.events, &mut self.dropped);
        // The rungs send home what has expired as soon as the broker is up, a quorum queue has its election after that.
        let mut without_leader = kills(events).zip(dropped).filter(|(kill, dropped)| {
            queue == QUORUM && **dropped > 0 && due <= kill.to && due_until >= kill.from
        });
        if let Some((_, dropped)) = without_leader.next() {
            *dropped -= 1;
            return Some(Lost::WithoutLeader);
        }
        let unwritten = |kill: &Event| {
            due <= kill.from + SIGNAL && due_until + unwritten_for(queue) >= kill.from
        };
        kills(events).any(unwritten).then_some(Lost::Unwritten)
    }

    /// A handler has had it, straight from a rung, and the broker was killed before it had written it down.
    fn taken_back(&self, story: &Story, queue: &str) -> Option<Lost> {
        let attempt = story.last_attempt();
        let from_rung = story.published.as_ref().is_some_and(|published| {
            attempt > 1 && matches!(published.plan.goes(attempt - 1), Goes::IntoRung(_))
        });
        let started = story.started(attempt).first()?.at;
        let unwritten = |kill: &Event| {
            started <= kill.from + SIGNAL && started + unwritten_for(queue) >= kill.from
        };
        (from_rung && kills(self.events).any(unwritten)).then_some(Lost::Unwritten)
    }

    /// When the copy of what was answered then may have reached its queue: held up while the broker or the consumer stood.
    fn landing(&self, line: &Line) -> (u64, u64) {
        let mut last = line.at + BUSY;
        for event in self.events {
            let holds_up = match event.what {
                What::Alarm | What::BrokerFrozen => true,
                What::Suspended(process) => process == line.process,
                _ => false,
            };
            if holds_up && event.from <= last && event.to >= line.at {
                last = last.max(event.to + BUSY);
            }
        }
        (line.at, last)
    }
}

fn kills(events: &[Event]) -> impl Iterator<Item = &Event> {
    events
        .iter()
        .filter(|event| event.what == What::BrokerKilled)
}

/// A quorum queue writes at once; a message may still be on its way to it.
fn unwritten_for(queue: &str) -> u64 {
    if queue == QUORUM { SIGNAL } else { UNWRITTEN }
}
