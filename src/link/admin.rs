//! Declarations and checks, each on a throw-away channel, which the broker closes with a refusal.
//!
//! The coordinator thread takes one operation after the other and has a performer thread make the
//! call. A call without an answer fails at its limit and leaves its performer behind, so it delays
//! no later operation. If the connection does not even open a channel then, it is shut down.

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

/// How long opening a channel may take before the connection counts as dead.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How many performers may be left behind in calls without an answer.
const MAX_LEFT_BEHIND: usize = 4;

/// One call to the broker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    Declare(Declaration),
    /// Checks that the queue or exchange exists, with any arguments.
    Check(Declaration),
}

/// An operation, and the callback that takes its result.
struct AdminJob {
    operation: Operation,
    done: Box<dyn FnOnce(Result<(), Failure>) + Send>,
}

/// A handle to the admin of a link, which performs one operation at a time, each within the limit.
#[derive(Clone)]
pub(crate) struct Admin {
    jobs: Sender<AdminJob>,
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
            left_behind: Vec::new(),
        };
        clock.spawn(
            Role::Owner,
            "rungmq-admin".to_owned(),
            Box::new(move || coordinator.run(&inbox)),
        )?;
        Ok(Self { jobs, link })
    }

    /// Submits an operation; the coordinator thread calls `done` with its result.
    pub(crate) fn submit(
        &self,
        operation: Operation,
        done: impl FnOnce(Result<(), Failure>) + Send + 'static,
    ) {
        let job = AdminJob {
            operation,
            done: Box::new(done),
        };
        if let Err(unsent) = self.jobs.send(job) {
            (unsent.0.done)(Err(self.link.lost()));
        }
    }

    /// Performs an operation and waits for its result.
    pub(crate) fn call(&self, operation: Operation) -> Result<(), Failure> {
        let (reply, answer) = bounded(1);
        self.submit(operation, move |result| {
            let _ = reply.send(result);
        });
        answer.recv().unwrap_or_else(|_| Err(self.link.lost()))
    }
}

/// The coordinator thread of an admin.
struct Coordinator {
    /// The idle performer; `None` when the last one was left behind.
    performer: Option<Performer>,
    link: Arc<Link>,
    clock: Arc<dyn Clock>,
    limit: Duration,
    left_behind: Vec<LeftBehind>,
}

/// A performer in a call that the broker has not answered within the limit.
struct LeftBehind {
    operation: Operation,
    ended: OverSignal,
}

