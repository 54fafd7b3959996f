//! The unsettled deliveries of one subscription: their states, copies and settlements.
//!
//! Only the consumer thread uses this. It asks [`DeliveryState::step`] what an event means for a
//! delivery, and carries out the effect.

use super::acks::Acks;
use super::requests::{AdminReply, AdminRequests};
use super::requeue_pacer::RequeuePacer;
use super::state::{Circumstances, Count, DeliveryEnd, DeliveryState, Event, Target};
use crate::consumer::in_flight::{InFlightGuard, TrackedDelivery};
use crate::consumer::workers::{DeliveryJob, Reporter, WorkerEvent, WorkerPool, WorkerReport};
use crate::consumer::{Context, Services, Settings};
use crate::error::StrandedDelivery;
use crate::link::{Generation, Uplink};
use crate::message::delivery::Delivery;
use crate::message::publish::error::PublishResult;
use crate::metrics::{RungMissing, SetAsideFailed};
use crate::publisher::CopyResult;
use crate::retry::{Decision, Wait};
use crate::topology::declaration::Declaration;
use crate::transport::{Channel, Failure};
use crossbeam_channel::Sender;
use log::warn;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A third of RabbitMQ's own timeout for an unsettled delivery. Rule 22.
const LONG_UNSTARTED: Duration = Duration::from_secs(10 * 60);

/// A delivery that is not settled yet.
pub(super) struct UnsettledDelivery {
    /// Changed by [`Deliveries::step`] only.
    pub(super) state: DeliveryState,
    pub(super) tracked: Arc<TrackedDelivery>,
    /// Set once its handler has answered.
    pub(super) decision: Option<Arc<Decision>>,
    /// Counts it as in flight; handed over with the answer of its handler.
    pub(super) in_flight: Option<InFlightGuard>,
    /// When it was received; later, when its copy was handed to the publisher.
    pub(super) since: Instant,
    /// When its wait for a missing rung is over.
    pub(super) wait_until: Instant,
    /// When it must be retried, however often its wait is resumed; set by its first wait.
    pub(super) hold_until: Option<Instant>,
}

/// What a consumer has learned about the broker; kept from one subscription to the next.
#[derive(Debug, Default)]
pub(crate) struct BrokerKnowledge {
    /// Rungs that exist.
    pub(crate) rungs: HashSet<Duration>,
    /// Declared objects that are missing or on a cluster node that is down.
    pub(crate) unavailable: Vec<Declaration>,
    /// Pauses per failing target. Rule 8.
    pub(super) pacers: HashMap<Target, RequeuePacer>,
    /// Targets whose failure has been logged as a warning since the last copy that landed there.
    pub(super) warned: HashSet<Target>,
    pub(super) warned_of_unstarted: bool,
}

/// The ledger of one subscription and what it takes to settle its entries.
pub(crate) struct Deliveries<'a> {
    pub(super) settings: &'a Settings,
    pub(super) services: &'a Services,
    pub(super) uplink: &'a Uplink,
    pub(super) pool: &'a WorkerPool,
    pub(super) known: &'a mut BrokerKnowledge,
    pub(super) channel: &'a dyn Channel,
    pub(super) reporter: Reporter,
    pub(super) copy_results: Sender<CopyResult>,
    pub(super) requests: AdminRequests<'a>,
    /// The ledger, by delivery tag. It holds at most as many as the prefetch.
    pub(super) unsettled: BTreeMap<u64, UnsettledDelivery>,
    pub(super) acks: Acks,
    /// When each held delivery is requeued.
    pub(super) held: BTreeSet<(Instant, u64)>,
}

impl<'a> Deliveries<'a> {
    pub(crate) fn new(
        context: Context<'a>,
        pool: &'a WorkerPool,
        known: &'a mut BrokerKnowledge,
        channel: &'a dyn Channel,
        generation: Arc<Generation>,
        (reports, copy_results, admin_replies): (
            Sender<WorkerReport>,
            Sender<CopyResult>,
            Sender<AdminReply>,
        ),
    ) -> Self {
        Self {
            settings: context.settings,
            services: context.services,
            uplink: context.uplink,
            pool,
            known,
            channel,
            reporter: Reporter {
                generation,
                reports,
            },
            copy_results,
            requests: AdminRequests::new(&context.uplink.admin, admin_replies),
            unsettled: BTreeMap::new(),
            acks: Acks::default(),
            held: BTreeSet::new(),
        }
    }

    pub(crate) fn queue(&self) -> &str {
        &self.settings.queue
    }

