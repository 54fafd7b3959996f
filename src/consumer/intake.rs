//! The consumer thread of one subscription: owns its channel, takes deliveries in, and settles them.
//!
//! It is the only one that changes the state of a delivery. Workers, the publisher and the admin threads tell it what
//! happened; it asks [`State::step`] what that means, and does it. It never waits for any of them.

use super::acks::Acks;
use super::ledger::{Circumstances, CopyEnd, Count, Effect, End, Event, Redeclared, State, Target};
use super::pace::Pace;
use super::pool::{Job, LONGEST_WAIT, News, Pool, Report, Reporter, WaitJob};
use super::task::{InFlight, Task};
use super::{Control, Services, Settings};
use crate::copy::copy;
use crate::declaration::Declaration;
use crate::headers::Headers;
use crate::link::{Generation, Operation};
use crate::metrics::{CopyLanded, HandBackReason, HandedBack, RungMissing, SetAsideFailed};
use crate::naming;
use crate::outcome::Outcome;
use crate::publisher::{CopyAnswer, PublishResult, UnknownCause};
use crate::retry::{Decision, Wait};
use crate::shutdown::{Deadline, StrandedDelivery};
use crate::transport::{Channel, Failure, Incoming, Subscription};
use crossbeam_channel::{Receiver, Select, Sender, never, unbounded};
use log::{debug, warn};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a wait for a missing rung asks for it again.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// How a subscription ended.
pub(super) enum Ending {
    /// It was asked to, and this is what it left behind.
    Drained(Vec<StrandedDelivery>),
    /// The channel or the whole connection died.
    Died(Failure),
    /// The broker ended it: its queue was deleted, or moved.
    Cancelled,
}

/// One delivery that is not settled yet.
struct Entry {
    state: State,
    task: Arc<Task>,
    decision: Option<Decision>,
    in_flight: Option<InFlight>,
    /// When its copy was handed to the publisher.
    copied: Instant,
    /// When its wait for a missing rung is over.
    wait_until: Instant,
}

/// What the admin threads found out.
enum Finding {
    Rung {
        delay: Duration,
        result: Result<(), Failure>,
    },
    Redeclared {
        target: Target,
        result: Result<(), Failure>,
    },
}

/// What outlives a subscription: the consumer keeps it from one to the next.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The rungs that are known to exist.
    pub(super) rungs: HashSet<Duration>,
    paces: HashMap<Target, Pace>,
}

pub(super) struct Intake<'a> {
    settings: &'a Settings,
    services: &'a Services,
    control: &'a Receiver<Control>,
    pool: &'a Pool,
    memory: &'a mut Memory,
    channel: &'a dyn Channel,
    subscription: &'a dyn Subscription,
    reporter: Reporter,
    reports: Receiver<Report>,
    answers: (Sender<CopyAnswer>, Receiver<CopyAnswer>),
    findings: (Sender<Finding>, Receiver<Finding>),
    ledger: BTreeMap<u64, Entry>,
    acks: Acks,
    held: BTreeSet<(Instant, u64)>,
    /// Who waits for the answer to a question that has already been asked.
    asking: HashMap<Duration, Vec<u64>>,
    redeclaring: HashMap<Target, Vec<u64>>,
    draining: Option<Deadline>,
    subscribed: bool,
}

