//! The consumer thread while a subscription lives: takes in what arrives and what is reported, and never waits for anybody.

pub(crate) mod acks;
pub(crate) mod deliveries;
pub(crate) mod effects;
pub(crate) mod requests;
pub(crate) mod requeue_pacer;
pub(crate) mod state;

use super::workers::{Job, News, Pool, Report};
use super::{Context, Control, Shared};
use crate::error::StrandedDelivery;
use crate::publisher::CopyAnswer;
use crate::time::clock::Timer;
use crate::time::deadline::Deadline;
use crate::time::threads;
use crate::transport::{Channel, Failure, Incoming, Subscription};
use crossbeam_channel::{Receiver, Select, tick, unbounded};
use deliveries::{Memory, Settling};
use log::debug;
use requests::Finding;
use std::time::{Duration, Instant};

/// How often a subscription looks at what takes long.
const SLOW_LOOK: Duration = Duration::from_secs(30);

/// How a subscription ended.
pub(crate) enum Ending {
    /// It was asked to, and this is what it left behind.
    Drained(Vec<StrandedDelivery>),
    /// The channel or the whole connection died.
    Died(Failure),
    /// The broker ended it: its queue was deleted, or moved.
    Cancelled,
}

/// One subscription on one channel.
pub(crate) struct Intake<'a> {
    context: Context<'a>,
    shared: &'a Shared,
    control: &'a Receiver<Control>,
    pool: &'a Pool,
    subscription: &'a dyn Subscription,
    /// False once nothing more can come of it.
    subscribed: bool,
    reports: Receiver<Report>,
    answers: Receiver<CopyAnswer>,
    findings: Receiver<Finding>,
    settling: Settling<'a>,
    draining: Option<Deadline>,
    slow_look: Receiver<Instant>,
}

impl<'a> Intake<'a> {
    pub(crate) fn new(
        context: Context<'a>,
        shared: &'a Shared,
        control: &'a Receiver<Control>,
        memory: &'a mut Memory,
        channel: &'a dyn Channel,
        subscription: &'a dyn Subscription,
    ) -> Self {
        let (report, reports) = unbounded();
        let (answer, answers) = unbounded();
        let (find, findings) = unbounded();
        Self {
            context,
            shared,
            control,
            pool: &shared.pool,
            subscription,
            subscribed: true,
            reports,
            answers,
            findings,
            settling: Settling::new(
                context,
                &shared.pool,
                memory,
                channel,
                shared.begin_generation(&context.uplink.link),
                (report, answer, find),
            ),
            draining: None,
            slow_look: tick(SLOW_LOOK),
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
        self.settling.end_generation();
        if self.draining.is_some() {
            return Ending::Drained(self.settling.strand());
        }
        self.settling.die();
        ending
    }

    /// Blocks until there is something to do.
    fn wait(&self) {
        let due = self.settling.next_release();
        let release = due.map_or_else(Timer::never, |due| self.context.services.clock.at(due));
        let mut select = Select::new();
        select.recv(self.control);
        select.recv(&self.reports);
        select.recv(&self.answers);
        select.recv(&self.findings);
        select.recv(&release);
        select.recv(&self.slow_look);
        select.recv(self.context.uplink.link.gone());
        if self.subscribed {
            self.subscription.watch(&mut select);
        }
        threads::ready(select, self.draining.and_then(Deadline::instant));
    }

    /// Does everything there is to do.
    fn serve(&mut self) -> Result<Option<Ending>, Failure> {
        if self.context.uplink.link.is_gone() {
            return Err(self.context.uplink.link.lost());
        }
        while let Ok(control) = self.control.try_recv() {
            match control {
                Control::Stop(deadline) => self.drain(deadline)?,
                Control::LookAgain => {}
            }
        }
        if self.draining.is_some_and(Deadline::has_passed) {
            self.settling.write_acks()?;
            return Ok(Some(Ending::Drained(Vec::new())));
        }
        let cancelled = self.take_deliveries()?;
        self.take_reports()?;
        while let Ok(answer) = self.answers.try_recv() {
            self.settling.copy_answered(answer)?;
        }
        while let Ok(finding) = self.findings.try_recv() {
            self.settling.found(finding)?;
            self.shared.show_down(self.settling.down());
        }
        if self.slow_look.try_recv().is_ok() {
            self.settling.look_at_what_takes_long();
        }
        self.settling.release_held()?;
        self.settling.write_acks()?;
        if cancelled {
            return Ok(Some(Ending::Cancelled));
        }
        if self.draining.is_none() {
            return Ok(None);
        }
        if self.settling.is_empty() {
            return Ok(Some(Ending::Drained(Vec::new())));
        }
        if self.settling.is_quiet() {
            self.shared.become_quiet();
        }
        Ok(None)
    }

    /// Whether the broker has cancelled the subscription.
    fn take_deliveries(&mut self) -> Result<bool, Failure> {
        let mut jobs = Vec::new();
        let mut cancelled = false;
        while self.subscribed {
            match self.subscription.next() {
                None => break,
                Some(Incoming::Delivery(delivery)) => jobs.push(self.settling.enter(delivery)),
                Some(Incoming::CancelOk) => self.subscribed = false,
                Some(Incoming::Cancelled) => {
                    self.subscribed = false;
                    cancelled = true;
                }
                Some(Incoming::Ended(failure)) => return Err(failure),
            }
        }
        if self.draining.is_some() {
            self.give_back(jobs)?;
        } else if !cancelled && !jobs.is_empty() {
            self.pool.push(jobs);
        }
        Ok(cancelled)
    }

    fn take_reports(&mut self) -> Result<(), Failure> {
        let mut permits = false;
        while let Ok(Report { tag, news }) = self.reports.try_recv() {
            permits |= matches!(news, News::Answered { .. });
            self.settling.reported(tag, news)?;
        }
        if permits {
            self.pool.provide_workers();
        }
        Ok(())
    }

    /// Stops the subscription: what was not started goes back, waits end, and running handlers have until the deadline.
    fn drain(&mut self, deadline: Deadline) -> Result<(), Failure> {
        if let Some(earlier) = self.draining {
            self.draining = Some(earlier.min(deadline));
            return Ok(());
        }
        debug!("{}: draining", self.settling.queue());
        self.draining = Some(deadline);
        let unstarted = self.pool.take_back();
        self.settling.end_waits();
        if deadline.has_passed() {
            return Ok(());
        }
        if self.subscribed {
            self.subscription.cancel()?;
        }
        self.give_back(unstarted)?;
        self.settling.drain()
    }

    /// In the order in which they came. Before the broker's cancel-ok it would deliver them to us again.
    fn give_back(&mut self, unstarted: Vec<Job>) -> Result<(), Failure> {
        unstarted
            .into_iter()
            .try_for_each(|job| self.settling.take_back(job.delivery.tag))
    }
}