    /// Whether every delivery is settled.
    pub(crate) fn is_empty(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Whether a drain has nothing left to wait for.
    pub(crate) fn is_drained(&self) -> bool {
        self.unsettled
            .values()
            .all(|entry| entry.tracked.is_excluded_from_drain())
    }

    /// Adds a delivery and returns the job for the workers.
    pub(crate) fn receive(&mut self, delivery: Delivery) -> DeliveryJob {
        let tracked = Arc::new(TrackedDelivery::default());
        let now = self.services.clock.now();
        let entry = UnsettledDelivery {
            state: DeliveryState::Handed,
            tracked: tracked.clone(),
            decision: None,
            in_flight: None,
            since: now,
            wait_until: now,
            hold_until: None,
        };
        self.acks.delivered(delivery.tag);
        self.unsettled.insert(delivery.tag, entry);
        DeliveryJob {
            delivery,
            tracked,
            reporter: self.reporter.clone(),
        }
    }

    /// Handles a worker's report on a delivery.
    pub(crate) fn reported(&mut self, tag: u64, event: WorkerEvent) -> Result<(), Failure> {
        match event {
            WorkerEvent::Answered {
                decision,
                in_flight,
            } => {
                // Not found when it has ended; dropping the guard counts its outcome as discarded.
                let Some(entry) = self.unsettled.get_mut(&tag) else {
                    return Ok(());
                };
                let decision = Arc::new(decision);
                entry.in_flight = Some(in_flight);
                entry.decision = Some(decision.clone());
                self.step(tag, &Event::Decided(&decision))
            }
            WorkerEvent::WaitOver => self.step(tag, &Event::WaitOver),
            WorkerEvent::RecheckRung => self.step(tag, &Event::RecheckRung),
        }
    }

    /// Handles the end of a copy.
    pub(crate) fn copy_ended(&mut self, copy: CopyResult) -> Result<(), Failure> {
        let CopyResult { tag, result } = copy;
        let Some(DeliveryState::Copying { target, .. }) =
            self.unsettled.get(&tag).map(|entry| entry.state)
        else {
            return Ok(());
        };
        match (&result, target) {
            (PublishResult::Confirmed, _) => {
                if self.known.pacers.remove(&target).is_some() {
                    // A failing target works again, so its node is probably back, and others with
                    // it.
                    self.requests.declare_again(&self.known.unavailable);
                }
                self.known.warned.remove(&target);
            }
            (PublishResult::Unroutable(_), Target::Rung(delay)) => {
                // The next retry of this delay checks the rung first.
                self.known.rungs.remove(&delay);
            }
            (PublishResult::ChannelClosed(text), _) => {
                let target = self.queue_of(target);
                warn!("the broker refused a copy to {target}: {text}");
            }
            _ => {}
        }
        self.step(tag, &Event::Copied(&result))
    }

    /// What is missing or on a cluster node that is down.
    pub(crate) fn unavailable(&self) -> &[Declaration] {
        &self.known.unavailable
    }

    /// Declares again what was unavailable, and warns once about deliveries that do not start.
    pub(crate) fn recheck(&mut self) {
        self.requests.declare_again(&self.known.unavailable);
        let now = self.services.clock.now();
        let mut unstarted = self.unsettled.values().filter(|entry| {
            let age = now.saturating_duration_since(entry.since);
            entry.tracked.opened().is_none() && age >= LONG_UNSTARTED
        });
        if !self.known.warned_of_unstarted && unstarted.next().is_some() {
            self.known.warned_of_unstarted = true;
            warn!(
                "{}: a delivery has waited {LONG_UNSTARTED:?} for its handler to start; RabbitMQ \
                 closes the channel of a delivery that is unsettled for 30 minutes, so prefetch × \
                 handler time / concurrency must stay below that",
                self.settings.label
            );
        }
    }

    /// When the next held delivery is to be requeued.
    pub(crate) fn next_release(&self) -> Option<Instant> {
        self.held.first().map(|(due, _)| *due)
    }

    /// Requeues the held deliveries whose pause is over.
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

    /// Writes the acknowledgements that are ready.
    pub(crate) fn write_acks(&mut self) -> Result<(), Failure> {
        for frame in self.acks.take() {
            self.channel.ack(frame.tag, frame.multiple)?;
        }
        Ok(())
    }

    /// Ends all waits; none begins afterwards.
    pub(crate) fn end_waits(&self) {
        self.reporter.generation.drain();
        self.services.publisher.wake();
    }

    /// Requeues a delivery that no worker has started.
    pub(crate) fn take_back(&mut self, tag: u64) -> Result<(), Failure> {
        self.step(tag, &Event::TakenBack)
    }

    /// Requeues what waits. Handlers that run and copies under way go on.
    pub(crate) fn drain(&mut self) -> Result<(), Failure> {
        let tags: Vec<u64> = self.unsettled.keys().copied().collect();
        tags.into_iter()
            .try_for_each(|tag| self.step(tag, &Event::DrainBegan))
    }

    /// Ends the generation: later reports and answers are discarded.
    pub(crate) fn end_generation(&self) {
        // Rule 3: cleared before anything else, so that no copy of these is written.
        self.reporter.generation.end();
        self.pool.take_unstarted();
        self.services.publisher.wake();
    }

    /// Makes every delivery stale after the loss of the channel: the broker has requeued them.
    pub(crate) fn die(&mut self) {
        let tags: Vec<u64> = self.unsettled.keys().copied().collect();
        for tag in tags {
            // The event writes nothing to the channel, so it cannot fail.
            drop(self.step(tag, &Event::Died));
        }
    }

    /// Lists what is started and not settled at the deadline.
    pub(crate) fn strand(&self) -> Vec<StrandedDelivery> {
        // The states stay as they are: this only asks what the deadline would make of them.
        let stranded = |entry: &&UnsettledDelivery| {
            let step = entry
                .state
                .step(&Event::DeadlinePassed, Circumstances::default());
            step.next == DeliveryState::Ended(DeliveryEnd::Stranded)
        };
        let entries = self.unsettled.values().filter(stranded);
        entries
            .filter_map(|entry| entry.tracked.stranded(&self.settings.queue))
            .collect()
    }

    /// Applies one event to one delivery.
    pub(super) fn step(&mut self, tag: u64, event: &Event<'_>) -> Result<(), Failure> {
        let rung_known = match event {
            Event::Decided(Decision::Retry(Wait::Rung(delay))) => self.known.rungs.contains(delay),
            _ => false,
        };
        let circumstances = Circumstances {
            draining: self.reporter.generation.is_draining(),
            rung_known,
            never_reject: self.settings.never_reject,
        };
        let Some(entry) = self.unsettled.get_mut(&tag) else {
            return Ok(());
        };
        // Kept for the end, which counts why a held delivery was requeued.
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
        if let DeliveryState::Ended(end) = step.next {
            self.end(tag, before, end);
        }
        Ok(())
    }
}
