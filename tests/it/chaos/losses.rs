//! The messages that RabbitMQ itself loses, each by a rule that is as narrow as can be seen from outside: see "What RabbitMQ can
//! lose" in `src/docs/guarantees.md`. What no rule excuses is missing, and the run fails.

use super::gremlin::{Event, What};
use super::plan::Goes;
use super::producer::Published;
use super::queues::{CLASSIC, QUORUM};
use super::story::Story;
use super::work::Line;

/// A copy lands within milliseconds, and within so long on a busy machine.
const LANDS: u64 = 1_000;
/// One that lands later than the consumers' confirm timeout goes back as well. Said by the log, a loss need not be near.
const LANDS_AT_LAST: u64 = 3_000;
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
        (published.queue == CLASSIC && self.taken_back(story, published)).then_some(Lost::Unwritten)
    }

    fn deleted_under(&self, line: &Line, queue: &str) -> Option<Lost> {
        let (first, last) = self.landing(line, LANDS);
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
        let (due, due_at_last) = self.due(line, wait, LANDS_AT_LAST);
        let (events, dropped) = (self.events, &mut self.dropped);
        // The rungs send home what has expired as soon as the broker is up, a quorum queue has its election after that.
        let mut without_leader = kills(events).zip(dropped).filter(|(kill, dropped)| {
            queue == QUORUM && **dropped > 0 && due <= kill.to && due_at_last >= kill.from
        });
        if let Some((_, dropped)) = without_leader.next() {
            *dropped -= 1;
            return Some(Lost::WithoutLeader);
        }
        let (due, due_until) = self.due(line, wait, LANDS);
        let unwritten = |kill: &Event| {
            due <= kill.from + SIGNAL && due_until + unwritten_for(queue) >= kill.from
        };
        kills(events).any(unwritten).then_some(Lost::Unwritten)
    }

    /// Whether a handler has had it, straight from a rung, and the broker was killed before it had written it down.
    fn taken_back(&self, story: &Story, published: &Published) -> bool {
        let attempt = story.last_attempt();
        let from_rung =
            attempt > 1 && matches!(published.plan.goes(attempt - 1), Goes::IntoRung(_));
        let started = story.started(attempt);
        let unwritten = |line: &&Line| {
            kills(self.events)
                .any(|kill| line.at <= kill.from + SIGNAL && line.at + UNWRITTEN >= kill.from)
        };
        from_rung && started.first().is_some_and(unwritten)
    }

    /// When it may have come home from the rung: a broker that is down then sends it at its next start.
    fn due(&self, line: &Line, wait: u64, lands: u64) -> (u64, u64) {
        let (landed, last) = self.landing(line, lands);
        let cut_short = self.events.iter().any(|event| {
            event.what == What::ShortRungs && event.from <= last + wait && event.to >= landed
        });
        let due = landed + if cut_short { SHORTEST_WAIT } else { wait };
        let home_at_last = kills(self.events).fold(last + wait, |home, kill| {
            let down = kill.from <= home && kill.to >= due;
            if down { home.max(kill.to) } else { home }
        });
        (due, home_at_last)
    }

    /// When its copy may have reached its queue: held up while the broker or the consumer stood.
    fn landing(&self, line: &Line, lands: u64) -> (u64, u64) {
        let mut last = line.at + lands;
        for event in self.events {
            let holds_up = match event.what {
                What::Alarm | What::BrokerFrozen | What::QueuesHung => true,
                What::Suspended(process) => process == line.process,
                _ => false,
            };
            if holds_up && event.from <= last && event.to >= line.at {
                last = last.max(event.to + lands);
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
