//! The event loop of a subscription: takes in deliveries and reports, and never blocks on another
//! thread.

pub(crate) mod acks;
pub(crate) mod deliveries;
pub(crate) mod effects;
pub(crate) mod requests;
pub(crate) mod requeue_pacer;
pub(crate) mod state;

use super::workers::{DeliveryJob, WorkerEvent, WorkerPool, WorkerReport};
use super::{ConsumerShared, Context, Control};
use crate::error::StrandedDelivery;
use crate::publisher::CopyResult;
use crate::time::clock::Timer;
use crate::time::deadline::Deadline;
use crate::time::threads;
use crate::transport::{Channel, Failure, Incoming, Subscription};
use crossbeam_channel::{Receiver, Select, tick, unbounded};
use deliveries::{BrokerKnowledge, Deliveries};
use log::debug;
use requests::AdminReply;
use std::time::{Duration, Instant};

/// How often a subscription looks for unavailable queues and for deliveries that do not start.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// How a subscription ended.
pub(crate) enum Ending {
    /// It was stopped; these deliveries were left unsettled.
    Drained(Vec<StrandedDelivery>),
    /// The channel or the connection died.
    Died(Failure),
    /// The broker cancelled it: its queue was deleted or moved.
    Cancelled,
}

/// One subscription on one channel.
pub(crate) struct EventLoop<'a> {
    context: Context<'a>,
    shared: &'a ConsumerShared,
    control: &'a Receiver<Control>,
    pool: &'a WorkerPool,
    subscription: &'a dyn Subscription,
    /// False once the broker sends nothing more for it.
    subscribed: bool,
    reports: Receiver<WorkerReport>,
    copy_results: Receiver<CopyResult>,
    admin_replies: Receiver<AdminReply>,
    deliveries: Deliveries<'a>,
    /// The deadline of the drain, once it has begun.
    draining: Option<Deadline>,
    /// Ticks for what takes long.
    recheck: Receiver<Instant>,
}

impl<'a> EventLoop<'a> {
    pub(crate) fn new(
        context: Context<'a>,
        shared: &'a ConsumerShared,
        control: &'a Receiver<Control>,
        known: &'a mut BrokerKnowledge,
        channel: &'a dyn Channel,
        subscription: &'a dyn Subscription,
    ) -> Self {
        let (report, reports) = unbounded();
        let (copy_result, copy_results) = unbounded();
        let (admin_reply, admin_replies) = unbounded();
        Self {
            context,
            shared,
            control,
            pool: &shared.pool,
            subscription,
            subscribed: true,
            reports,
            copy_results,
            admin_replies,
            deliveries: Deliveries::new(
                context,
                &shared.pool,
                known,
                channel,
                shared.begin_generation(&context.uplink.link),
                (report, copy_result, admin_reply),
            ),
            draining: None,
            recheck: tick(RECHECK_INTERVAL),
        }
    }

    /// Serves the subscription until it ends.
    pub(crate) fn run(mut self) -> Ending {
        let ending = loop {
            self.wait();
            match self.serve() {
                Ok(None) => {}
                Ok(Some(ending)) => break ending,
                Err(failure) => break Ending::Died(failure),
            }
        };
        self.deliveries.end_generation();
        if self.draining.is_some() {
            return Ending::Drained(self.deliveries.strand());
        }
        self.deliveries.die();
        ending
    }

    /// Blocks until there is something to do.
    fn wait(&self) {
        let due = self.deliveries.next_release();
        let release = due.map_or_else(Timer::never, |due| self.context.services.clock.at(due));
        let mut select = Select::new();
        select.recv(self.control);
        select.recv(&self.reports);
        select.recv(&self.copy_results);
        select.recv(&self.admin_replies);
        select.recv(&release);
        select.recv(&self.recheck);
        select.recv(self.context.uplink.link.gone());
        if self.subscribed {
            self.subscription.watch(&mut select);
        }
        threads::ready(select, self.draining.and_then(Deadline::instant));
    }

