//! What becomes of each delivery of one subscription: its state, its copy, its settlement.
//!
//! Only the consumer thread is in here. It asks [`State::step`] what an event means for a delivery, and does it.

use super::acks::Acks;
use super::ledger::{Circumstances, CopyEnd, Count, Effect, End, Event, Redeclared, State, Target};
use super::pace::Pace;
use super::pool::{Job, News, Pool, Report, Reporter, WaitJob};
use super::questions::{Finding, Questions, set_aside_share};
use super::task::{Started, Task};
use super::{Context, Services, Settings};
use crate::clock::later;
use crate::copy::copy;
use crate::declaration::Declaration;
use crate::link::{Generation, Uplink};
use crate::metrics::{CopyLanded, HandBackReason, HandedBack, RungMissing, SetAsideFailed};
use crate::naming;
use crate::outcome::Outcome;
use crate::publisher::{CopyAnswer, PublishResult, UnknownCause};
use crate::retry::{Decision, UNDECODABLE, Wait};
use crate::shutdown::StrandedDelivery;
use crate::transport::{Channel, Delivery, Failure};
use crossbeam_channel::Sender;
use log::{Level, debug, log, warn};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a wait for a missing rung asks for it again.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// A third of RabbitMQ's own limit for an unsettled delivery.
const LONG_UNSTARTED: Duration = Duration::from_secs(10 * 60);

/// How much of a reason is logged, in characters.
const LOGGED_REASON: usize = 500;

/// One delivery that is not settled yet.
struct Entry {
    state: State,
    task: Arc<Task>,
    decision: Option<Decision>,
    started: Option<Started>,
    /// When it was received, and later when its copy was handed to the publisher.
    since: Instant,
    /// When its wait for a missing rung is over.
    wait_until: Instant,
    /// When no wait may hold it any longer, once it has waited.
    hold_until: Option<Instant>,
}

/// What a consumer keeps from one subscription to the next.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The rungs that are known to exist.
    pub(super) rungs: HashSet<Duration>,
    /// What of the consumer's share is on a cluster node that is down.
    pub(super) down: Vec<Declaration>,
    paces: HashMap<Target, Pace>,
    /// Targets whose trouble was logged already.
    warned: HashSet<Target>,
    warned_of_unstarted: bool,
}

pub(super) struct Settling<'a> {
    settings: &'a Settings,
    services: &'a Services,
    uplink: &'a Uplink,
    pool: &'a Pool,
    memory: &'a mut Memory,
    channel: &'a dyn Channel,
    reporter: Reporter,
    answers: Sender<CopyAnswer>,
    questions: Questions<'a>,
    ledger: BTreeMap<u64, Entry>,
    acks: Acks,
    held: BTreeSet<(Instant, u64)>,
}

impl<'a> Settling<'a> {
    pub(super) fn new(
        context: Context<'a>,
        pool: &'a Pool,
        memory: &'a mut Memory,
        channel: &'a dyn Channel,
        generation: Arc<Generation>,
        (reports, answers, findings): (Sender<Report>, Sender<CopyAnswer>, Sender<Finding>),
    ) -> Self {
        Self {
            settings: context.settings,
            services: context.services,
            uplink: context.uplink,
            pool,
            memory,
            channel,
            reporter: Reporter {
                generation,
                reports,
            },
            answers,
            questions: Questions::new(&context.uplink.admin, findings),
            ledger: BTreeMap::new(),
            acks: Acks::default(),
            held: BTreeSet::new(),
        }
    }

    pub(super) fn queue(&self) -> &str {
        &self.settings.queue
    }

    /// Whether every delivery is settled.
    pub(super) fn is_empty(&self) -> bool {
        self.ledger.is_empty()
    }

    /// Whether nothing is left that a drain waits for.
    pub(super) fn is_quiet(&self) -> bool {
        self.ledger.values().all(|entry| entry.task.is_unwaited())
    }

    /// Takes a delivery in; the job goes to the workers.
    pub(super) fn enter(&mut self, delivery: Delivery) -> Job {
        let task = Arc::new(Task::default());
        let now = self.services.clock.now();
        let entry = Entry {
            state: State::Handed,
            task: task.clone(),
            decision: None,
            started: None,
            since: now,
            wait_until: now,
            hold_until: None,
        };
        self.acks.delivered(delivery.tag);
        self.ledger.insert(delivery.tag, entry);
        Job {
            delivery,
            task,
            reporter: self.reporter.clone(),
        }
    }

