//! Holds what the producer was told against what the handlers wrote and what the broker has in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::gremlin::{Event, What};
use super::producer::{NUMBER, Published, Told};
use super::work::{ATTEMPTS, Line, Plan, Step};
use crate::harness::Got;

/// An event and what it brings about may be noted in the wrong order by so much.
const BLUR: u64 = 1_000;
/// How long the broker may keep in memory what nobody waits to see confirmed.
const UNWRITTEN: u64 = 2_000;
/// The longest wait in a rung, and what a copy may take to get there.
const RUNG_AND_CONFIRM: u64 = 1_200 + 5_000;

/// All that is known of one message.
#[derive(Debug, Default)]
struct Story {
    published: Option<Published>,
    lines: Vec<Line>,
    dead: Vec<Copy>,
    parked: Vec<Copy>,
}

/// A message in a dead-letter or parked queue.
#[derive(Clone, Debug)]
struct Copy {
    attempt: Option<i64>,
    error: String,
}

/// What a run came to.
pub(crate) struct Ledger {
    stories: BTreeMap<u64, Story>,
    events: Vec<Event>,
    pub(crate) faults: Vec<String>,
    pub(crate) counts: BTreeMap<String, usize>,
    /// Everything confirmed that ended nowhere, without a known reason.
    pub(crate) missing: BTreeSet<u64>,
    /// Messages that a quorum queue may have dropped while it had no leader.
    pub(crate) without_leader: usize,
}

impl Ledger {
    /// `dead` and `parked` are what was in these queues in the end.
    pub(crate) fn new(
        published: Vec<Published>,
        diary: Vec<Line>,
        dead: &[Got],
        parked: &[Got],
        events: &[Event],
    ) -> Self {
        let mut stories: BTreeMap<u64, Story> = BTreeMap::new();
        for published in published {
            let story: &mut Story = stories.entry(published.n).or_default();
            story.published = Some(published);
        }
        for line in diary {
            stories.entry(line.n).or_default().lines.push(line);
        }
        for got in dead {
            stories
                .entry(number(got))
                .or_default()
                .dead
                .push(got.into());
        }
        for got in parked {
            stories
                .entry(number(got))
                .or_default()
                .parked
                .push(got.into());
        }
        let mut ledger = Self {
            stories,
            events: events.to_vec(),
            faults: Vec::new(),
            counts: BTreeMap::new(),
            missing: BTreeSet::new(),
            without_leader: 0,
        };
        ledger.check();
        ledger
    }

    fn check(&mut self) {
        let stories = std::mem::take(&mut self.stories);
        for (n, story) in &stories {
            self.check_one(*n, story);
        }
        self.stories = stories;
    }

    fn check_one(&mut self, n: u64, story: &Story) {
        let Some(published) = &story.published else {
            self.fault(n, story, "was never published");
            return;
        };
        let endings = story.accepted() + story.dead.len() + story.parked.len();
        match published.told {
            Told::Confirmed => {
                self.count("published: confirmed", 1);
                if endings == 0
                    && let Some(lost) = self.lost_by_broker(story, published)
                {
                    self.count(lost.name(), 1);
                    if lost != Lost::WithoutLeader {
                        println!("{}", self.report(n, story, lost.name()));
                    }
                    self.without_leader += usize::from(lost == Lost::WithoutLeader);
                } else if endings == 0 {
                    self.missing.insert(n);
                    self.fault(n, story, "MISSING: confirmed, and ended nowhere");
                }
            }
            Told::Unknown if endings == 0 => self.count("published: unknown, not there", 1),
            Told::Unknown => self.count("published: unknown, there", 1),
            Told::Refused => {
                self.count("published: refused", 1);
                if endings > 0 || !story.lines.is_empty() {
                    self.fault(n, story, "was refused, and is there");
                }
            }
        }
        if endings == 0 {
            return;
        }
        self.check_ending(n, story, published.plan);
        self.check_attempts(n, story, published.plan);
        self.count_duplicates(n, story, endings);
    }