impl<'a> Intake<'a> {
    #[allow(
        clippy::too_many_arguments,
        reason = "each is one part of the consumer that this subscription borrows"
    )]
    pub(super) fn new(
        settings: &'a Settings,
        services: &'a Services,
        control: &'a Receiver<Control>,
        pool: &'a Pool,
        memory: &'a mut Memory,
        channel: &'a dyn Channel,
        subscription: &'a dyn Subscription,
    ) -> Self {
        let (sender, reports) = unbounded();
        Self {
            settings,
            services,
            control,
            pool,
            memory,
            channel,
            subscription,
            reporter: Reporter {
                generation: Arc::new(Generation::new()),
                reports: sender,
            },
            reports,
            answers: unbounded(),
            findings: unbounded(),
            ledger: BTreeMap::new(),
            acks: Acks::default(),
            held: BTreeSet::new(),
            asking: HashMap::new(),
            redeclaring: HashMap::new(),
            draining: None,
            subscribed: true,
        }
    }

    /// Serves the subscription until it ends.
    pub(super) fn run(mut self) -> Ending {
        let ending = loop {
            self.wait();
            match self.serve() {
                Ok(None) => {}
                Ok(Some(ending)) => break ending,
                Err(failure) => break Ending::Died(failure),
            }
        };
        if !matches!(ending, Ending::Drained(_)) {
            self.reporter.generation.end();
            self.pool.take_back();
            self.services.publisher.look_again();
        }
        ending
    }

    /// Blocks until there is something to do.
    fn wait(&self) {
        let clock = &self.services.clock;
        let pause = self
            .held
            .first()
            .map_or_else(never, |(due, _)| clock.at(*due));
        let mut select = Select::new();
        select.recv(self.control);
        select.recv(&self.reports);
        select.recv(&self.answers.1);
        select.recv(&self.findings.1);
        select.recv(&pause);
        select.recv(self.services.link.gone());
        if self.subscribed {
            self.subscription.watch(&mut select);
        }
        match self.draining.and_then(Deadline::instant) {
            Some(deadline) => drop(select.ready_deadline(deadline)),
            None => drop(select.ready()),
        }
    }

    /// Does everything there is to do.
    fn serve(&mut self) -> Result<Option<Ending>, Failure> {
        if self.services.link.is_gone() {
            return Err(self.services.link.lost());
        }
        while let Ok(control) = self.control.try_recv() {
            match control {
                Control::Stop(deadline) => self.drain(deadline)?,
            }
        }
        if let Some(ending) = self.take_deliveries()? {
            return Ok(Some(ending));
        }
        self.take_reports()?;
        self.take_answers()?;
        self.take_findings()?;
        self.release_held()?;
        self.write_acks()?;
        match self.draining {
            Some(deadline) if self.ledger.is_empty() || deadline.has_passed() => {
                Ok(Some(self.finish()))
            }
            _ => Ok(None),
        }
    }

    fn take_deliveries(&mut self) -> Result<Option<Ending>, Failure> {
        let mut jobs = Vec::new();
        let mut ending = None;
        while self.subscribed {
            match self.subscription.next() {
                None => break,
                Some(Incoming::Delivery(delivery)) => jobs.push(self.enter(delivery)),
                Some(Incoming::CancelOk) => self.subscribed = false,
                Some(Incoming::Cancelled) => {
                    self.subscribed = false;
                    ending = Some(Ending::Cancelled);
                }
                Some(Incoming::Ended(failure)) => return Err(failure),
            }
        }
        if ending.is_some() {
            self.take_reports()?;
            self.write_acks()?;
        } else if self.draining.is_some() {
            self.give_back(jobs)?;
        } else if !jobs.is_empty() {
            self.pool.push(jobs);
        }
        Ok(ending)
    }

    fn enter(&mut self, delivery: crate::transport::Delivery) -> Job {
        let task = Arc::new(Task::default());
        let now = self.services.clock.now();
        let entry = Entry {
            state: State::Buffered,
            task: task.clone(),
            decision: None,
            in_flight: None,
            copied: now,
            wait_until: now,
        };
        self.acks.delivered(delivery.tag);
        self.ledger.insert(delivery.tag, entry);
        Job {
            delivery,
            task,
            reporter: self.reporter.clone(),
        }
    }

    fn take_reports(&mut self) -> Result<(), Failure> {
        let mut permits = false;
        while let Ok(Report { tag, news }) = self.reports.try_recv() {
            match news {
                News::Answered {
                    decision,
                    in_flight,
                } => {
                    let Some(entry) = self.ledger.get_mut(&tag) else {
                        continue;
                    };
                    entry.in_flight = Some(in_flight);
                    entry.decision = Some(decision.clone());
                    permits = true;
                    self.step(tag, &Event::Decided(&decision))?;
                }
                News::WaitOver => self.step(tag, &Event::WaitOver)?,
                News::AskAgain => self.step(tag, &Event::AskAgain)?,
            }
        }
        if permits {
            self.pool.provide_workers();
        }
        Ok(())
    }

    fn take_answers(&mut self) -> Result<(), Failure> {
        while let Ok(CopyAnswer { tag, result }) = self.answers.1.try_recv() {
            let Some(State::Copying { target, .. }) =
                self.ledger.get(&tag).map(|entry| entry.state)
            else {
                continue;
            };
            let end = match result {
                PublishResult::Confirmed => CopyEnd::Confirmed,
                PublishResult::Unroutable(_) => CopyEnd::Returned,
                PublishResult::Nacked => CopyEnd::Nacked,
                PublishResult::NotSent(_) => CopyEnd::NotSent,
                PublishResult::Unknown(UnknownCause::Timeout) => CopyEnd::TimedOut,
                PublishResult::Unknown(UnknownCause::Lost(_)) => CopyEnd::Lost,
                PublishResult::ChannelClosed(text) => {
                    warn!(
                        "{}: the broker refused a copy to {}: {text}",
                        self.settings.queue,
                        self.queue_of(target)
                    );
                    CopyEnd::ChannelClosed
                }
            };
            match (end, target) {
                (CopyEnd::Confirmed, _) => {
                    if let Some(pace) = self.memory.paces.get_mut(&target) {
                        pace.landed();
                    }
                }
                (CopyEnd::Returned, Target::Rung(delay)) => drop(self.memory.rungs.remove(&delay)),
                _ => {}
            }
            self.step(tag, &Event::Copied(end))?;
        }
        Ok(())
    }

    fn take_findings(&mut self) -> Result<(), Failure> {
        while let Ok(finding) = self.findings.1.try_recv() {
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
                    for tag in self.asking.remove(&delay).unwrap_or_default() {
                        self.step(tag, &event)?;
                    }
                }
                Finding::Redeclared { target, result } => {
                    let redeclared = match &result {
                        Ok(()) => Redeclared::Done,
                        Err(Failure::Refused { code: 404, .. }) => Redeclared::NodeDown,
                        Err(Failure::Refused { .. }) => Redeclared::Refused,
                        Err(Failure::Lost(_) | Failure::TimedOut) => Redeclared::NoAnswer,
                    };
                    if let Err(failure) = result {
                        warn!(
                            "{} could not be declared again: {failure}",
                            self.queue_of(target)
                        );
                    }
                    for tag in self.redeclaring.remove(&target).unwrap_or_default() {
                        self.step(tag, &Event::Redeclared(redeclared))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn release_held(&mut self) -> Result<(), Failure> {
        while let Some((due, tag)) = self.held.first().copied() {
            if due > self.services.clock.now() {
                break;
            }
            self.held.pop_first();
            self.step(tag, &Event::PauseOver)?;
        }
        Ok(())
    }

    /// Applies one event to one delivery.
    fn step(&mut self, tag: u64, event: &Event<'_>) -> Result<(), Failure> {
        let circumstances = Circumstances {
            draining: self.draining.is_some(),
            rung_known: matches!(event, Event::Decided(Decision::Retry(Wait::Rung(delay))) if self.memory.rungs.contains(delay)),
            never_reject: self.settings.never_reject,
        };
        let Some(entry) = self.ledger.get_mut(&tag) else {
            return Ok(());
        };
        let before = entry.state;
        let step = before.step(event, circumstances);
        entry.state = step.next;
        match step.count {
            Some(Count::RungMissing) => self
                .services
                .metrics
                .rung_missing(&RungMissing::new(&self.settings.queue)),
            Some(Count::SetAsideFailed(target)) => {
                let event_target = self.queue_of(target);
                self.services
                    .metrics
                    .set_aside_failed(&SetAsideFailed::new(&self.settings.queue, &event_target));
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
            Effect::Check(delay) => self.check(tag, delay),
            Effect::WaitForRung(delay) => self.wait_for_rung(tag, delay),
            Effect::WaitOn => self.wait_on(tag),
            Effect::Copy(target) => self.copy(tag, target),
            Effect::Redeclare(target) => self.redeclare(tag, target),
            Effect::Pause(target) => self.pause(tag, target),
            Effect::Ack => self.acks.ack(tag),
            Effect::Nack => {
                self.acks.settled(tag);
                self.channel.nack(tag)?;
            }
            Effect::Reject => {
                warn!(
                    "{}: a message could be set aside nowhere and was rejected",
                    self.settings.queue
                );
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
        let outcome = match end {
            End::Acked | End::Rejected => decided,
            End::Nacked => {
                let reason = match before {
                    State::Held { reason } => reason,
                    _ => HandBackReason::Drain,
                };
                self.services
                    .metrics
                    .handed_back(&HandedBack::new(&self.settings.queue, reason));
                Outcome::HandedBack
            }
            End::Returned | End::Stale | End::Stranded => return,
        };
        if end == End::Acked && matches!(before, State::Copying { .. }) {
            self.services
                .metrics
                .copy_landed(&CopyLanded::new(&self.settings.queue, decided));
        }
        if let Some(in_flight) = entry.in_flight {
            in_flight.end(outcome);
        }
    }

    fn copy(&mut self, tag: u64, target: Target) {
        let queue = self.queue_of(target);
        let clock = &self.services.clock;
        let Some(entry) = self.ledger.get_mut(&tag) else {
            return;
        };
        let Some(opened) = entry.task.opened() else {
            return;
        };
        let attempt = opened.envelope.attempt();
        let reason = match &entry.decision {
            Some(Decision::DeadLetter { reason, .. } | Decision::Park { reason }) => {
                Some(reason.as_str())
            }
            _ => None,
        };
        let attempt = if target.sets_aside() {
            attempt
        } else {
            attempt.saturating_add(1)
        };
        let copy = copy(
            opened,
            &queue,
            attempt,
            reason,
            clock.epoch_millis(),
            self.services.link.frame_max(),
        );
        if !copy.left_out.is_empty() {
            let id = opened.envelope.id();
            warn!(
                "a copy of {id} to {queue} left out headers that do not fit a frame: {}",
                copy.left_out.join(", ")
            );
        }
        entry.copied = clock.now();
        self.services.publisher.copy(
            copy.message,
            tag,
            &self.reporter.generation,
            &self.answers.0,
        );
    }

    fn check(&mut self, tag: u64, delay: Duration) {
        let waiting = self.asking.entry(delay).or_default();
        waiting.push(tag);
        if waiting.len() > 1 {
            return;
        }
        let rung = Declaration::durable_queue(
            naming::retry_queue(&self.settings.queue, delay),
            Headers::new(),
        );
        let findings = self.findings.0.clone();
        self.services
            .admin
            .submit(Operation::Check(rung), move |result| {
                drop(findings.send(Finding::Rung { delay, result }));
            });
    }

    fn redeclare(&mut self, tag: u64, target: Target) {
        let waiting = self.redeclaring.entry(target).or_default();
        waiting.push(tag);
        if waiting.len() > 1 {
            return;
        }
        let queue = self.queue_of(target);
        // The copy goes through the default exchange, so the queue alone decides; its binding is for what the broker
        // dead-letters by itself.
        let admin = &self.services.admin;
        let findings = self.findings.0.clone();
        let exchange = naming::DEAD_LETTER_EXCHANGE;
        let binding = Declaration::bound_by_name(&queue, exchange);
        admin.submit(
            Operation::Declare(Declaration::durable_queue(queue, Headers::new())),
            move |result| {
                drop(findings.send(Finding::Redeclared { target, result }));
            },
        );
        for declaration in [Declaration::direct_exchange(exchange), binding] {
            let line = declaration.to_string();
            admin.submit(Operation::Declare(declaration), move |result| {
                if let Err(failure) = result {
                    warn!("{line} could not be declared again: {failure}");
                }
            });
        }
    }

    fn wait_for_rung(&mut self, tag: u64, delay: Duration) {
        let queue = &self.settings.queue;
        let jittered = self.settings.policy.jittered(delay, rand::random());
        warn!(
            "{}: the rung does not exist, so a retry waits in the consumer",
            naming::retry_queue(queue, delay)
        );
        if jittered > LONGEST_WAIT {
            warn!(
                "{queue}: a retry waits {LONGEST_WAIT:?} instead of {jittered:?}: the broker allows no longer hold"
            );
        }
        if let Some(entry) = self.ledger.get_mut(&tag) {
            entry.wait_until = self.services.clock.now() + jittered.min(LONGEST_WAIT);
        }
        self.wait_on(tag);
    }

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

    fn pause(&mut self, tag: u64, target: Target) {
        let now = self.services.clock.now();
        let Some(entry) = self.ledger.get(&tag) else {
            return;
        };
        let opened = entry.task.opened();
        let count = opened
            .and_then(|opened| opened.delivery.headers.get("x-delivery-count")?.as_i64())
            .unwrap_or(0);
        let pace = self.memory.paces.entry(target).or_default();
        let pause = pace.failed(entry.copied, now, count);
        warn!(
            "{}: a copy to {} failed; its message goes back in {pause:?}",
            self.settings.queue,
            self.queue_of(target)
        );
        self.held.insert((now + pause, tag));
    }

    fn write_acks(&mut self) -> Result<(), Failure> {
        for frame in self.acks.take() {
            self.channel.ack(frame.tag, frame.multiple)?;
        }
        Ok(())
    }

    /// Stops the subscription: what was not started goes back, waits end, and running handlers have until the deadline.
    fn drain(&mut self, deadline: Deadline) -> Result<(), Failure> {
        if let Some(earlier) = self.draining {
            self.draining = Some(earlier.min(deadline));
            return Ok(());
        }
        debug!("{}: draining", self.settings.queue);
        self.draining = Some(deadline);
        let unstarted = self.pool.take_back();
        self.reporter.generation.drain();
        self.services.publisher.look_again();
        if deadline.has_passed() {
            return Ok(());
        }
        if self.subscribed {
            self.subscription.cancel()?;
        }
        self.give_back(unstarted)?;
        let tags: Vec<u64> = self.ledger.keys().copied().collect();
        for tag in tags {
            if self
                .ledger
                .get(&tag)
                .is_some_and(|entry| entry.state != State::Buffered)
            {
                self.step(tag, &Event::DrainBegan)?;
            }
        }
        Ok(())
    }

    /// In the order in which they came. Before the broker's cancel-ok it would deliver them to us again.
    fn give_back(&mut self, unstarted: Vec<Job>) -> Result<(), Failure> {
        unstarted
            .into_iter()
            .try_for_each(|job| self.step(job.delivery.tag, &Event::DrainBegan))
    }

    /// Takes stock at the end of a drain. Whatever is reported from now on is thrown away.
    fn finish(&mut self) -> Ending {
        self.reporter.generation.end();
        self.pool.take_back();
        self.services.publisher.look_again();
        let mut stranded = Vec::new();
        for entry in self.ledger.values() {
            let step = entry
                .state
                .step(&Event::DeadlinePassed, Circumstances::default());
            if step.next == State::Ended(End::Stranded) || entry.state == State::Buffered {
                stranded.extend(entry.task.stranded(&self.settings.queue));
            }
        }
        Ending::Drained(stranded)
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

fn outcome(decision: &Decision) -> Outcome {
    match decision {
        Decision::Ack => Outcome::Acked,
        Decision::Retry(_) => Outcome::Retried,
        Decision::DeadLetter { outcome, .. } => *outcome,
        Decision::Park { .. } => Outcome::Parked,
    }
}
