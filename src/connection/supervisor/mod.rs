//! The supervisor: makes the connection again when it is lost, and takes everything down by one deadline.
//!
//! It makes no call to the broker itself. Whoever dials does so on a thread of its own; what the supervisor waits for it
//! waits for with a limit, and behind every limit stands the kill switch of the sockets.

use super::state::{Command, Phase, Status};
use crate::consumer::{Consumer, GRACE, drain_result};
use crate::link::{
    Backoff, DialError, Dialler, LinkNotice, Operation, OverSignal, Sockets, Uplink, is_over,
};
use crate::metrics::{Lost, Metrics, Recovered, Retrying};
use crate::publisher::Publisher;
use crate::time::clock::{Clock, Timer};
use crate::time::deadline::Deadline;
use crate::time::instant::later;
use crate::time::threads::{self, Role, SpawnError};
use crate::topology::declaration::Declaration;
use crossbeam_channel::{Receiver, Select, Sender, TryRecvError, tick};
use log::{debug, info, warn};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After the kill switch: for the threads that it frees.
const AFTER_KILL: Duration = Duration::from_millis(300);
/// How often a broker without heartbeats is asked whether it is there.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);
/// How often the publisher's writes are watched.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Opens link `number`, whose notices go to the supervisor.
pub(super) fn open_uplink(
    dialler: &Dialler,
    limit: Duration,
    number: u64,
    commands: &Sender<Command>,
) -> Result<Uplink, DialError> {
    let commands = commands.clone();
    Uplink::open(dialler, limit, move |notice| {
        drop(commands.send(Command::Notice { number, notice }));
    })
}

/// What a supervisor works with.
pub(super) struct Supervisor {
    pub(super) commands: (Sender<Command>, Receiver<Command>),
    pub(super) status: Status,
    pub(super) dialler: Arc<Dialler>,
    pub(super) sockets: Sockets,
    pub(super) publisher: Publisher,
    pub(super) publisher_ended: OverSignal,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
    pub(super) call_timeout: Duration,
    pub(super) backoff: Backoff,
    /// How many attempts to recover there are in a row; without a limit when there is none.
    pub(super) attempts: Option<u32>,
}

impl Supervisor {
    /// Starts the thread; the present link is number 0.
    pub(super) fn start(self, uplink: Uplink) -> Result<(), SpawnError> {
        let now = self.clock.now();
        let mut supervision = Supervision {
            supervisor: self,
            uplink: Some(uplink),
            number: 0,
            up_since: now,
            down_since: now,
            failed_attempts: 0,
            retry: Timer::never(),
            probe: tick(PROBE_INTERVAL),
            watch: tick(WATCH_INTERVAL),
        };
        let clock = supervision.supervisor.clock.clone();
        let run = move || supervision.run();
        clock.spawn(Role::Owner, "rungmq-supervisor".to_owned(), Box::new(run))
    }
}

struct Supervision {
    supervisor: Supervisor,
    uplink: Option<Uplink>,
    number: u64,
    up_since: Instant,
    down_since: Instant,
    failed_attempts: u32,
    /// When to dial again.
    retry: Timer,
    /// When to ask a broker that sends no heartbeats whether it is there.
    probe: Receiver<Instant>,
    /// When to look at a write that may be stuck.
    watch: Receiver<Instant>,
}

impl Supervision {
    fn run(&mut self) {
        loop {
            self.wait();
            if self.retry.is_due() {
                self.dial();
            }
            if is_over(&self.supervisor.publisher_ended) {
                // Only a panic of its own ends it before a close: nothing could be retried or set aside any more.
                self.supervisor
                    .status
                    .lose("the publisher thread has ended");
                return self.give_up();
            }
            if self.watch.try_recv().is_ok() {
                self.supervisor.publisher.kill_stuck_link();
            }
            if self.probe.try_recv().is_ok() {
                self.probe();
            }
            match self.supervisor.commands.1.try_recv() {
                Ok(Command::Notice { number, notice }) if number == self.number => {
                    self.notice(notice);
                }
                Ok(Command::Dialled { number, result }) if number == self.number => match result {
                    Ok(uplink) => self.recovered(uplink),
                    Err(error) => self.not_recovered(&format!("no connection to {error}")),
                },
                Ok(Command::Notice { .. } | Command::Dialled { .. }) | Err(TryRecvError::Empty) => {
                }
                Ok(Command::Close(deadline)) => return self.close(deadline),
                Err(TryRecvError::Disconnected) => return,
            }
            if self.has_given_up() {
                return self.give_up();
            }
        }
    }