impl Coordinator {
    fn run(&mut self, jobs: &Receiver<AdminJob>) {
        // Handles may outlive the link, so the thread also ends with the link.
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

    fn serve(&mut self, job: AdminJob) {
        let result = self.perform(job.operation);
        (job.done)(result);
    }

    /// Performs an operation, and probes the connection after one that timed out.
    fn perform(&mut self, operation: Operation) -> Result<(), Failure> {
        let performed = self.hand_over(operation);
        if performed == Err(Failure::TimedOut) {
            self.probe();
        }
        performed
    }

    /// Has a performer make the call, and waits for its result.
    fn hand_over(&mut self, operation: Operation) -> Result<(), Failure> {
        self.left_behind.retain(|left| !is_over(&left.ended));
        // A second performer would hang in the same call.
        if self
            .left_behind
            .iter()
            .any(|left| left.operation == operation)
        {
            return Err(Failure::TimedOut);
        }
        let limit = later(monotonic(), self.limit);
        let performer = self.free_performer(limit)?;
        if self.link.is_gone() || performer.operations.send(operation.clone()).is_err() {
            return Err(self.link.lost());
        }
        // Biased, so that a result that arrives with the end of the link counts.
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
                self.left_behind.push(LeftBehind { operation, ended });
                Err(Failure::TimedOut)
            }
        }
    }

    /// Takes the idle performer, or starts one.
    fn free_performer(&mut self, limit: Instant) -> Result<Performer, Failure> {
        if let Some(performer) = self.performer.take() {
            return Ok(performer);
        }
        self.wait_for_room(limit)?;
        Performer::start(&self.link, self.clock.as_ref()).map_err(|error| {
            warn!("admin operation not performed: {error}");
            Failure::TimedOut
        })
    }

    /// Waits until a call that was left behind returns, if the maximum of them is reached.
    fn wait_for_room(&mut self, limit: Instant) -> Result<(), Failure> {
        loop {
            self.left_behind.retain(|left| !is_over(&left.ended));
            if self.left_behind.len() < MAX_LEFT_BEHIND {
                return Ok(());
            }
            let mut select = Select::new();
            for left in &self.left_behind {
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

    /// Shuts the connection down if it does not open a channel in time. Another failure, such as
    /// that no channel id is free, does not show that the broker hangs.
    fn probe(&self) {
        match self.link.open_channel(PROBE_TIMEOUT) {
            Ok(channel) => self.close_elsewhere(channel),
            Err(Failure::TimedOut) => {
                warn!("the broker does not respond; closing the connection");
                self.link.kill();
            }
            Err(_) => {}
        }
    }

    /// Closes a channel on a thread of its own, because closing may hang like any other call.
    fn close_elsewhere(&self, channel: Box<dyn Channel>) {
        let closing = move || {
            let _ = channel.close();
        };
        // Without a thread the drop of the closure closes the channel.
        let name = "rungmq-probe".to_owned();
        let _ = self.clock.spawn(Role::Owner, name, Box::new(closing));
    }
}

/// A thread that makes calls, one after the other. When this is dropped the thread ends after its
/// current call.
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

/// The next operation; `None` when the [`Performer`] was dropped.
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
mod tests {
    use super::*;
    use crate::message::headers::Headers;
    use crate::time::clock::SystemClock;
    use crate::transport::fake::dialled;

    const LIMIT: Duration = Duration::from_millis(50);
    const PATIENCE: Duration = Duration::from_secs(10);

    /// A link that answers the check of a queue named `hangs..` only when the sender sends or is
    /// dropped.
    fn link() -> (Arc<Link>, Sender<()>) {
        let (release, released) = bounded::<()>(0);
        let answer = move |_, declaration: &Declaration| {
            if matches!(declaration, Declaration::Queue { name, .. } if name.starts_with("hangs")) {
                let _ = released.recv();
            }
            Ok(())
        };
        let link = Link::start(dialled(answer), "test", &SystemClock, |_| {}).unwrap();
        (link, release)
    }

    fn queue(name: &str) -> Declaration {
        Declaration::durable_queue(name, Headers::new())
    }

    fn check(name: &str) -> Operation {
        Operation::Check(queue(name))
    }

    /// Waits until the check of a queue that does not hang succeeds.
    #[track_caller]
    fn wait_for_answer(admin: &Admin) {
        let limit = later(monotonic(), PATIENCE);
        while admin.call(check("q")).is_err() {
            assert!(monotonic() < limit, "no check is answered any more");
            std::thread::yield_now();
        }
    }

    #[test]
    fn hanging_calls_do_not_close_link_that_answers() {
        let (link, release) = link();
        let admin = Admin::start(link.clone(), LIMIT, &SystemClock::shared()).unwrap();
        for n in 0..MAX_LEFT_BEHIND + 2 {
            assert_eq!(
                admin.call(check(&format!("hangs {n}"))),
                Err(Failure::TimedOut)
            );
        }
        // Every performer that may be left behind hangs, so this call cannot start.
        assert_eq!(admin.call(check("q")), Err(Failure::TimedOut));
        assert!(!link.is_gone());
        drop(release);
        wait_for_answer(&admin);
        link.kill();
    }

    #[test]
    fn repeated_check_of_hanging_queue_keeps_one_thread() {
        let (link, _release) = link();
        let admin = Admin::start(link.clone(), LIMIT, &SystemClock::shared()).unwrap();
        for _ in 0..3 * MAX_LEFT_BEHIND {
            assert_eq!(admin.call(check("hangs")), Err(Failure::TimedOut));
        }
        wait_for_answer(&admin);
        link.kill();
    }

    #[test]
    fn late_answer_frees_place_for_performer() {
        let (link, release) = link();
        let admin = Admin::start(link.clone(), LIMIT, &SystemClock::shared()).unwrap();
        for n in 0..3 * MAX_LEFT_BEHIND {
            let check = check(&format!("hangs {n}"));
            assert_eq!(admin.call(check), Err(Failure::TimedOut));
            release.send_timeout((), PATIENCE).unwrap();
        }
        wait_for_answer(&admin);
        link.kill();
    }

    #[test]
    fn performer_left_behind_after_its_answer_ends() {
        let (link, _release) = link();
        let performer = Performer::start(&link, &SystemClock).unwrap();
        performer.operations.send(check("q")).unwrap();
        while performer.results.is_empty() {
            std::thread::yield_now();
        }
        let ended = performer.ended.clone();
        drop(performer);
        assert!(ended.recv_timeout(PATIENCE).unwrap_err().is_disconnected());
        link.kill();
    }
}
