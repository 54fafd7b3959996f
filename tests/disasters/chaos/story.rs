//! All that is known of one message.

use super::gremlin::Event;
use super::producer::Published;
use crate::harness::Got;
use crate::harness::work::{Line, Step};
use std::fmt::Write;

#[derive(Debug, Default)]
pub(crate) struct Story {
    pub(crate) published: Option<Published>,
    /// In the order of time.
    pub(crate) lines: Vec<Line>,
    pub(crate) dead: Vec<Copy>,
    pub(crate) parked: Vec<Copy>,
}

/// A message in a dead-letter or parked queue.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) attempt: Option<i64>,
    pub(crate) error: String,
}

impl Story {
    /// How often it was accepted or set aside.
    pub(crate) fn endings(&self) -> usize {
        self.steps(Step::Accepted).count() + self.dead.len() + self.parked.len()
    }

    pub(crate) fn steps(&self, step: Step) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(move |line| line.step == step)
    }

    pub(crate) fn started(&self, attempt: u32) -> Vec<&Line> {
        self.steps(Step::Started)
            .filter(|line| line.attempt == attempt)
            .collect()
    }

    /// What its handlers answered at the last attempt that any of them saw.
    pub(crate) fn last_ended(&self) -> impl Iterator<Item = &Line> {
        let last = self.last_attempt();
        self.steps(Step::Ended)
            .filter(move |line| line.attempt == last)
    }

    pub(crate) fn last_attempt(&self) -> u32 {
        let attempts = self.lines.iter().map(|line| line.attempt);
        attempts.max().unwrap_or(0)
    }

    /// For a person, with what happened meanwhile.
    pub(crate) fn report(&self, n: u64, text: &str, events: &[Event]) -> String {
        let mut report = format!("message {n}: {text}\n");
        if let Some(published) = &self.published {
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
        for line in &self.lines {
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
        for (queue, copies) in [("dlq", &self.dead), ("parked", &self.parked)] {
            for copy in copies {
                let _ = writeln!(report, "  in the {queue}: {copy:?}");
            }
        }
        let first = self.published.as_ref().map_or(0, |published| published.at);
        let last = self.lines.last().map_or(first, |line| line.at) + 15_000;
        for event in events {
            if event.to >= first && event.from <= last {
                let _ = writeln!(report, "  {}..{} {:?}", event.from, event.to, event.what);
            }
        }
        report
    }
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