    /// Blocks until there is something to do.
    fn wait(&self) {
        let mut select = Select::new();
        select.recv(&self.supervisor.commands.1);
        select.recv(&self.retry);
        select.recv(&self.supervisor.publisher_ended);
        select.recv(&self.watch);
        select.recv(&self.probe);
        threads::ready(select, None);
    }

    /// Without heartbeats a dead peer shows only when it is asked something: the admin threads give up a link that does not
    /// answer. What the answer is does not matter.
    fn probe(&self) {
        if let Some(Uplink { link, admin }) = &self.uplink
            && link.activity().has_no_heartbeat()
        {
            let exchange = Declaration::direct_exchange("amq.direct");
            admin.submit(Operation::Check(exchange), drop);
        }
    }

    fn notice(&mut self, notice: LinkNotice) {
        match notice {
            LinkNotice::Blocked(reason) => debug!("the consuming link is blocked: {reason}"),
            LinkNotice::Unblocked => debug!("the consuming link is unblocked"),
            LinkNotice::Gone(reason) if self.uplink.is_some() => self.lost(&reason),
            LinkNotice::Gone(reason) => {
                // It died before the dial that made it was taken in: that is told of a dead link, too late.
                self.number += 1;
                self.not_recovered(&reason);
            }
        }
    }

    /// Tries at once, unless the link that is gone had only just come up.
    fn lost(&mut self, reason: &str) {
        let supervisor = &mut self.supervisor;
        warn!("the connection was lost: {reason}");
        supervisor.status.lose(reason);
        supervisor.metrics.lost(&Lost::new(reason));
        self.uplink = None;
        self.down_since = supervisor.clock.now();
        let life = self.down_since.saturating_duration_since(self.up_since);
        supervisor.backoff.lasted(life);
        // The end of a link may be heard before its beginning, which must not count any more then.
        self.number += 1;
        if supervisor.attempts == Some(0) {
            return;
        }
        if supervisor.backoff.is_at_once() {
            self.dial();
        } else {
            self.pause();
        }
    }

    fn pause(&mut self) {
        let supervisor = &mut self.supervisor;
        let pause = supervisor.backoff.pause(supervisor.clock.chance());
        let attempt = self.failed_attempts + 1;
        info!("connecting again in {pause:?} (attempt {attempt})");
        supervisor.metrics.retrying(&Retrying::new(attempt, pause));
        self.retry = supervisor.clock.at(later(supervisor.clock.now(), pause));
    }

    /// Dials on a thread of its own.
    fn dial(&mut self) {
        self.retry = Timer::never();
        self.number += 1;
        let number = self.number;
        let commands = self.supervisor.commands.0.clone();
        let dialler = self.supervisor.dialler.clone();
        let limit = self.supervisor.call_timeout;
        let redial = move || {
            let result = open_uplink(&dialler, limit, number, &commands);
            drop(commands.send(Command::Dialled { number, result }));
        };
        let name = "rungmq-redial".to_owned();
        if let Err(error) = self
            .supervisor
            .clock
            .spawn(Role::Owner, name, Box::new(redial))
        {
            warn!("not connected again: {error}");
            self.pause();
        }
    }

    fn recovered(&mut self, uplink: Uplink) {
        let supervisor = &self.supervisor;
        self.up_since = supervisor.clock.now();
        self.failed_attempts = 0;
        let downtime = self.up_since.saturating_duration_since(self.down_since);
        info!("connected again after {downtime:?}");
        supervisor.status.recover(&uplink);
        supervisor.publisher.reconnect_now();
        supervisor.metrics.recovered(&Recovered::new(downtime));
        self.uplink = Some(uplink);
    }

