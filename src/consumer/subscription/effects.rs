//! What the steps of deliveries ask for: copies, waits, pauses, settlements, and that each end is counted.

use super::deliveries::{Entry, Settling};
use super::state::{Effect, End, State, Target};
use crate::consumer::Services;
use crate::consumer::workers::{News, WaitJob};
use crate::message::copy::copy;
use crate::metrics::{CopyLanded, HandBackReason, HandedBack, Outcome};
use crate::naming;
use crate::retry::{Decision, UNDECODABLE};
use crate::time::instant::later;
use crate::transport::Failure;
use log::{debug, warn};
use std::time::Duration;

/// How often a wait for a missing rung asks for it again.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// How much of a reason is logged, in characters.
const LOGGED_REASON: usize = 500;

impl Settling<'_> {
    /// Does what a step says.
    pub(crate) fn act(&mut self, tag: u64, effect: Effect) -> Result<(), Failure> {
        match effect {
            Effect::Nothing => {}
            Effect::Check(delay) => {
                let rung = self.queue_of(Target::Rung(delay));
                self.questions.ask_for_rung(tag, delay, rung);
            }
            Effect::WaitForRung(delay) => self.wait_for_rung(tag, delay),
            Effect::WaitOn => self.wait_on(tag),
            Effect::Copy(target) => self.copy(tag, target),
            Effect::Redeclare(target) => {
                let queue = self.queue_of(target);
                self.questions.redeclare(tag, target, queue);
            }
            Effect::Pause(target) => self.pause(tag, target),
            Effect::Ack => self.acks.ack(tag),
            Effect::Nack => {
                self.acks.settled(tag);
                self.channel.nack(tag)?;
            }
            Effect::Reject => {
                let queue = &self.settings.queue;
                warn!("{queue}: a message could be set aside nowhere and was rejected");
                self.acks.settled(tag);
                self.channel.reject(tag)?;
            }
        }
        Ok(())
    }

    /// Counts the end of a delivery and forgets it.
    pub(crate) fn end(&mut self, tag: u64, before: State, end: End) {
        let Some(entry) = self.ledger.remove(&tag) else {
            return;
        };
        let decided = entry
            .decision
            .as_deref()
            .map_or(Outcome::Discarded, outcome);
        let queue = &self.settings.queue;
        let outcome = match end {
            End::Acked | End::Rejected => decided,
            End::Nacked => {
                let reason = match before {
                    State::Held { reason } => reason,
                    _ => HandBackReason::Drain,
                };
                let handed_back = HandedBack::new(queue, reason);
                self.services.metrics.handed_back(&handed_back);
                Outcome::HandedBack
            }
            End::Stale => return entry.task.become_stale(),
            End::Returned | End::Stranded => return,
        };
        if end == End::Acked && matches!(before, State::Copying { .. }) {
            log_set_aside(queue, &entry);
            let landed = CopyLanded::new(queue, decided);
            self.services.metrics.copy_landed(&landed);
        }
        if let Some(started) = entry.started {
            started.end(outcome);
        }
    }

    fn copy(&mut self, tag: u64, target: Target) {
        let queue = self.queue_of(target);
        let Services {
            clock, publisher, ..
        } = self.services;
        let Some(entry) = self.ledger.get_mut(&tag) else {
            return;
        };
        let Some(opened) = entry.task.opened() else {
            return;
        };
        let attempt = opened.envelope.attempt();
        let (attempt, reason) = match entry.decision.as_deref() {
            Some(Decision::DeadLetter { reason, .. } | Decision::Park { reason }) => {
                (attempt, Some(reason.as_str()))
            }
            _ => (attempt.saturating_add(1), None),
        };
        let copy = copy(
            opened,
            &queue,
            attempt,
            reason,
            clock.epoch_millis(),
            self.uplink.link.frame_max(),
        );
        if !copy.left_out.is_empty() {
            let (id, names) = (opened.envelope.id(), copy.left_out.join(", "));
            warn!("a copy of {id} to {queue} left out headers that do not fit a frame: {names}");
        }
        entry.task.set_waiting(false);
        entry.since = clock.now();
        publisher.copy(copy.message, tag, &self.reporter.generation, &self.answers);
    }

    fn wait_for_rung(&mut self, tag: u64, delay: Duration) {
        let rung = naming::retry_queue(&self.settings.queue, delay);
        let wait = self
            .settings
            .policy
            .jittered(delay, self.services.clock.chance());
        let now = self.services.clock.now();
        let longest = self.settings.longest_wait;
        if self.memory.warned.insert(Target::Rung(delay)) {
            let wait = wait.min(longest);
            warn!(
                "the rung {rung} does not exist or is on a cluster node that is down, so retries wait in the consumer, \
                 {wait:?} at first"
            );
        }
        if let Some(entry) = self.ledger.get_mut(&tag) {
            entry.task.set_waiting(true);
            let hold_until = *entry.hold_until.get_or_insert(later(now, longest));
            entry.wait_until = hold_until.min(later(now, wait));
        }
        self.wait_on(tag);
    }

    /// Waits in a worker, for as long as the rung need not be asked for again.
    fn wait_on(&mut self, tag: u64) {
        let Some(entry) = self.ledger.get(&tag) else {
            return;
        };
        let ask_again = self.services.clock.now() + ASK_AGAIN;
        let (until, then) = if entry.wait_until <= ask_again {
            (entry.wait_until, News::WaitOver)
        } else {
            (ask_again, News::AskAgain)
        };
        self.pool.push_wait(WaitJob {
            tag,
            until,
            then,
            reporter: self.reporter.clone(),
        });
    }

    /// Holds a delivery until the pace of its target lets it go back.
    fn pause(&mut self, tag: u64, target: Target) {
        let now = self.services.clock.now();
        let Some(entry) = self.ledger.get(&tag) else {
            return;
        };
        entry.task.set_waiting(true);
        let count = entry
            .task
            .opened()
            .and_then(|opened| {
                opened
                    .delivery
                    .headers
                    .get(crate::message::wire::DELIVERY_COUNT)?
                    .as_i64()
            })
            .unwrap_or(0);
        let pace = self.memory.paces.entry(target).or_default();
        let pause = pace.failed(entry.since, now, count);
        let queue = self.queue_of(target);
        if self.memory.warned.insert(target) {
            warn!("a copy to {queue} failed; its message goes back in {pause:?}");
        } else {
            debug!("a copy to {queue} failed; its message goes back in {pause:?}");
        }
        self.held.insert((now + pause, tag));
    }

    pub(crate) fn queue_of(&self, target: Target) -> String {
        let source = &self.settings.queue;
        match target {
            Target::Rung(delay) => naming::retry_queue(source, delay),
            Target::Source => source.to_string(),
            Target::DeadLetter => naming::dead_letter_queue(source),
            Target::Parked => naming::parked_queue(source),
        }
    }
}

fn log_set_aside(queue: &str, entry: &Entry) {
    let (end, reason) = match entry.decision.as_deref() {
        Some(Decision::DeadLetter { reason, .. }) => ("dead-lettered", reason),
        Some(Decision::Park { reason }) => ("parked", reason),
        _ => return,
    };
    let id = entry
        .task
        .opened()
        .map_or("", |opened| opened.envelope.id());
    if reason.starts_with(UNDECODABLE) {
        debug!("{queue}: {id} was {end}: {UNDECODABLE}");
    } else {
        let reason: String = reason.chars().take(LOGGED_REASON).collect();
        debug!("{queue}: {id} was {end}: {}", reason.escape_debug());
    }
}

fn outcome(decision: &Decision) -> Outcome {
    match decision {
        Decision::Ack => Outcome::Acked,
        Decision::Retry(_) => Outcome::Retried,
        Decision::DeadLetter { outcome, .. } => *outcome,
        Decision::Park { .. } => Outcome::Parked,
    }
}
