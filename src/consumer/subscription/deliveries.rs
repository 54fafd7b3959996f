//! What becomes of each delivery of one subscription: its state, its copy, its settlement.
//!
//! Only the consumer thread is in here. It asks [`State::step`] what an event means for a delivery, and does it.

use super::acks::Acks;
use super::requests::{Finding, Questions};
use super::requeue_pacer::Pace;
use super::state::{Circumstances, CopyEnd, Count, End, Event, Redeclared, State, Target};
use crate::consumer::in_flight::{Started, Task};
use crate::consumer::workers::{Job, News, Pool, Report, Reporter};
use crate::consumer::{Context, Services, Settings};
use crate::error::StrandedDelivery;
use crate::link::{Generation, Uplink};
use crate::message::delivery::Delivery;
use crate::message::publish::error::{PublishResult, UnknownCause};
use crate::metrics::{RungMissing, SetAsideFailed};
use crate::publisher::CopyAnswer;
use crate::retry::{Decision, Wait};
use crate::topology::declaration::Declaration;
use crate::transport::{Channel, Failure};
use crossbeam_channel::Sender;
use log::{Level, log, warn};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A third of RabbitMQ's own limit for an unsettled delivery.
const LONG_UNSTARTED: Duration = Duration::from_secs(10 * 60);

/// One delivery that is not settled yet.
pub(super) struct Entry {
    pub(super) state: State,
    pub(super) task: Arc<Task>,
    pub(super) decision: Option<Arc<Decision>>,
    pub(super) started: Option<Started>,
    /// When it was received, and later when its copy was handed to the publisher.
    pub(super) since: Instant,
    /// When its wait for a missing rung is over.
    pub(super) wait_until: Instant,
    /// When no wait may hold it any longer, once it has waited.
    pub(super) hold_until: Option<Instant>,
}

/// What a consumer keeps from one subscription to the next.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The rungs that are known to exist.
    pub(crate) rungs: HashSet<Duration>,
    /// What of the consumer's share is on a cluster node that is down.
    pub(crate) down: Vec<Declaration>,
    pub(super) paces: HashMap<Target, Pace>,
    /// Targets whose trouble was logged already.
    pub(super) warned: HashSet<Target>,
    pub(super) warned_of_unstarted: bool,
}

pub(crate) struct Settling<'a> {
    pub(super) settings: &'a Settings,
    pub(super) services: &'a Services,
    pub(super) uplink: &'a Uplink,
    pub(super) pool: &'a Pool,
    pub(super) memory: &'a mut Memory,
    pub(super) channel: &'a dyn Channel,
    pub(super) reporter: Reporter,
    pub(super) answers: Sender<CopyAnswer>,
    pub(super) questions: Questions<'a>,
    pub(super) ledger: BTreeMap<u64, Entry>,
    pub(super) acks: Acks,
    pub(super) held: BTreeSet<(Instant, u64)>,
}

impl<'a> Settling<'a> {
    pub(crate) fn new(
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

    pub(crate) fn queue(&self) -> &str {
        &self.settings.queue
    }

    /// Whether every delivery is settled.
    pub(crate) fn is_empty(&self) -> bool {
        self.ledger.is_empty()
    }

    /// Whether nothing is left that a drain waits for.
    pub(crate) fn is_quiet(&self) -> bool {
        self.ledger.values().all(|entry| entry.task.is_unwaited())
    }

    /// Takes a delivery in; the job goes to the workers.
    pub(crate) fn enter(&mut self, delivery: Delivery) -> Job {
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
    pub(crate) fn reported(&mut self, tag: u64, news: News) -> Result<(), Failure> {
        match news {
            News::Answered { decision, started } => {
                let Some(entry) = self.ledger.get_mut(&tag) else {
                    return Ok(());
                };
                let decision = Arc::new(decision);
                entry.started = Some(started);
                entry.decision = Some(decision.clone());
                self.step(tag, &Event::Decided(&decision))
            }
            News::WaitOver => self.step(tag, &Event::WaitOver),
            News::AskAgain => self.step(tag, &Event::AskAgain),
        }
    }

    /// The publisher is done with a copy.
    pub(crate) fn copy_answered(&mut self, answer: CopyAnswer) -> Result<(), Failure> {
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
                if self.memory.paces.remove(&target).is_some() {
                    // Its node is back, it seems.
                    self.questions.ask_again(&self.memory.down);
                }
                self.memory.warned.remove(&target);
            }
            (CopyEnd::Returned, Target::Rung(delay)) => drop(self.memory.rungs.remove(&delay)),
            _ => {}
        }
        self.step(tag, &Event::Copied(end))
    }

    /// The admin threads have answered.
    pub(crate) fn found(&mut self, finding: Finding) -> Result<(), Failure> {
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
        for declaration in crate::topology::set_aside_share(queue) {
            if !self.memory.down.contains(&declaration) {
                self.memory.down.push(declaration);
            }
        }
    }

    /// What of the consumer's share is on a cluster node that is down.
    pub(crate) fn down(&self) -> &[Declaration] {
        &self.memory.down
    }

    /// Asks again for what was on a cluster node that is down, and warns of deliveries that nobody starts.
    pub(crate) fn look_at_what_takes_long(&mut self) {
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
    pub(crate) fn next_release(&self) -> Option<Instant> {
        self.held.first().map(|(due, _)| *due)
    }

    pub(crate) fn release_held(&mut self) -> Result<(), Failure> {
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

    pub(crate) fn write_acks(&mut self) -> Result<(), Failure> {
        for frame in self.acks.take() {
            self.channel.ack(frame.tag, frame.multiple)?;
        }
        Ok(())
    }

    /// No wait goes on, and none begins.
    pub(crate) fn end_waits(&self) {
        self.reporter.generation.drain();
        self.services.publisher.look_again();
    }

    /// A delivery that no worker has started goes back.
    pub(crate) fn take_back(&mut self, tag: u64) -> Result<(), Failure> {
        self.step(tag, &Event::TakenBack)
    }

    /// What waits goes back; what runs or is on its way goes on.
    pub(crate) fn drain(&mut self) -> Result<(), Failure> {
        let tags: Vec<u64> = self.ledger.keys().copied().collect();
        tags.into_iter()
            .try_for_each(|tag| self.step(tag, &Event::DrainBegan))
    }

    /// Whatever is reported or answered from now on is thrown away.
    pub(crate) fn end_generation(&self) {
        self.reporter.generation.end();
        self.pool.take_back();
        self.services.publisher.look_again();
    }

    /// The channel is gone: the broker has everything back that is not settled.
    pub(crate) fn die(&mut self) {
        let tags: Vec<u64> = self.ledger.keys().copied().collect();
        for tag in tags {
            // It has no effect on the channel, so that nothing can fail.
            drop(self.step(tag, &Event::Died));
        }
    }

    /// Takes stock at the deadline: what was started and is not settled.
    pub(crate) fn strand(&self) -> Vec<StrandedDelivery> {
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
}
