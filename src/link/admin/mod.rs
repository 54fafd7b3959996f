//! Declarations and checks, each on a throw-away channel, so that a refusal costs nobody else anything.

use super::{Link, Over, OverSignal, is_over};
use crate::time::clock::Clock;
use crate::time::instant::{later, monotonic};
use crate::time::threads::{self, Role, SpawnError};
use crate::topology::declaration::Declaration;
use crate::transport::{Channel, Failure};
use crossbeam_channel::{
    Receiver, Select, Sender, TryRecvError, bounded, select_biased, unbounded,
};
use log::warn;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a probe may take before the connection counts as dead.
const PROBE: Duration = Duration::from_secs(2);
/// How many threads may be left behind in calls that the broker does not answer.
const MOST_LEFT_BEHIND: usize = 4;

/// One thing to ask of the broker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    Declare(Declaration),
    /// Whether the queue or exchange exists, whatever its arguments.
    Check(Declaration),
}

struct Job {
    operation: Operation,
    done: Box<dyn FnOnce(Result<(), Failure>) + Send>,
}

/// Asks the broker for one thing at a time. Every question is answered within the limit.
#[derive(Clone)]
pub(crate) struct Admin {
    jobs: Sender<Job>,
    link: Arc<Link>,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admin")
    }
}

impl Admin {
    /// Starts the admin threads of `link`. `limit` bounds each operation.
    pub(crate) fn start(
        link: Arc<Link>,
        limit: Duration,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, SpawnError> {
        let (jobs, inbox) = unbounded();
        let mut coordinator = Coordinator {
            performer: Some(Performer::start(&link, clock.as_ref())?),
            link: link.clone(),
            clock: clock.clone(),
            limit,
            left: Vec::new(),
        };
        clock.spawn(
            Role::Owner,
            "rungmq-admin".to_owned(),
            Box::new(move || coordinator.run(&inbox)),
        )?;
        Ok(Self { jobs, link })
    }

    /// Asks, and calls `done` with the answer on the admin's thread.
    pub(crate) fn submit(
        &self,
        operation: Operation,
        done: impl FnOnce(Result<(), Failure>) + Send + 'static,
    ) {
        let job = Job {
            operation,
            done: Box::new(done),
        };
        if let Err(unsent) = self.jobs.send(job) {
            (unsent.0.done)(Err(self.link.lost()));
        }
    }

    /// Asks, and waits for the answer.
    pub(crate) fn call(&self, operation: Operation) -> Result<(), Failure> {
        let (reply, answer) = bounded(1);
        self.submit(operation, move |result| drop(reply.send(result)));
        answer.recv().unwrap_or_else(|_| Err(self.link.lost()))
    }
}

struct Coordinator {
    /// None while as many threads are left behind as may be.
    performer: Option<Performer>,
    link: Arc<Link>,
    clock: Arc<dyn Clock>,
    limit: Duration,
    left: Vec<LeftBehind>,
}

/// A thread in a call that the broker has not answered yet.
struct LeftBehind {
    operation: Operation,
    ended: OverSignal,
}

impl Coordinator {
    /// Until the connection is gone, however long its handles live on.
    fn run(&mut self, jobs: &Receiver<Job>) {
        let link = self.link.clone();
        loop {
            let mut select = Select::new();
            select.recv(jobs);
            select.recv(link.gone());
            threads::ready(select, None);
            match jobs.try_recv() {
                Ok(job) => self.serve(job),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) if link.is_gone() => return,
                Err(TryRecvError::Empty) => {}
            }
        }
    }

    fn serve(&mut self, job: Job) {
        let result = self.perform(job.operation);
        (job.done)(result);
    }

    /// A call that hangs costs its caller only, unless the whole connection has stopped answering.
    fn perform(&mut self, operation: Operation) -> Result<(), Failure> {
        let performed = self.hand_over(operation);
        if performed == Err(Failure::TimedOut) {
            self.probe();
        }
        performed
    }

