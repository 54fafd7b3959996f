//! The library's threads: their roles, how they start, and where they wait for work.
//!
//! A test clock moves only while every thread of its [`Crew`] is idle. So a library thread waits
//! for work in [`ready`] or [`wait`], which register the wait with the crew, if it belongs to one.
//! A thread that blocks anywhere else, such as in a call or a handler, counts as working.

use super::crew::{self, Crew};
use crossbeam_channel::Select;
use parking_lot::{Condvar, MutexGuard};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

thread_local! {
    /// Set once, by [`spawn`]; `None` on the threads of the service. It has no destructor, so that
    /// the destructor of another thread-local may read it when it drops the last handle of a
    /// connection.
    static ROLE: Cell<Option<Role>> = const { Cell::new(None) };
}

/// The role of a library thread, which decides whether it may wait for other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Owns state, or makes a call to the broker, that other threads wait for.
    Owner,
    /// Runs handlers, which may wait like any other caller.
    Worker,
}

/// The operating system failed to start a thread.
#[derive(Debug)]
pub(crate) struct SpawnError {
    name: String,
    source: io::Error,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to spawn thread `{}`: {}", self.name, self.source)
    }
}

/// Starts a thread with a role, as a member of `crew` if there is one.
pub(crate) fn spawn(
    crew: Option<&Arc<Crew>>,
    role: Role,
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> Result<(), SpawnError> {
    // The membership begins before the thread runs, so that a crew with a thread that has not run
    // yet is not idle.
    let membership = crew.map(|crew| crew.join(name.clone()));
    let started = thread::Builder::new().name(name.clone()).spawn(move || {
        ROLE.set(Some(role));
        crew::enter(membership);
        work();
    });
    match started {
        Ok(_) => Ok(()),
        Err(source) => Err(SpawnError { name, source }),
    }
}

/// The role of this thread; `None` on a thread of the service.
pub(crate) fn role() -> Option<Role> {
    ROLE.get()
}

/// Whether other threads wait for this one, which therefore must not wait for them.
pub(crate) fn is_owner_thread() -> bool {
    role() == Some(Role::Owner)
}

/// Blocks until an operation of `select` is ready, or until the limit. The caller then tries each
/// operation.
pub(crate) fn ready(mut select: Select<'_>, limit: Option<Instant>) {
    crew::with_membership(|membership| match membership {
        None => drop(crew::block(&mut select, limit)),
        Some(membership) => membership.ready(select, limit),
    });
}

/// Blocks on `condvar` until it is notified. A member of a crew blocks until `has_work`, too;
/// another thread may also wake spuriously.
pub(crate) fn wait<T>(
    condvar: &Arc<Condvar>,
    guard: &mut MutexGuard<'_, T>,
    has_work: impl Fn(&T) -> bool,
) {
    crew::with_membership(|membership| match membership {
        None => condvar.wait(guard),
        Some(membership) => membership.wait(condvar, guard, has_work),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::instant::monotonic;
    use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(20);

    fn wait_until_idle(crew: &Crew) {
        crew.wait_until_idle(monotonic() + LIMIT).unwrap();
    }

    /// Starts a member that passes each number on, decremented, until it is zero.
    fn relay(crew: &Arc<Crew>, inbox: Receiver<u32>, next: Sender<u32>, done: &Arc<AtomicU32>) {
        let done = done.clone();
        let work = move || {
            loop {
                let mut select = Select::new();
                select.recv(&inbox);
                ready(select, None);
                match inbox.try_recv() {
                    Ok(0) => drop(done.fetch_add(1, Ordering::SeqCst)),
                    Ok(left) => {
                        let _ = next.send(left - 1);
                    }
                    Err(error) if error.is_disconnected() => return,
                    Err(_) => {}
                }
            }
        };
        spawn(Some(crew), Role::Owner, "relay".to_owned(), work).unwrap();
    }

    #[test]
    fn crew_is_idle_after_all_messages_arrived() {
        let crew = Arc::new(Crew::default());
        let done = Arc::new(AtomicU32::new(0));
        let (first, a) = unbounded();
        let (second, b) = unbounded();
        let (third, c) = unbounded();
        relay(&crew, a, second.clone(), &done);
        relay(&crew, b, third.clone(), &done);
        relay(&crew, c, first.clone(), &done);
        for round in 1..=500 {
            first.send(7).unwrap();
            wait_until_idle(&crew);
            assert_eq!(done.load(Ordering::SeqCst), round);
        }
    }

    #[test]
    fn crew_covers_member_waiting_on_condvar() {
        #[derive(Default)]
        struct Inbox {
            work: u32,
            done: u32,
            closed: bool,
        }
        let crew = Arc::new(Crew::default());
        let inbox = Arc::new((Mutex::<Inbox>::default(), Arc::new(Condvar::new())));
        let shared = inbox.clone();
        let work = move || {
            let mut inbox = shared.0.lock();
            while !inbox.closed {
                inbox.done += std::mem::take(&mut inbox.work);
                wait(&shared.1, &mut inbox, |inbox| {
                    inbox.work > 0 || inbox.closed
                });
            }
        };
        spawn(Some(&crew), Role::Owner, "condvar".to_owned(), work).unwrap();
        for round in 1..=500 {
            inbox.0.lock().work += 1;
            inbox.1.notify_one();
            wait_until_idle(&crew);
            assert_eq!(inbox.0.lock().done, round);
        }
        inbox.0.lock().closed = true;
        inbox.1.notify_all();
    }

    #[test]
    fn working_member_is_named_at_limit() {
        let crew = Arc::new(Crew::default());
        let (release, held) = bounded::<()>(0);
        let work = move || {
            let _ = held.recv();
        };
        spawn(Some(&crew), Role::Owner, "busy".to_owned(), work).unwrap();
        let idle = crew.wait_until_idle(monotonic() + Duration::from_millis(20));
        assert_eq!(idle, Err(vec!["busy".to_owned()]));
        drop(release);
        wait_until_idle(&crew);
    }

    #[test]
    fn member_that_cannot_report_is_named_at_limit() {
        let crew = Arc::new(Crew::default());
        let gate = Arc::new((Mutex::new(false), Arc::new(Condvar::new())));
        let shared = gate.clone();
        let work = move || {
            let mut closed = shared.0.lock();
            while !*closed {
                wait(&shared.1, &mut closed, |closed| *closed);
            }
        };
        spawn(Some(&crew), Role::Owner, "silent".to_owned(), work).unwrap();
        wait_until_idle(&crew);
        let mut closed = gate.0.lock();
        let idle = crew.wait_until_idle(monotonic() + Duration::from_millis(20));
        assert_eq!(idle, Err(vec!["silent".to_owned()]));
        *closed = true;
        drop(closed);
        gate.1.notify_all();
        wait_until_idle(&crew);
    }

    #[test]
    fn thread_without_crew_waits_for_operation_or_limit() {
        let (send, receive) = bounded(1);
        send.send(()).unwrap();
        let mut select = Select::new();
        select.recv(&receive);
        ready(select, None);
        let mut select = Select::new();
        let none = crossbeam_channel::never::<()>();
        select.recv(&none);
        ready(select, Some(monotonic() + Duration::from_millis(1)));
    }
}