    /// A worker has news of a delivery.
    pub(super) fn reported(&mut self, tag: u64, news: News) -> Result<(), Failure> {
        match news {
            News::Answered { decision, started } => {
                let Some(entry) = self.ledger.get_mut(&tag) else {
                    return Ok(());
                };
                entry.started = Some(started);
                entry.decision = Some(decision.clone());
                self.step(tag, &Event::Decided(&decision))
            }
            News::WaitOver => self.step(tag, &Event::WaitOver),
            News::AskAgain => self.step(tag, &Event::AskAgain),
        }
    }

    /// The publisher is done with a copy.
    pub(super) fn copy_answered(&mut self, answer: CopyAnswer) -> Result<(), Failure> {
        let CopyAnswer { tag, result } = answer;
        let Some(State::Copying { target, .. }) = self.ledger.get(&tag).map(|entry| entry.state)
        else {
            return Ok(());
        };
        let end = match result {
            PublishResult::Confirmed => CopyEnd::Confirmed,
            PublishResult::Unroutable(_) => CopyEnd::Returned,
            PublishResult::Nacked => CopyEnd::Nacked,
            PublishResult::NotSent(_) => CopyEnd::NotSent,
            PublishResult::Unknown(UnknownCause::Timeout) => CopyEnd::TimedOut,
            PublishResult::Unknown(UnknownCause::Lost(_)) => CopyEnd::Lost,
            PublishResult::ChannelClosed(text) => {
                let target = self.queue_of(target);
                warn!("the broker refused a copy to {target}: {text}");
                CopyEnd::ChannelClosed
            }
        };
        match (end, target) {
            (CopyEnd::Confirmed, _) => {
                self.memory.paces.remove(&target);
                self.memory.warned.remove(&target);
            }
            (CopyEnd::Returned, Target::Rung(delay)) => drop(self.memory.rungs.remove(&delay)),
            _ => {}
        }
        self.step(tag, &Event::Copied(end))
    }

    /// The admin threads have answered.
    pub(super) fn found(&mut self, finding: Finding) -> Result<(), Failure> {
        match finding {
            Finding::Rung { delay, result } => {
                let missing = result.as_ref().is_err_and(Failure::is_not_found);
                if result.is_ok() {
                    self.memory.rungs.insert(delay);
                }
                // Only a 404 means missing: on any other failure the mandatory copy tells.
                let event = if missing {
                    Event::RungMissing
                } else {
                    Event::RungThere
                };
                let waiting = self.questions.waiting_for_rung(delay);
                waiting
                    .into_iter()
                    .try_for_each(|tag| self.step(tag, &event))
            }
            Finding::Declared(declaration) => {
                self.memory.down.retain(|down| *down != declaration);
                Ok(())
            }
            Finding::Redeclared { target, result } => {
                let redeclared = match &result {
                    Ok(()) => Redeclared::Done,
                    Err(Failure::Refused { code: 404, .. }) => Redeclared::NodeDown,
                    Err(Failure::Refused { .. }) => Redeclared::Refused,
                    Err(Failure::Lost(_) | Failure::TimedOut | Failure::NoChannelLeft) => {
                        Redeclared::NoAnswer
                    }
                };
                if let Err(failure) = result {
                    let queue = self.queue_of(target);
                    // It fails again for every message, until a copy lands there.
                    let level = if self.memory.warned.contains(&target) {
                        Level::Debug
                    } else {
                        Level::Warn
                    };
                    log!(level, "{queue} could not be declared again: {failure}");
                    if redeclared == Redeclared::NodeDown {
                        self.note_down(&queue);
                    }
                }
                let waiting = self.questions.waiting_for_redeclared(target);
                let event = Event::Redeclared(redeclared);
                waiting
                    .into_iter()
                    .try_for_each(|tag| self.step(tag, &event))
            }
        }
    }

    fn note_down(&mut self, queue: &str) {
        for declaration in set_aside_share(queue) {
            if !self.memory.down.contains(&declaration) {
                self.memory.down.push(declaration);
            }
        }
    }

    /// What of the consumer's share is on a cluster node that is down.
    pub(super) fn down(&self) -> &[Declaration] {
        &self.memory.down
    }

    /// Asks again for what was on a cluster node that is down, and warns of deliveries that nobody starts.
    pub(super) fn look_at_what_takes_long(&mut self) {
        self.questions.ask_again(&self.memory.down);
        let now = self.services.clock.now();
        let mut unstarted = self.ledger.values().filter(|entry| {
            let age = now.saturating_duration_since(entry.since);
            entry.task.opened().is_none() && age >= LONG_UNSTARTED
        });
        if !self.memory.warned_of_unstarted && unstarted.next().is_some() {
            self.memory.warned_of_unstarted = true;
            warn!(
                "{}: a delivery has waited for {LONG_UNSTARTED:?} for its handler to start; RabbitMQ closes a channel whose \
                 delivery is unsettled for 30 minutes, so prefetch × handler time / concurrency must stay below that",
                self.settings.label
            );
        }
    }