    /// How RabbitMQ may have lost it: a wait in a rung ends by dead-lettering, which nothing confirms, and what is on its
    /// way to a queue that is deleted is confirmed all the same.
    fn lost_by_broker(&self, story: &Story, published: &Published) -> Option<Lost> {
        // Its copy was on the way just then.
        let decided = story.lines.last().map_or(published.at, |line| line.at);
        let deleted = |event: &Event| matches!(event.what, What::Deleted(1..));
        let mut deletions = self.events.iter().filter(|event| deleted(event));
        if deletions.any(|event| (event.from.saturating_sub(BLUR)..event.to).contains(&decided)) {
            return Some(Lost::WithQueue);
        }
        let last = story.lines.last()?;
        let killed = |from: u64, to: u64| {
            let kills = self
                .events
                .iter()
                .filter(|event| event.what == What::BrokerKilled);
            let mut around = kills.filter(|event| event.from < to && event.to > from);
            around.next()
        };
        if last.step == Step::Ended
            && (2..ATTEMPTS).contains(&last.attempt)
            && let Some(kill) = killed(last.at, last.at + RUNG_AND_CONFIRM)
        {
            // A rung dead-letters what has expired as soon as the broker is up, a quorum queue has its election after that.
            if published.queue == "quorum" {
                return Some(Lost::WithoutLeader);
            }
            let due = last.at + if last.attempt == 2 { 600 } else { 1_200 };
            return (due <= kill.from + BLUR).then_some(Lost::Unwritten);
        }
        // Delivered out of a rung, and the broker had not written it down yet.
        let delivered = story.started(last.attempt).first()?.at;
        let from_rung = (3..=ATTEMPTS).contains(&last.attempt);
        (from_rung && killed(delivered, delivered + UNWRITTEN).is_some()).then_some(Lost::Unwritten)
    }

    fn check_ending(&mut self, n: u64, story: &Story, plan: Plan) {
        let ended_as = |kind| match kind {
            Kind::Accepted => story.accepted() > 0,
            Kind::Dead => !story.dead.is_empty(),
            Kind::Parked => !story.parked.is_empty(),
        };
        let (wanted, attempt, reason) = ending(plan);
        for kind in [Kind::Accepted, Kind::Dead, Kind::Parked] {
            if ended_as(kind) {
                self.count(&format!("ended: {kind:?}"), 1);
                if kind != wanted {
                    self.fault(n, story, &format!("ended as {kind:?}, not as {wanted:?}"));
                }
            }
        }
        let accepted = story
            .lines
            .iter()
            .filter(|line| line.step == Step::Accepted);
        let accepted = accepted
            .map(|line| i64::from(line.attempt))
            .collect::<Vec<_>>();
        let copies = story.dead.iter().chain(&story.parked);
        let attempts = copies.clone().map(|copy| copy.attempt.unwrap_or(-1));
        if attempts.chain(accepted).any(|at| at != i64::from(attempt)) {
            self.fault(n, story, &format!("did not end at attempt {attempt}"));
        }
        for copy in copies {
            if !copy.error.starts_with(reason) {
                self.fault(n, story, &format!("the reason is not {reason:?}"));
            }
        }
    }

    fn check_attempts(&mut self, n: u64, story: &Story, plan: Plan) {
        let (_, last, _) = ending(plan);
        for line in &story.lines {
            if line.attempt > last || line.attempt > ATTEMPTS {
                self.fault(
                    n,
                    story,
                    &format!("attempt {} is beyond its policy", line.attempt),
                );
            }
            let failed_before = line.attempt == 1
                || story.lines.iter().any(|earlier| {
                    earlier.attempt + 1 == line.attempt
                        && earlier.step == Step::Ended
                        && earlier.at <= line.at + 50
                });
            if !failed_before {
                self.fault(
                    n,
                    story,
                    &format!("attempt {} without the one before", line.attempt),
                );
            }
        }
    }

    /// A delivery more than its attempt has copies is a duplicate, and something must have happened since the one before.
    fn count_duplicates(&mut self, n: u64, story: &Story, endings: usize) {
        if endings > 1 {
            self.count("messages that ended more than once", 1);
        }
        let mut copies = 1;
        for attempt in 1..=ATTEMPTS {
            let started = story.started(attempt);
            let extra = started.len().saturating_sub(copies);
            copies = started.len().max(1);
            let mut windows: Vec<&str> = started
                .windows(2)
                .filter_map(|pair| self.window(pair[0], pair[1]))
                .collect();
            windows.sort_unstable();
            if windows.len() < extra {
                self.fault(
                    n,
                    story,
                    &format!("attempt {attempt} came again without a cause"),
                );
            }
            for window in windows.into_iter().take(extra) {
                self.count(&format!("delivered again: {window}"), 1);
            }
        }
        let set_aside = story.dead.len() + story.parked.len();
        let runs = story
            .lines
            .iter()
            .filter(|line| line.step == Step::Ended)
            .count();
        if runs > 0 && set_aside > runs {
            self.count("set aside more often than handled", set_aside - runs);
        }
        if runs == 0 && set_aside > 1 {
            self.count("undecodable, parked again", set_aside - 1);
        }
    }

