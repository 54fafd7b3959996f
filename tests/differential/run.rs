//! Takes a program through both brokers, step by step.
//!
//! The embedded broker goes first, and its clock is moved until nothing is due: what is seen then is what the real one has to
//! come to. That is looked at again and again, since much of what it does follows later, until it agrees or a limit is over.

use super::peer::{Raw, let_pass};
use super::program::{CHANNELS, Program, QUEUES, Step};
use super::side::{Seen, Side};
use crate::broker::{Broker, Profile, QueueView};
use crate::message::headers::HeaderValue;
use crate::time::instant::monotonic;
use crate::time::test_clock::TestClock;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// How far the embedded broker's clock is moved after each step: past every short time to live, and never past a long one.
const STEP: Duration = Duration::from_millis(10);

/// Longer than every short time to live, for the real broker.
const MOMENT: Duration = Duration::from_millis(4);

/// What came of a program.
#[derive(Debug)]
pub(super) enum Verdict {
    Agreed,
    /// Both brokers did the same, but one of several things that may happen: the rest is not compared.
    Open,
    Disagreed(Disagreement),
}

/// Where the brokers part.
#[derive(Debug)]
pub(super) struct Disagreement {
    /// The steps that were taken, the last one with different results.
    pub(super) steps: Vec<String>,
    pub(super) embedded: String,
    pub(super) real: String,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {number:>2} {step}")?;
        }
        writeln!(f, "RabbitMQ:\n{}", self.real)?;
        writeln!(f, "embedded broker:\n{}", self.embedded)
    }
}

/// A virtual host of the real broker, with the clients that programs have on it.
pub(super) struct Real {
    url: String,
    side: Side,
    profile: Profile,
}

impl Real {
    /// The virtual host at `url` belongs to this test alone.
    pub(super) fn at(url: &str) -> Self {
        let profile = match Raw::open(url).version().split('.').next() {
            Some("3") => Profile::V3_10,
            _ => Profile::V4_0,
        };
        let mut side = Side::real(url);
        side.clear();
        Self {
            url: url.to_owned(),
            side,
            profile,
        }
    }

    /// Which version the embedded broker has to behave like.
    pub(super) fn profile(&self) -> Profile {
        self.profile
    }

    /// Forgets everything that was done here.
    fn renew(&mut self) {
        self.side.cut();
        *self = Self::at(&self.url);
    }

    /// Takes a program through both brokers. The real one may take as long as `limit` for what follows from a step.
    pub(super) fn run(&mut self, program: &Program, limit: Duration) -> Verdict {
        let verdict = self.compare(program, limit);
        if matches!(verdict, Verdict::Disagreed(_)) {
            self.renew();
        } else {
            self.side.clean();
        }
        verdict
    }

    /// Whether a queue with another number of messages than expected holds one of them twice, or one that has expired behind
    /// another: both come of two copies of a message, of which either may be first.
    fn has_doubles(&mut self, seen: &Seen, expected: &Seen) -> bool {
        let other = |queue: &&'static str| seen.ready[queue] != expected.ready[queue];
        QUEUES.into_iter().filter(other).any(|queue| {
            let ready = seen.ready[queue].unwrap_or(0);
            if ready < 2 {
                return false;
            }
            let drained = self.side.drain(queue, ready);
            // One that has expired goes as soon as it is the first.
            drained.len() < ready || doubles(&drained)
        })
    }