    /// Handles everything that has arrived.
    fn serve(&mut self) -> Result<Option<Ending>, Failure> {
        if self.context.uplink.link.is_gone() {
            return Err(self.context.uplink.link.lost());
        }
        while let Ok(control) = self.control.try_recv() {
            match control {
                Control::Stop(deadline) => self.drain(deadline)?,
                // It has ended the wait; what it is for is looked at below.
                Control::Wake => {}
            }
        }
        // Rule 14: at the deadline no report is taken any more.
        if self.draining.is_some_and(Deadline::has_passed) {
            self.deliveries.write_acks()?;
            return Ok(Some(Ending::Drained(Vec::new())));
        }
        let cancelled = self.take_deliveries()?;
        self.take_reports()?;
        while let Ok(result) = self.copy_results.try_recv() {
            self.deliveries.copy_ended(result)?;
        }
        while let Ok(reply) = self.admin_replies.try_recv() {
            self.deliveries.admin_replied(reply)?;
            self.shared.set_unavailable(self.deliveries.unavailable());
        }
        if self.recheck.try_recv().is_ok() {
            self.deliveries.recheck();
        }
        self.deliveries.release_held()?;
        // Acknowledgements last: one frame settles what became ready above.
        self.deliveries.write_acks()?;
        if cancelled {
            return Ok(Some(Ending::Cancelled));
        }
        if self.draining.is_none() {
            return Ok(None);
        }
        if self.deliveries.is_empty() {
            return Ok(Some(Ending::Drained(Vec::new())));
        }
        // What is left are handlers that wait for this drain themselves.
        if self.deliveries.is_drained() {
            self.shared.release_waiters();
        }
        Ok(None)
    }

    /// Takes what the broker has sent. Returns whether it has cancelled the subscription.
    fn take_deliveries(&mut self) -> Result<bool, Failure> {
        let mut jobs = Vec::new();
        let mut cancelled = false;
        // Rule 2: empties the receiver, because the end of a channel comes behind its deliveries.
        while self.subscribed {
            match self.subscription.next() {
                None => break,
                Some(Incoming::Delivery(delivery)) => jobs.push(self.deliveries.receive(delivery)),
                Some(Incoming::CancelOk) => self.subscribed = false,
                Some(Incoming::Cancelled) => {
                    self.subscribed = false;
                    cancelled = true;
                }
                Some(Incoming::Ended(failure)) => return Err(failure),
            }
        }
        if self.draining.is_some() {
            self.requeue_unstarted(jobs)?;
        // After a cancel by the broker the channel is closed, which requeues them.
        } else if !cancelled && !jobs.is_empty() {
            self.pool.push(jobs);
        }
        Ok(cancelled)
    }

    /// Handles the workers' reports.
    fn take_reports(&mut self) -> Result<(), Failure> {
        let mut permits = false;
        while let Ok(WorkerReport { tag, event }) = self.reports.try_recv() {
            permits |= matches!(event, WorkerEvent::Answered { .. });
            self.deliveries.reported(tag, event)?;
        }
        if permits {
            // A worker that now sleeps a wait has released its permit.
            self.pool.ensure_workers();
        }
        Ok(())
    }

    /// Begins the drain, or moves its deadline earlier.
    ///
    /// Unstarted deliveries are requeued, waits end, and running handlers have until the deadline.
    /// Rule 13.
    fn drain(&mut self, deadline: Deadline) -> Result<(), Failure> {
        if let Some(earlier) = self.draining {
            self.draining = Some(earlier.min(deadline));
            return Ok(());
        }
        debug!("{}: draining", self.deliveries.queue());
        self.draining = Some(deadline);
        // The pool was stopped by the caller, so these cannot start meanwhile.
        let unstarted = self.pool.take_unstarted();
        self.deliveries.end_waits();
        if deadline.has_passed() {
            return Ok(());
        }
        if self.subscribed {
            self.subscription.cancel()?;
        }
        self.requeue_unstarted(unstarted)?;
        self.deliveries.drain()
    }

    /// Requeues in order of arrival. Before the broker's cancel-ok they would be delivered here
    /// again.
    fn requeue_unstarted(&mut self, unstarted: Vec<DeliveryJob>) -> Result<(), Failure> {
        unstarted
            .into_iter()
            .try_for_each(|job| self.deliveries.take_back(job.delivery.tag))
    }
}
