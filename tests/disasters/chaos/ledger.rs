//! Holds what the producer was told against what the handlers wrote and what the broker has in the
//! end.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use super::gremlin::{Event, What};
use super::losses::{Losses, Lost};
use super::producer::{NUMBER, Published, Told};
use super::story::Story;
use super::times::{Times, UNWRITTEN};
use crate::harness::Got;
use crate::harness::work::{ATTEMPTS, Goes, Line, Plan, Step};

/// An event and what it brings about may be noted in the wrong order by so much.
const BLUR: u64 = 1_000;
/// A shorter stop of the broker is no cause for anything.
const NOTICED: u64 = 1_000;

/// All that was seen of a run.
pub(crate) struct Seen<'a> {
    pub(crate) published: Vec<Published>,
    pub(crate) diary: Vec<Line>,
    /// What was taken out of the dead-letter and parked queues.
    pub(crate) dead: &'a [Got],
    pub(crate) parked: &'a [Got],
    pub(crate) events: &'a [Event],
    /// For each kill of the broker: how many messages its quorum queue has dropped at the next
    /// start, by its log.
    pub(crate) dropped: Vec<usize>,
}

/// What a run came to.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) faults: Vec<String>,
    pub(crate) counts: BTreeMap<&'static str, usize>,
    /// Everything confirmed that ended nowhere, without a known reason.
    pub(crate) missing: BTreeSet<u64>,
    /// What RabbitMQ itself has lost.
    pub(crate) lost: BTreeMap<Lost, usize>,
    /// Deliveries more than copies, by what had happened since the one before.
    pub(crate) delivered_again: BTreeMap<&'static str, usize>,
}

impl Ledger {
    pub(crate) fn new(seen: Seen<'_>) -> Self {
        let mut stories: BTreeMap<u64, Story> = BTreeMap::new();
        for published in seen.published {
            let story = stories.entry(published.n).or_default();
            story.published = Some(published);
        }
        for line in seen.diary {
            stories.entry(line.n).or_default().lines.push(line);
        }
        for got in seen.dead {
            let story = stories.entry(number(got)).or_default();
            story.dead.push(got.into());
        }
        for got in seen.parked {
            let story = stories.entry(number(got)).or_default();
            story.parked.push(got.into());
        }
        let mut ledger = Self::default();
        let mut losses = Losses::new(seen.events, seen.dropped);
        for (n, story) in &stories {
            let mut check = Check {
                ledger: &mut ledger,
                n: *n,
                story,
                events: seen.events,
            };
            check.all(&mut losses);
        }
        ledger
    }

    pub(crate) fn lost_to(&self, lost: Lost) -> usize {
        self.lost.get(&lost).copied().unwrap_or(0)
    }

    pub(crate) fn count_of(&self, name: &str) -> usize {
        self.counts.get(name).copied().unwrap_or(0)
    }
}

/// One message.
struct Check<'a> {
    ledger: &'a mut Ledger,
    n: u64,
    story: &'a Story,
    events: &'a [Event],
}