    fn not_recovered(&mut self, reason: &str) {
        warn!("not connected again: {reason}");
        self.supervisor.status.lose(reason);
        self.failed_attempts += 1;
        if !self.has_given_up() {
            self.pause();
        }
    }

    fn has_given_up(&self) -> bool {
        let attempts = self.supervisor.attempts;
        self.uplink.is_none() && attempts.is_some_and(|most| self.failed_attempts >= most)
    }

    /// From now on the connection counts as closed.
    fn give_up(&self) {
        let supervisor = &self.supervisor;
        let attempts = self.failed_attempts;
        let reason = match supervisor.status.phase() {
            Phase::Down(reason) => format!("{reason} (given up after {attempts} attempts)"),
            _ => format!("given up after {attempts} attempts"),
        };
        warn!("the connection is given up: {reason}");
        for consumer in supervisor.status.consumers() {
            consumer.stop(Deadline::within(Duration::ZERO));
        }
        supervisor.publisher.stop(Duration::ZERO);
        supervisor.sockets.kill_all();
        supervisor.status.end(Phase::GaveUp(reason), None);
    }

    fn close(&self, deadline: Deadline) {
        let Supervisor {
            status,
            publisher,
            publisher_ended,
            sockets,
            ..
        } = &self.supervisor;
        let consumers = status.consumers();
        let mut to_report = consumers.clone();
        to_report.retain(|consumer| !consumer.has_reported());
        let mut drain = Drain {
            deadline,
            publishing_ends: false,
        };
        for consumer in &consumers {
            let signals = [consumer.ended(), consumer.drained()];
            self.wait_for(&signals, Duration::ZERO, &mut drain, &consumers);
        }
        if drain.deadline.has_passed() {
            consumers.iter().for_each(Consumer::discard_outcomes);
        } else if consumers.iter().any(|consumer| !consumer.has_ended()) {
            status.be_quiet();
        }
        for consumer in &consumers {
            self.wait_for(&[consumer.ended()], GRACE, &mut drain, &consumers);
        }
        drain.publishing_ends = true;
        publisher.stop(drain.deadline.left());
        self.wait_for(&[publisher_ended], GRACE, &mut drain, &consumers);
        if let Some(uplink) = &self.uplink {
            uplink.link.close();
            self.wait_for(&[uplink.link.gone()], GRACE, &mut drain, &consumers);
        }
        sockets.kill_all();
        let freed = Deadline::within(AFTER_KILL);
        for consumer in &consumers {
            consumer.join(freed);
        }
        let result = drain_result(&to_report, drain.deadline);
        info!("the connection was closed");
        status.end(Phase::Closed, Some(result));
    }

    /// Waits for any of the signals until the deadline and `grace`. A close that allows less time moves the deadline for
    /// everybody.
    fn wait_for(
        &self,
        signals: &[&OverSignal],
        grace: Duration,
        drain: &mut Drain,
        consumers: &[Consumer],
    ) {
        let commands = &self.supervisor.commands.1;
        loop {
            let mut select = Select::new();
            for signal in signals {
                select.recv(signal);
            }
            select.recv(commands);
            let limit = drain.deadline.plus(grace);
            threads::ready(select, limit.instant());
            if limit.has_passed() || signals.iter().any(|signal| is_over(signal)) {
                return;
            }
            if let Ok(Command::Close(deadline)) = commands.try_recv()
                && drain.shorten(deadline)
            {
                consumers
                    .iter()
                    .for_each(|consumer| consumer.stop(deadline));
                if drain.publishing_ends {
                    self.supervisor.publisher.stop(deadline.left());
                }
            }
        }
    }
}

/// A close that runs.
struct Drain {
    deadline: Deadline,
    /// Handlers need publishing until the last of them has ended.
    publishing_ends: bool,
}

impl Drain {
    fn shorten(&mut self, deadline: Deadline) -> bool {
        let before = self.deadline;
        self.deadline = before.min(deadline);
        self.deadline != before
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests;