    fn hand_over(&mut self, operation: Operation) -> Result<(), Failure> {
        self.left.retain(|left| !is_over(&left.ended));
        // One thread is enough to wait for the same answer.
        if self.left.iter().any(|left| left.operation == operation) {
            return Err(Failure::TimedOut);
        }
        let limit = later(monotonic(), self.limit);
        let performer = self.free_performer(limit)?;
        if self.link.is_gone() || performer.operations.send(operation.clone()).is_err() {
            return Err(self.link.lost());
        }
        select_biased! {
            recv(performer.results) -> result => match result {
                Ok(result) => {
                    self.performer = Some(performer);
                    result
                }
                Err(_) => Err(self.link.lost()),
            },
            recv(self.link.gone()) -> _ => Err(self.link.lost()),
            default(limit.saturating_duration_since(monotonic())) => {
                let ended = performer.ended;
                self.left.push(LeftBehind { operation, ended });
                Err(Failure::TimedOut)
            }
        }
    }

    fn free_performer(&mut self, limit: Instant) -> Result<Performer, Failure> {
        if let Some(performer) = self.performer.take() {
            return Ok(performer);
        }
        self.wait_for_room(limit)?;
        Performer::start(&self.link, self.clock.as_ref()).map_err(|error| {
            warn!("the broker was not asked: {error}");
            Failure::TimedOut
        })
    }

    /// Until fewer threads than may be are left behind.
    fn wait_for_room(&mut self, limit: Instant) -> Result<(), Failure> {
        loop {
            self.left.retain(|left| !is_over(&left.ended));
            if self.left.len() < MOST_LEFT_BEHIND {
                return Ok(());
            }
            let mut select = Select::new();
            for left in &self.left {
                select.recv(&left.ended);
            }
            let gone = select.recv(self.link.gone());
            match select.ready_deadline(limit) {
                Ok(index) if index == gone => return Err(self.link.lost()),
                Ok(_) => {}
                Err(_) => return Err(Failure::TimedOut),
            }
        }
    }

    /// Gives the connection up if it does not even open a channel. That none is left to be opened says nothing.
    fn probe(&self) {
        match self.link.open_channel(PROBE) {
            Ok(channel) => self.close_elsewhere(channel),
            Err(Failure::TimedOut) => {
                warn!("the broker does not answer any more: the connection is given up");
                self.link.kill();
            }
            Err(_) => {}
        }
    }

    /// Closing a channel may hang like any other call, so not on the coordinator's thread.
    fn close_elsewhere(&self, channel: Box<dyn Channel>) {
        let closing = Box::new(move || drop(channel.close()));
        drop(
            self.clock
                .spawn(Role::Owner, "rungmq-probe".to_owned(), closing),
        );
    }
}

/// The thread that makes the calls, one after the other. It ends when this is dropped, after the call that it is in.
struct Performer {
    operations: Sender<Operation>,
    results: Receiver<Result<(), Failure>>,
    ended: OverSignal,
}

impl Performer {
    fn start(link: &Arc<Link>, clock: &dyn Clock) -> Result<Self, SpawnError> {
        let (operations, inbox) = unbounded();
        let (outbox, results) = unbounded();
        let (over, ended) = Over::new();
        let link = link.clone();
        let calls = move || {
            while let Some(operation) = next(&inbox) {
                if outbox.send(perform(&link, &operation)).is_err() {
                    break;
                }
            }
            drop(over);
        };
        clock.spawn(Role::Owner, "rungmq-admin-call".to_owned(), Box::new(calls))?;
        Ok(Self {
            operations,
            results,
            ended,
        })
    }
}

/// The next operation; none when nobody asks any more.
fn next(inbox: &Receiver<Operation>) -> Option<Operation> {
    loop {
        let mut select = Select::new();
        select.recv(inbox);
        threads::ready(select, None);
        match inbox.try_recv() {
            Ok(operation) => return Some(operation),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {}
        }
    }
}

fn perform(link: &Link, operation: &Operation) -> Result<(), Failure> {
    let channel = link.open_channel(Duration::MAX)?;
    match operation {
        Operation::Declare(declaration) => channel.declare(declaration)?,
        Operation::Check(declaration) => channel.check(declaration)?,
    }
    channel.close()
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests;
