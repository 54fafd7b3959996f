//! Carries out the effects of delivery transitions: copies, waits, pauses and settlements.

use super::deliveries::{Deliveries, UnsettledDelivery};
use super::state::{DeliveryEnd, DeliveryState, Effect, Target};
use crate::consumer::Services;
use crate::consumer::workers::{WaitJob, WorkerEvent};
use crate::message::copy::copy;
use crate::metrics::{CopyLanded, HandBackReason, HandedBack, Outcome};
use crate::naming;
use crate::retry::{Decision, UNDECODABLE};
use crate::time::instant::later;
use crate::transport::Failure;
use log::{debug, warn};
use std::time::Duration;

/// How often a wait for a missing rung checks for the rung again.
const RUNG_RECHECK: Duration = Duration::from_secs(60);

/// Limit of a logged reason, in characters.
const LOGGED_REASON: usize = 500;

impl Deliveries<'_> {
    /// Carries out one effect.
    pub(crate) fn act(&mut self, tag: u64, effect: Effect) -> Result<(), Failure> {
        match effect {
            Effect::Nothing => {}
            Effect::Check(delay) => {
                let rung = self.queue_of(Target::Rung(delay));
                self.requests.check_rung(tag, delay, rung);
            }
            Effect::WaitForRung(delay) => self.wait_for_rung(tag, delay),
            Effect::ResumeWait => self.resume_wait(tag),
            Effect::Copy(target) => self.copy(tag, target),
            Effect::Redeclare(target) => {
                let queue = self.queue_of(target);
                self.requests.redeclare(tag, target, queue);
            }
            Effect::Pause(target) => self.pause(tag, target),
            Effect::Ack => self.acks.ack(tag),
            Effect::Nack => {
                self.acks.settled(tag);
                self.channel.nack(tag)?;
            }
            Effect::Reject => {
                let queue = &self.settings.queue;
                warn!(
                    "{queue}: message rejected: no retry, dead-letter or parked queue could take \
                     its copy"
                );
                self.acks.settled(tag);
                self.channel.reject(tag)?;
            }
        }
        Ok(())
    }

    /// Counts the end of a delivery and removes it.
    pub(crate) fn end(&mut self, tag: u64, before: DeliveryState, end: DeliveryEnd) {
        let Some(entry) = self.unsettled.remove(&tag) else {
            return;
        };
        let decided = entry
            .decision
            .as_deref()
            .map_or(Outcome::Discarded, outcome);
        let queue = &self.settings.queue;
        let outcome = match end {
            DeliveryEnd::Acked | DeliveryEnd::Rejected => decided,
            DeliveryEnd::Nacked => {
                let reason = match before {
                    DeliveryState::Held { reason } => reason,
                    _ => HandBackReason::Drain,
                };
                let handed_back = HandedBack::new(queue, reason);
                self.services.metrics.handed_back(&handed_back);
                Outcome::HandedBack
            }
            DeliveryEnd::Stale => return entry.tracked.mark_stale(),
            DeliveryEnd::Returned | DeliveryEnd::Stranded => return,
        };
        // The copy was confirmed, so the message is where its decision sends it.
        if end == DeliveryEnd::Acked && matches!(before, DeliveryState::Copying { .. }) {
            log_set_aside(queue, &entry);
            let landed = CopyLanded::new(queue, decided);
            self.services.metrics.copy_landed(&landed);
        }
        if let Some(in_flight) = entry.in_flight {
            in_flight.end(outcome);
        }
    }

    /// Hands a copy of the delivery to the publisher.
    fn copy(&mut self, tag: u64, target: Target) {
        let queue = self.queue_of(target);
        let Services {
            clock, publisher, ..
        } = self.services;
        let Some(entry) = self.unsettled.get_mut(&tag) else {
            return;
        };
        let Some(opened) = entry.tracked.opened() else {
            return;
        };
        let attempt = opened.envelope.attempt();
        // A message that is set aside keeps its attempt; a retry counts up.
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
            warn!("copy of {id} to {queue} omits headers that do not fit a frame: {names}");
        }
        // A copy under way is listed in a drain error like a running handler.
        entry.tracked.set_waiting(false);
        // The pacer compares this with the beginning of its round.
        entry.since = clock.now();
        publisher.copy(
            copy.message,
            tag,
            &self.reporter.generation,
            &self.copy_results,
        );
    }

    /// Starts the wait in place of a missing rung.
    fn wait_for_rung(&mut self, tag: u64, delay: Duration) {
        let rung = naming::retry_queue(&self.settings.queue, delay);
        let wait = self
            .settings
            .policy
            .jittered(delay, self.services.clock.chance());
        let now = self.services.clock.now();
        let longest = self.settings.longest_wait;
        if self.known.warned.insert(Target::Rung(delay)) {
            let wait = wait.min(longest);
            warn!(
                "rung {rung} does not exist or is on a cluster node that is down; retries wait \
                 in the consumer, {wait:?} at first"
            );
        }
        if let Some(entry) = self.unsettled.get_mut(&tag) {
            entry.tracked.set_waiting(true);
            // Resumed and repeated waits together must not exceed the cap: Rule 22.
            let hold_until = *entry.hold_until.get_or_insert(later(now, longest));
            entry.wait_until = hold_until.min(later(now, wait));
        }
        self.resume_wait(tag);
    }

    /// Waits in a worker until the wait is over, or until the rung is checked again.
    fn resume_wait(&mut self, tag: u64) {
        let Some(entry) = self.unsettled.get(&tag) else {
            return;
        };
        let recheck_at = self.services.clock.now() + RUNG_RECHECK;
        let (until, then) = if entry.wait_until <= recheck_at {
            (entry.wait_until, WorkerEvent::WaitOver)
        } else {
            (recheck_at, WorkerEvent::RecheckRung)
        };
        self.pool.push_wait(WaitJob {
            tag,
            until,
            then,
            reporter: self.reporter.clone(),
        });
    }

    /// Holds a delivery for the pause of its target, then requeues it.
    fn pause(&mut self, tag: u64, target: Target) {
        let now = self.services.clock.now();
        let Some(entry) = self.unsettled.get(&tag) else {
            return;
        };
        entry.tracked.set_waiting(true);
        let count = entry
            .tracked
            .opened()
            // Set by quorum queues only.
            .and_then(|opened| opened.delivery.headers.get("x-delivery-count")?.as_i64())
            .unwrap_or(0);
        let pacer = self.known.pacers.entry(target).or_default();
        let pause = pacer.failed(entry.since, now, count);
        let queue = self.queue_of(target);
        // One warning per outage of a target; the rest goes to the debug log.
        if self.known.warned.insert(target) {
            warn!("copy to {queue} failed; requeueing its message in {pause:?}");
        } else {
            debug!("copy to {queue} failed; requeueing its message in {pause:?}");
        }
        self.held.insert((now + pause, tag));
    }

    /// The queue name of a target.
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

/// Logs why a message was dead-lettered or parked.
fn log_set_aside(queue: &str, entry: &UnsettledDelivery) {
    let (end, reason) = match entry.decision.as_deref() {
        Some(Decision::DeadLetter { reason, .. }) => ("dead-lettered", reason),
        Some(Decision::Park { reason }) => ("parked", reason),
        _ => return,
    };
    let id = entry
        .tracked
        .opened()
        .map_or("", |opened| opened.envelope.id());
    // What follows may quote the body, which is not logged.
    if reason.starts_with(UNDECODABLE) {
        debug!("{queue}: {id} was {end}: {UNDECODABLE}");
    } else {
        // The reason may contain text of a message, so control characters are escaped.
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
