//! Declarations and checks, each on a throw-away channel, so that a refusal costs nobody else anything.

use super::Link;
use crate::clock::Clock;
use crate::declaration::Declaration;
use crate::error::Error;
use crate::threads;
use crate::transport::{Channel, Failure};
use crossbeam_channel::{
    Receiver, Select, Sender, TryRecvError, bounded, select_biased, unbounded,
};
use log::warn;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a probe may take before the connection counts as dead.
const PROBE: Duration = Duration::from_secs(2);
/// How many threads may be left behind in calls that the broker does not answer.
const MOST_LEFT_BEHIND: usize = 4;

/// One thing to ask of the broker.
#[derive(Clone, Debug)]
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
    ) -> io::Result<Self> {
        let (jobs, inbox) = unbounded();
        let mut coordinator = Coordinator {
            performer: Performer::start(&link, clock.as_ref())?,
            link: link.clone(),
            clock: clock.clone(),
            limit,
            left: Arc::default(),
        };
        clock.spawn(
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

    /// Makes sure that what this user may not declare stands all the same; `refused` is the broker's answer to the
    /// declaration. A binding cannot be asked for, and counts as standing.
    pub(crate) fn check_instead(
        &self,
        declaration: &Declaration,
        refused: Failure,
    ) -> Result<(), Error> {
        match self.call(Operation::Check(declaration.clone())) {
            Ok(()) => Ok(()),
            Err(failure) if failure.is_not_found() => Err(Error::broker(
                format!("{declaration} does not exist, and this user may not declare it"),
                refused,
            )),
            Err(failure) => Err(Error::broker(
                format!("{declaration} could not be checked"),
                failure,
            )),
        }
    }
}

struct Coordinator {
    performer: Performer,
    link: Arc<Link>,
    clock: Arc<dyn Clock>,
    limit: Duration,
    /// Threads in calls that the broker has not answered yet.
    left: Arc<AtomicUsize>,
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

    fn perform(&mut self, operation: Operation) -> Result<(), Failure> {
        if self.link.is_gone() || self.performer.operations.send(operation).is_err() {
            return Err(self.link.lost());
        }
        select_biased! {
            recv(self.performer.results) -> result => result.unwrap_or_else(|_| Err(self.link.lost())),
            recv(self.link.gone()) -> _ => Err(self.link.lost()),
            default(self.limit) => {
                self.leave_behind();
                Err(Failure::TimedOut)
            }
        }
    }

    /// A call that hangs costs its caller only, unless the whole connection has stopped answering.
    fn leave_behind(&mut self) {
        let left = self.performer.leave(&self.left);
        let answers = left <= MOST_LEFT_BEHIND
            && self.link.open_channel(PROBE).is_ok_and(|channel| {
                self.close_elsewhere(channel);
                true
            });
        match Performer::start(&self.link, self.clock.as_ref()) {
            Ok(performer) if answers => self.performer = performer,
            _ => {
                warn!("the broker does not answer any more: the connection is given up");
                self.link.kill();
            }
        }
    }

    /// Closing a channel may hang like any other call, so not on the coordinator's thread.
    fn close_elsewhere(&self, channel: Box<dyn Channel>) {
        let closing = move || drop(channel.close());
        drop(
            self.clock
                .spawn("rungmq-probe".to_owned(), Box::new(closing)),
        );
    }
}

/// The thread that makes the calls, one after the other.
struct Performer {
    operations: Sender<Operation>,
    results: Receiver<Result<(), Failure>>,
    /// Set when the thread has been left behind: whom it tells that it is back.
    left: Arc<OnceLock<Arc<AtomicUsize>>>,
}

impl Performer {
    fn start(link: &Arc<Link>, clock: &dyn Clock) -> io::Result<Self> {
        let (operations, inbox) = unbounded();
        let (outbox, results) = unbounded();
        let left: Arc<OnceLock<Arc<AtomicUsize>>> = Arc::default();
        let (link, counter) = (link.clone(), left.clone());
        let calls = move || {
            while let Some(operation) = next(&inbox) {
                let result = perform(&link, &operation);
                if let Some(left) = counter.get() {
                    left.fetch_sub(1, Ordering::AcqRel);
                    return;
                }
                if outbox.send(result).is_err() {
                    return;
                }
            }
        };
        clock.spawn("rungmq-admin-call".to_owned(), Box::new(calls))?;
        Ok(Self {
            operations,
            results,
            left,
        })
    }

    /// Leaves the thread in the call that it makes; returns how many are left so, this one included.
    fn leave(&self, count: &Arc<AtomicUsize>) -> usize {
        let left = count.fetch_add(1, Ordering::AcqRel) + 1;
        let _ = self.left.set(count.clone());
        left
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