    /// When the next held delivery is to be handed back.
    pub(super) fn next_release(&self) -> Option<Instant> {
        self.held.first().map(|(due, _)| *due)
    }

    pub(super) fn release_held(&mut self) -> Result<(), Failure> {
        while let Some(due) = self.next_release() {
            if due > self.services.clock.now() {
                break;
            }
            if let Some((_, tag)) = self.held.pop_first() {
                self.step(tag, &Event::PauseOver)?;
            }
        }
        Ok(())
    }

    pub(super) fn write_acks(&mut self) -> Result<(), Failure> {
        for frame in self.acks.take() {
            self.channel.ack(frame.tag, frame.multiple)?;
        }
        Ok(())
    }

    /// No wait goes on, and none begins.
    pub(super) fn end_waits(&self) {
        self.reporter.generation.drain();
        self.services.publisher.look_again();
    }

    /// A delivery that no worker has started goes back.
    pub(super) fn take_back(&mut self, tag: u64) -> Result<(), Failure> {
        self.step(tag, &Event::TakenBack)
    }

    /// What waits goes back; what runs or is on its way goes on.
    pub(super) fn drain(&mut self) -> Result<(), Failure> {
        let tags: Vec<u64> = self.ledger.keys().copied().collect();
        tags.into_iter()
            .try_for_each(|tag| self.step(tag, &Event::DrainBegan))
    }

    /// Whatever is reported or answered from now on is thrown away.
    pub(super) fn end_generation(&self) {
        self.reporter.generation.end();
        self.pool.take_back();
        self.services.publisher.look_again();
    }

    /// The channel is gone: the broker has everything back that is not settled.
    pub(super) fn die(&mut self) {
        let tags: Vec<u64> = self.ledger.keys().copied().collect();
        for tag in tags {
            // It has no effect on the channel, so that nothing can fail.
            drop(self.step(tag, &Event::Died));
        }
    }

    /// Takes stock at the deadline: what was started and is not settled.
    pub(super) fn strand(&self) -> Vec<StrandedDelivery> {
        let stranded = |entry: &&Entry| {
            let step = entry
                .state
                .step(&Event::DeadlinePassed, Circumstances::default());
            step.next == State::Ended(End::Stranded)
        };
        let entries = self.ledger.values().filter(stranded);
        entries
            .filter_map(|entry| entry.task.stranded(&self.settings.queue))
            .collect()
    }

    /// Applies one event to one delivery.
    fn step(&mut self, tag: u64, event: &Event<'_>) -> Result<(), Failure> {
        let rung_known = match event {
            Event::Decided(Decision::Retry(Wait::Rung(delay))) => self.memory.rungs.contains(delay),
            _ => false,
        };
        let circumstances = Circumstances {
            draining: self.reporter.generation.is_draining(),
            rung_known,
            never_reject: self.settings.never_reject,
        };
        let Some(entry) = self.ledger.get_mut(&tag) else {
            return Ok(());
        };
        let before = entry.state;
        let step = before.step(event, circumstances);
        entry.state = step.next;
        let metrics = &self.services.metrics;
        match step.count {
            Some(Count::RungMissing) => {
                metrics.rung_missing(&RungMissing::new(&self.settings.queue));
            }
            Some(Count::SetAsideFailed(target)) => {
                let target = self.queue_of(target);
                metrics.set_aside_failed(&SetAsideFailed::new(&self.settings.queue, &target));
            }
            None => {}
        }
        self.act(tag, step.effect)?;
        if let State::Ended(end) = step.next {
            self.end(tag, before, end);
        }
        Ok(())
    }

    fn act(&mut self, tag: u64, effect: Effect) -> Result<(), Failure> {
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
    fn end(&mut self, tag: u64, before: State, end: End) {
        let Some(entry) = self.ledger.remove(&tag) else {
            return;
        };
        let decided = entry.decision.as_ref().map_or(Outcome::Discarded, outcome);
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
            End::Returned | End::Stale | End::Stranded => return,
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
        let (attempt, reason) = match &entry.decision {
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
                "the rung {rung} does not exist, so retries wait in the consumer, {wait:?} at first"
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
            .and_then(|opened| opened.delivery.headers.get("x-delivery-count")?.as_i64())
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

    fn queue_of(&self, target: Target) -> String {
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
    let (end, reason) = match &entry.decision {
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