impl Check<'_> {
    fn all(&mut self, losses: &mut Losses<'_>) {
        let Some(published) = &self.story.published else {
            self.fault("was never published");
            return;
        };
        let endings = self.story.endings();
        match published.told {
            Told::Confirmed => {
                self.count("published: confirmed", 1);
                if endings == 0 {
                    self.confirmed_and_gone(losses, published);
                }
            }
            Told::Unknown if endings == 0 => self.count("published: unknown, not there", 1),
            Told::Unknown => self.count("published: unknown, there", 1),
            Told::Refused => {
                self.count("published: refused", 1);
                if endings > 0 || !self.story.lines.is_empty() {
                    self.fault("was refused, and is there");
                }
            }
        }
        self.attempts(published.plan);
        self.deliveries(published.plan);
        if endings > 0 {
            self.ending(published.plan);
        }
    }

    fn confirmed_and_gone(&mut self, losses: &mut Losses<'_>, published: &Published) {
        match losses.excuse(self.story, published) {
            Some(lost) => {
                *self.ledger.lost.entry(lost).or_default() += 1;
                // The broker's log tells of each of these.
                if lost != Lost::WithoutLeader {
                    println!("{}", self.story.report(self.n, lost.name(), self.events));
                }
            }
            None => {
                self.ledger.missing.insert(self.n);
                self.fault("MISSING: confirmed, and ended nowhere");
            }
        }
    }

    fn ending(&mut self, plan: Plan) {
        let story = self.story;
        let (wanted, attempt, reason) = plan.ending();
        let accepted = story.steps(Step::Accepted).count();
        for (goes, name, times) in [
            (Goes::Away, "ended: accepted", accepted),
            (
                Goes::Dead,
                "ended: in the dead-letter queue",
                story.dead.len(),
            ),
            (Goes::Parked, "ended: parked", story.parked.len()),
        ] {
            if times > 0 {
                self.count(name, 1);
                if goes != wanted {
                    self.fault(&format!("{name}, not {wanted:?}"));
                }
            }
        }
        let copies = story.dead.iter().chain(&story.parked);
        let accepted_at = story
            .steps(Step::Accepted)
            .map(|line| i64::from(line.attempt));
        let mut attempts = copies
            .clone()
            .map(|copy| copy.attempt.unwrap_or(-1))
            .chain(accepted_at);
        if attempts.any(|at| at != i64::from(attempt)) {
            self.fault(&format!("did not end at attempt {attempt}"));
        }
        for copy in copies {
            if !copy.error.starts_with(reason) {
                self.fault(&format!("the reason is not {reason:?}"));
            }
        }
        if story.endings() > 1 {
            self.count("messages that ended more than once", 1);
        }
        self.set_aside_once();
    }

    /// Each copy has a handling of its own, but for what a killed broker puts back after the test
    /// has taken it out.
    fn set_aside_once(&mut self) {
        let story = self.story;
        let set_aside = story.dead.len() + story.parked.len();
        let handled = story.steps(Step::Ended).count();
        let last = story.lines.last().map_or(0, |line| line.at);
        let back = |event: &Event| event.what == What::BrokerKilled && event.to >= last;
        if set_aside > handled {
            if self.events.iter().any(back) {
                let name = "in a dead-letter or parked queue again after a kill of the broker";
                self.count(name, set_aside - handled);
            } else {
                self.fault("was set aside more often than handled");
            }
        }
    }

    fn attempts(&mut self, plan: Plan) {
        let (_, last, _) = plan.ending();
        for line in &self.story.lines {
            let attempt = line.attempt;
            if attempt > last || attempt > ATTEMPTS {
                self.fault(&format!("attempt {attempt} is beyond its policy"));
            }
            let mut before = self.story.steps(Step::Ended);
            let failed_before = attempt == 1
                || before.any(|one| one.attempt + 1 == attempt && one.at <= line.at + 50);
            if !failed_before {
                self.fault(&format!("attempt {attempt} without the one before"));
            }
        }
    }

    /// A delivery more than its attempt can have copies is a duplicate, and something must have
    /// happened since the one before.
    fn deliveries(&mut self, plan: Plan) {
        let mut copies = 1;
        for attempt in 1..=ATTEMPTS {
            let started = self.story.started(attempt);
            let again = started.len().saturating_sub(copies);
            // With two copies about, either may be the one that is delivered again.
            let mut causes = Vec::new();
            let mut without_cause = Vec::new();
            for next in 1..started.len() {
                let (before, next) = (&started[..next], started[next]);
                let mut before = before.iter().rev();
                match before.find_map(|first| self.cause(first, next, plan)) {
                    Some(cause) => causes.push(cause),
                    None => without_cause.push(next),
                }
            }
            let home_again = self.home_again(attempt, plan, &without_cause);
            if causes.len() + home_again < again {
                self.fault(&format!("attempt {attempt} came again without a cause"));
            }
            let home_again =
                iter::repeat_n("broker killed just after a wait in a rung", home_again);
            for cause in causes.into_iter().chain(home_again).take(again) {
                *self.ledger.delivered_again.entry(cause).or_default() += 1;
            }
            let ended = self
                .story
                .steps(Step::Ended)
                .filter(|line| line.attempt == attempt)
                .count();
            copies = ended.max(1);
        }
    }

    /// How many of these deliveries may be those of a copy that came home from a rung once more,
    /// when a kill had undone that the rung had let it go: one for each kill, and after it.
    fn home_again(&self, attempt: u32, plan: Plan, deliveries: &[&Line]) -> usize {
        let Goes::IntoRung(wait) = plan.goes(attempt - 1) else {
            return 0;
        };
        let into_rung = self
            .story
            .steps(Step::Ended)
            .filter(|line| line.attempt == attempt - 1);
        let mut kills: Vec<u64> = into_rung
            .flat_map(|line| Times(self.events).kills_just_after_wait(line, wait, UNWRITTEN))
            .map(|kill| kill.from)
            .collect();
        kills.sort_unstable();
        let mut kills = kills.into_iter().peekable();
        let after_a_kill = |line: &&&Line| kills.next_if(|kill| *kill <= line.at).is_some();
        deliveries.iter().filter(after_a_kill).count()
    }

    /// What may have made the broker deliver again.
    fn cause(&self, first: &Line, second: &Line, plan: Plan) -> Option<&'static str> {
        let between = |event: &&Event| event.from <= second.at && event.to + BLUR >= first.at;
        let concerns = |event: &&Event| match event.what {
            // One that was suspended goes on with what it had received, before it learns that the
            // broker has that back.
            What::Suspended(process) => process == first.process || process == second.process,
            What::Killed(process) | What::Terminated(process) | What::StartFailed(process) => {
                process == first.process
            }
            What::BrokerKilled | What::ConnectionsClosed => true,
            What::BrokerFrozen => event.to - event.from >= NOTICED,
            What::CopiesRefused => {
                matches!(
                    plan.goes(first.attempt),
                    Goes::IntoRung(_) | Goes::Dead | Goes::Parked
                )
            }
            What::QueuesHung => matches!(plan.goes(first.attempt), Goes::Dead | Goes::Parked),
            What::Deleted(_) | What::Alarm | What::ShortRungs => false,
        };
        let causes = self.events.iter().filter(between).filter(concerns);
        causes.map(|event| &event.what).min().map(What::name)
    }

    fn count(&mut self, name: &'static str, n: usize) {
        *self.ledger.counts.entry(name).or_default() += n;
    }

    fn fault(&mut self, text: &str) {
        let report = self.story.report(self.n, text, self.events);
        self.ledger.faults.push(report);
    }
}

#[track_caller]
fn number(got: &Got) -> u64 {
    let n = got
        .header_number(NUMBER)
        .expect("the number of the message");
    n.try_into().unwrap()
}