    fn compare(&mut self, program: &Program, limit: Duration) -> Verdict {
        let clock = TestClock::new();
        let builder = Broker::builder().profile(self.profile).clock(&clock);
        let broker = builder.start().unwrap();
        let mut embedded = Side::embedded(&broker);
        let is_short_lived = program.is_short_lived();
        let rounds = if program.has_dead_letters() { 2 } else { 1 };
        // Consumers go before their channels, so that few ends are open.
        let cancel = |channel| Step::Cancel { channel, which: 0 };
        let closing = (0..CHANNELS.len())
            .flat_map(|channel| std::iter::repeat_n(cancel(channel), 3))
            .chain((0..CHANNELS.len()).map(Step::Close));
        let mut steps = Vec::new();
        let mut has_doubles = false;
        let mut missing: BTreeSet<&'static str> = QUEUES.into();
        let mut ready = Seen::default().ready;
        let mut accidents = Accidents::new(self.profile);
        for step in program.0.iter().cloned().chain(closing) {
            if matches!(step, Step::Kill(link) if embedded.is_contested(link)) {
                // Its channels end in any order, and until the last one has, it is handed what the others leave behind.
                return Verdict::Open;
            }
            let before = broker.queues();
            if accidents.stall_at(&step, &before) {
                return Verdict::Open;
            }
            embedded.begin();
            embedded.take(&step);
            if is_short_lived {
                clock.advance(STEP);
            }
            embedded.look(1, &BTreeSet::new());
            let is_retyped = accidents.note(&step, &before, &broker.queues());
            if embedded.is_open || is_retyped {
                return Verdict::Open;
            }
            let expected = embedded.seen();
            let is_missing = |queue: &&'static str| expected.ready[queue] == Err(404);
            missing.retain(is_missing);
            self.side.begin();
            self.side.take(&step);
            if is_short_lived {
                let_pass(MOMENT);
            }
            let seen = await_agreement(&mut self.side, expected, rounds, &missing, limit);
            let is_idle = expected.answer.is_empty() && expected.heard.is_empty();
            if !is_idle || seen != *expected {
                steps.push(format!("{step:?}\n        {}", brief(&seen)));
            }
            has_doubles |= QUEUES.iter().any(|queue| has_doubles_in(&broker, queue))
                || expected.heard.values().any(|heard| doubles(heard));
            if has_doubles && !agree(&seen, expected) && agree_but_for_details(&seen, expected) {
                return Verdict::Open;
            }
            if !agree(&seen, expected) {
                if accidents.is_possible || self.has_doubles(&seen, expected) {
                    return Verdict::Open;
                }
                return Verdict::Disagreed(Disagreement {
                    steps,
                    embedded: long(expected),
                    real: long(&seen),
                });
            }
            if seen.tags != expected.tags {
                // Two queues delivered to one channel: which of them comes first is up to their processes.
                return Verdict::Open;
            }
            if is_short_lived {
                let_pass(MOMENT);
            }
            missing = QUEUES.into_iter().filter(is_missing).collect();
            ready = seen.ready;
        }
        for queue in QUEUES {
            let Some(Ok(ready @ 1..)) = ready.get(queue).copied() else {
                continue;
            };
            let (expected, seen) = (embedded.drain(queue, ready), self.side.drain(queue, ready));
            if doubles(&expected) && sorted(&expected) == sorted(&seen) {
                continue;
            }
            if expected != seen && accidents.is_possible {
                return Verdict::Open;
            }
            if expected != seen {
                steps.push(format!("what is left in {queue}"));
                return Verdict::Disagreed(Disagreement {
                    steps,
                    embedded: lines(&expected),
                    real: lines(&seen),
                });
            }
        }
        Verdict::Agreed
    }
}

/// The accidents of RabbitMQ that the embedded broker does not model. A program that may have met one
/// is compared on, and is open where the brokers part.
struct Accidents {
    profile: Profile,
    /// The type that each queue name had last.
    kinds: BTreeMap<String, &'static str>,
    is_possible: bool,
}

impl Accidents {
    fn new(profile: Profile) -> Self {
        Self {
            profile,
            kinds: BTreeMap::new(),
            is_possible: false,
        }
    }

    /// Whether the step may leave a classic queue of 3.10 with messages that its next single active
    /// consumer does not receive. The queue crashes later, so the step is not taken at all.
    fn stall_at(&self, step: &Step, queues: &[QueueView]) -> bool {
        let stalls = |queue: &QueueView| {
            queue.kind == "classic"
                && is_single_active(queue)
                && queue.ready > 0
                && queue.consumers > 1
        };
        self.profile == Profile::V3_10
            && matches!(step, Step::Cancel { .. })
            && queues.iter().any(stalls)
    }