    /// What may have made the broker deliver again.
    fn window(&self, first: &Line, second: &Line) -> Option<&'static str> {
        let between = |event: &&Event| event.from <= second.at && event.to + BLUR >= first.at;
        let concerns = |event: &&Event| match event.what {
            // One that was suspended goes on with what it had received, before it learns that the broker has that back.
            What::Suspended(process) => process == first.process || process == second.process,
            What::Killed(process) | What::Terminated(process) => process == first.process,
            What::ShortRungs => false,
            _ => true,
        };
        let mut causes: Vec<What> = self
            .events
            .iter()
            .filter(between)
            .filter(concerns)
            .map(|event| event.what)
            .collect();
        causes.sort_unstable();
        causes.first().map(|what| what.name())
    }

    fn count(&mut self, name: &str, n: usize) {
        *self.counts.entry(name.to_owned()).or_default() += n;
    }

    fn fault(&mut self, n: u64, story: &Story, text: &str) {
        let report = self.report(n, story, text);
        self.faults.push(report);
    }

    /// All that is known of a message.
    fn report(&self, n: u64, story: &Story, text: &str) -> String {
        let mut report = format!("message {n}: {text}\n");
        if let Some(published) = &story.published {
            let Published {
                plan,
                queue,
                told,
                at,
                said,
                ..
            } = published;
            let _ = writeln!(
                report,
                "  {at} published to {queue}: {plan:?}, {told:?} {said}"
            );
        }
        for line in &story.lines {
            let Line {
                at,
                process,
                attempt,
                redelivered,
                step,
                ..
            } = line;
            let _ = writeln!(
                report,
                "  {at} attempt {attempt} {step:?} in process {process}, redelivered {redelivered}"
            );
        }
        for (queue, copies) in [("dlq", &story.dead), ("parked", &story.parked)] {
            for copy in copies {
                let _ = writeln!(report, "  in the {queue}: {copy:?}");
            }
        }
        let first = story.published.as_ref().map_or(0, |published| published.at);
        let last = story.lines.last().map_or(first, |line| line.at) + 15_000;
        for event in &self.events {
            if event.to >= first && event.from <= last {
                let _ = writeln!(report, "  {}..{} {:?}", event.from, event.to, event.what);
            }
        }
        report
    }
}

impl Story {
    fn accepted(&self) -> usize {
        self.lines
            .iter()
            .filter(|line| line.step == Step::Accepted)
            .count()
    }

    fn started(&self, attempt: u32) -> Vec<&Line> {
        let started = |line: &&Line| line.attempt == attempt && line.step == Step::Started;
        self.lines.iter().filter(started).collect()
    }
}

/// What RabbitMQ does not promise, see the guarantees in README.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Unwritten,
    WithoutLeader,
    WithQueue,
}

impl Lost {
    fn name(self) -> &'static str {
        match self {
            Self::Unwritten => "lost by the broker: had left its rung when it was killed",
            Self::WithoutLeader => {
                "lost by the broker: left its rung while its quorum queue had no leader"
            }
            Self::WithQueue => "lost by the broker: on its way to an empty queue that was deleted",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Accepted,
    Dead,
    Parked,
}

/// How, at which attempt and with which reason a message of this plan must end.
fn ending(plan: Plan) -> (Kind, u32, &'static str) {
    match plan {
        Plan::Accept | Plan::Slow => (Kind::Accepted, 1, ""),
        Plan::Fail(failures) | Plan::Panic(failures) => (Kind::Accepted, failures + 1, ""),
        Plan::FailAlways => (Kind::Dead, ATTEMPTS, "gave up after 4 attempts: as planned"),
        Plan::Fatal => (
            Kind::Dead,
            1,
            "retrying cannot help: FatalError: as planned",
        ),
        Plan::Reject => (Kind::Dead, 1, "rejected by the handler: as planned"),
        Plan::Park => (Kind::Parked, 1, "parked by the handler: as planned"),
        Plan::Undecodable => (Kind::Parked, 1, "could not be decoded: "),
    }
}

#[track_caller]
fn number(got: &Got) -> u64 {
    let n = got
        .header_number(NUMBER)
        .expect("the number of the message");
    n.try_into().unwrap()
}

impl From<&Got> for Copy {
    fn from(got: &Got) -> Self {
        Self {
            attempt: got.header_number("x-acemq-attempt"),
            error: got
                .header_text("x-acemq-error")
                .unwrap_or("none")
                .to_owned(),
        }
    }
}