    /// Notes what a step has changed. Returns whether a queue took the name of one of the other type:
    /// a channel of RabbitMQ may have cached the old type, and then loses its connection.
    fn note(&mut self, step: &Step, before: &[QueueView], after: &[QueueView]) -> bool {
        let total = |queues: &[QueueView], name: &str| {
            let queue = queues.iter().find(|queue| queue.name == name);
            queue.map_or(0, |queue| queue.ready + queue.unacked)
        };
        self.is_possible |= match self.profile {
            // A message over the delivery limit makes room for two.
            Profile::V3_10 => {
                let is_nack = matches!(step, Step::Nack { .. });
                let lost_one = |queue: &QueueView| {
                    queue.arguments.contains("x-delivery-limit")
                        && total(before, &queue.name) > total(after, &queue.name)
                };
                is_nack && after.iter().any(lost_one)
            }
            // Waiting single active consumers are in the order of their credit.
            Profile::V4_0 => after.iter().any(|queue| {
                queue.kind == "quorum" && is_single_active(queue) && queue.consumers > 2
            }),
        };
        let mut is_retyped = false;
        for queue in after {
            let last = self.kinds.insert(queue.name.clone(), queue.kind);
            is_retyped |= last.is_some_and(|last| last != queue.kind);
        }
        is_retyped
    }
}

fn is_single_active(queue: &QueueView) -> bool {
    queue.arguments.get("x-single-active-consumer") == Some(&HeaderValue::Bool(true))
}

fn await_agreement(
    real: &mut Side,
    expected: &Seen,
    rounds: usize,
    missing: &BTreeSet<&'static str>,
    limit: Duration,
) -> Seen {
    let began = monotonic();
    let mut pause = Duration::from_micros(200);
    loop {
        let seen = real.look(rounds, missing);
        let is_over = began.elapsed() > limit;
        if agree(seen, expected) || is_over {
            return seen.clone();
        }
        let_pass(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Tags aside, see [`Verdict::Open`].
fn agree(one: &Seen, other: &Seen) -> bool {
    one.answer == other.answer && one.heard == other.heard && one.ready == other.ready
}

/// Whether a queue holds a message twice. One comes straight from its publisher then and the other by another queue, or both
/// by other queues: which is first is up to their processes.
fn has_doubles_in(broker: &Broker, queue: &str) -> bool {
    let messages = broker.messages(queue);
    let texts: Vec<String> = messages
        .iter()
        .map(|message| message.text().into())
        .collect();
    doubles(&texts)
}

fn doubles(lines: &[String]) -> bool {
    let bodies: BTreeSet<&str> = lines.iter().map(|line| body(line)).collect();
    bodies.len() < lines.len()
}

fn body(line: &str) -> &str {
    line.split(' ').next().unwrap_or_default()
}

fn sorted(lines: &[String]) -> Vec<String> {
    let mut lines = lines.to_vec();
    lines.sort();
    lines
}

/// Whether the same messages came, in whatever state.
fn agree_but_for_details(one: &Seen, other: &Seen) -> bool {
    let bodies = |seen: &Seen| -> Vec<String> {
        let heard = seen.heard.values().flatten().map(|line| body(line));
        heard.map(str::to_owned).collect()
    };
    let start = |seen: &Seen| seen.answer.splitn(4, ' ').take(3).collect::<String>();
    start(one) == start(other) && bodies(one) == bodies(other) && one.ready == other.ready
}

fn brief(seen: &Seen) -> String {
    let ready: Vec<String> = seen
        .ready
        .iter()
        .filter_map(|(queue, ready)| Some(format!("{queue}: {}", ready.as_ref().ok()?)))
        .collect();
    let mut text = format!("{} [{}]", seen.answer, ready.join(", "));
    for (consumer, heard) in &seen.heard {
        for line in heard {
            text.push_str(&format!("\n        consumer {consumer}: {line}"));
        }
    }
    text
}

fn long(seen: &Seen) -> String {
    format!("        {}", brief(seen))
}

fn lines(lines: &[String]) -> String {
    lines
        .iter()
        .map(|line| format!("        {line}\n"))
        .collect()
}
