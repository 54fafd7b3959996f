//! The library's threads: how they are started, and where they wait for something to do.
//!
//! A test clock may move on only while nobody has anything to do. So threads wait for work in [`ready`] or [`wait`], which
//! tell the [`Crew`] they belong to, if they belong to one. Whatever else blocks them, a call or a handler, counts as work.

#![cfg_attr(
    not(any(test, feature = "testing")),
    allow(dead_code, reason = "only a test clock has a crew")
)]

use super::instant::monotonic;
use crossbeam_channel::{Receiver, Select, Sender, bounded};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often a thread that waits is asked again whether it has anything to do; its answer may have been overtaken.
const ASK_AGAIN: Duration = Duration::from_millis(1);

thread_local! {
    /// Set once, by [`spawn`]; `None` on the threads of the service. Without a destructor, so that the last handle of a
    /// connection may be dropped by another thread-local's.
    static ROLE: Cell<Option<Role>> = const { Cell::new(None) };
    static MEMBERSHIP: RefCell<Option<Membership>> = const { RefCell::new(None) };
}

/// What a library thread is for, which decides whether it may wait for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Owns state or makes a broker call that other threads wait for.
    Owner,
    /// Runs handlers, which may wait like any caller.
    Worker,
}

/// The operating system refused a thread.
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

/// Starts a thread in its role, as a member of `crew` if there is one.
pub(crate) fn spawn(
    crew: Option<&Arc<Crew>>,
    role: Role,
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> Result<(), SpawnError> {
    // The membership exists before the thread runs, so that its work counts from the first moment.
    let membership = crew.map(|crew| crew.join(name.clone()));
    let started = thread::Builder::new().name(name.clone()).spawn(move || {
        ROLE.set(Some(role));
        MEMBERSHIP.set(membership);
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

/// Whether other threads wait for this one, so that it must not wait for them.
pub(crate) fn is_owner_thread() -> bool {
    role() == Some(Role::Owner)
}

/// Blocks until an operation of `select` is ready, or the limit is over; which one is for the caller to find out.
pub(crate) fn ready(mut select: Select<'_>, limit: Option<Instant>) {
    MEMBERSHIP.with_borrow(|membership| match membership {
        None => drop(block(&mut select, limit)),
        Some(membership) => membership.ready(select, limit),
    });
}

/// Blocks on `condvar` until it is notified. It may return early, but in a crew only when there is work.
pub(crate) fn wait<T>(
    condvar: &Arc<Condvar>,
    guard: &mut MutexGuard<'_, T>,
    has_work: impl Fn(&T) -> bool,
) {
    MEMBERSHIP.with_borrow(|membership| match membership {
        None => condvar.wait(guard),
        Some(membership) => membership.wait(condvar, guard, has_work),
    });
}

/// Which operation is ready; none when the limit is over.
fn block(select: &mut Select<'_>, limit: Option<Instant>) -> Option<usize> {
    match limit {
        Some(limit) => select.ready_deadline(limit).ok(),
        None => Some(select.ready()),
    }
}

/// Threads that work together, and can be waited for until none of them has anything to do.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    members: BTreeMap<u64, Member>,
    joined: u64,
    /// Counts what may have given somebody something to do: every beginning and end of a wait, every coming and going, and whatever was
    /// done outside before somebody wants to know.
    stirred: u64,
}

#[derive(Debug)]
struct Member {
    name: String,
    /// How to ask it whether it has anything to do, while it waits.
    waiting: Option<Question>,
    /// What [`State::stirred`] was when it last looked and had nothing to do.
    idle_at: Option<u64>,
}

#[derive(Debug)]
enum Question {
    Channel(Sender<()>),
    Condvar(Arc<Condvar>),
}

impl Question {
    fn ask(&self) {
        match self {
            Self::Channel(question) => drop(question.try_send(())),
            Self::Condvar(condvar) => drop(condvar.notify_all()),
        }
    }
}

impl Crew {
    /// Whether this thread is one of its members.
    pub(crate) fn is_own(self: &Arc<Self>) -> bool {
        MEMBERSHIP.with_borrow(|membership| {
            let crew = membership.as_ref().map(|membership| &membership.crew);
            crew.is_some_and(|crew| Arc::ptr_eq(crew, self))
        })
    }

    fn join(self: &Arc<Self>, name: String) -> Membership {
        let mut state = self.state.lock();
        state.joined += 1;
        state.stirred += 1;
        let id = state.joined;
        let member = Member {
            name,
            waiting: None,
            idle_at: None,
        };
        state.members.insert(id, member);
        Membership {
            crew: self.clone(),
            id,
            question: bounded(1),
        }
    }

    /// Waits until every member waits and none of them has anything to do, at most until `limit`; the names of those that are
    /// still at work then, or have not said that they are not.
    ///
    /// All must wait to begin with, each must then say that nothing has come for it, and nobody may have stirred from before the
    /// first one looked until the last one has: who was waiting all the time gave nobody anything.
    pub(crate) fn settle(&self, limit: Instant) -> Result<(), Vec<String>> {
        let mut state = self.state.lock();
        state.stirred += 1;
        loop {
            while let Some(at_work) = state.at_work() {
                if self.changed.wait_until(&mut state, limit).timed_out() {
                    return Err(at_work);
                }
            }
            let stirred = state.stirred;
            while state.stirred == stirred {
                if !state.ask() {
                    return Ok(());
                }
                if monotonic() >= limit {
                    return Err(names(state.silent()));
                }
                self.changed.wait_for(&mut state, ASK_AGAIN);
            }
        }
    }

    fn update(&self, id: u64, update: impl FnOnce(&mut State, &mut Member)) {
        let mut state = self.state.lock();
        if let Some(mut member) = state.members.remove(&id) {
            update(&mut state, &mut member);
            state.members.insert(id, member);
        }
        self.changed.notify_all();
    }
}

impl State {
    fn at_work(&self) -> Option<Vec<String>> {
        let at_work = self
            .members
            .values()
            .filter(|member| member.waiting.is_none());
        let names = names(at_work);
        (!names.is_empty()).then_some(names)
    }

    /// Who has not said since the last stir that there is nothing to do.
    fn silent(&self) -> impl Iterator<Item = &Member> {
        let members = self.members.values();
        members.filter(|member| member.idle_at != Some(self.stirred))
    }

    /// Asks every member that has not answered yet; whether there was one.
    fn ask(&self) -> bool {
        let mut asked = false;
        for member in self.silent() {
            asked = true;
            if let Some(question) = &member.waiting {
                question.ask();
            }
        }
        asked
    }
}

fn names<'m>(members: impl Iterator<Item = &'m Member>) -> Vec<String> {
    members.map(|member| member.name.clone()).collect()
}

/// One thread's place in its crew, given up when the thread ends.
#[derive(Debug)]
struct Membership {
    crew: Arc<Crew>,
    id: u64,
    question: (Sender<()>, Receiver<()>),
}

impl Membership {
    fn ready<'s>(&'s self, mut select: Select<'s>, limit: Option<Instant>) {
        self.begin_wait(Question::Channel(self.question.0.clone()));
        loop {
            let asked = select.recv(&self.question.1);
            if block(&mut select, limit) != Some(asked) {
                break;
            }
            let _ = self.question.1.try_recv();
            select.remove(asked);
            let stirred = self.stirred();
            if select.try_ready().is_ok() {
                break;
            }
            self.has_nothing_to_do(stirred);
        }
        self.end_wait();
    }

    fn wait<T>(
        &self,
        condvar: &Arc<Condvar>,
        guard: &mut MutexGuard<'_, T>,
        has_work: impl Fn(&T) -> bool,
    ) {
        self.begin_wait(Question::Condvar(condvar.clone()));
        loop {
            condvar.wait(guard);
            let stirred = self.stirred();
            if has_work(guard) {
                break;
            }
            self.has_nothing_to_do(stirred);
        }
        self.end_wait();
    }

    fn begin_wait(&self, question: Question) {
        self.crew.update(self.id, |state, member| {
            // Who looked while this one was at work may have looked too early.
            state.stirred += 1;
            member.waiting = Some(question);
        });
    }

    /// To be asked before the look, so that an answer that has been overtaken does not count.
    fn stirred(&self) -> u64 {
        self.crew.state.lock().stirred
    }

    fn has_nothing_to_do(&self, stirred: u64) {
        self.crew
            .update(self.id, |_, member| member.idle_at = Some(stirred));
    }

    fn end_wait(&self) {
        self.crew.update(self.id, |state, member| {
            state.stirred += 1;
            member.waiting = None;
        });
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.crew.state.lock();
        state.members.remove(&self.id);
        state.stirred += 1;
        self.crew.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::unbounded;
    use std::sync::atomic::{AtomicU32, Ordering};

    const LIMIT: Duration = Duration::from_secs(20);

    fn settle(crew: &Crew) {
        crew.settle(monotonic() + LIMIT).unwrap();
    }

    /// A member that hands each number on, one less, until it is zero.
    fn relay(crew: &Arc<Crew>, inbox: Receiver<u32>, next: Sender<u32>, done: &Arc<AtomicU32>) {
        let done = done.clone();
        let work = move || {
            loop {
                let mut select = Select::new();
                select.recv(&inbox);
                ready(select, None);
                match inbox.try_recv() {
                    Ok(0) => drop(done.fetch_add(1, Ordering::SeqCst)),
                    Ok(left) => drop(next.send(left - 1)),
                    Err(error) if error.is_disconnected() => return,
                    Err(_) => {}
                }
            }
        };
        spawn(Some(crew), Role::Owner, "relay".to_owned(), work).unwrap();
    }

    #[test]
    fn a_crew_has_settled_when_whatever_was_handed_round_has_arrived() {
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
            settle(&crew);
            assert_eq!(done.load(Ordering::SeqCst), round);
        }
    }

    #[test]
    fn who_waits_on_a_condvar_is_asked_too() {
        #[derive(Default)]
        struct Desk {
            work: u32,
            done: u32,
            closed: bool,
        }
        let crew = Arc::new(Crew::default());
        let desk = Arc::new((Mutex::<Desk>::default(), Arc::new(Condvar::new())));
        let shared = desk.clone();
        let work = move || {
            let mut desk = shared.0.lock();
            while !desk.closed {
                desk.done += std::mem::take(&mut desk.work);
                wait(&shared.1, &mut desk, |desk| desk.work > 0 || desk.closed);
            }
        };
        spawn(Some(&crew), Role::Owner, "clerk".to_owned(), work).unwrap();
        for round in 1..=500 {
            desk.0.lock().work += 1;
            desk.1.notify_one();
            settle(&crew);
            assert_eq!(desk.0.lock().done, round);
        }
        desk.0.lock().closed = true;
        desk.1.notify_all();
    }

    #[test]
    fn who_is_at_work_past_the_limit_is_named() {
        let crew = Arc::new(Crew::default());
        let (release, held) = bounded::<()>(0);
        let work = move || {
            let _ = held.recv();
        };
        spawn(Some(&crew), Role::Owner, "busy".to_owned(), work).unwrap();
        let settled = crew.settle(monotonic() + Duration::from_millis(20));
        assert_eq!(settled, Err(vec!["busy".to_owned()]));
        drop(release);
        settle(&crew);
    }

    #[test]
    fn who_waits_and_cannot_answer_is_named_too() {
        let crew = Arc::new(Crew::default());
        let desk = Arc::new((Mutex::new(false), Arc::new(Condvar::new())));
        let shared = desk.clone();
        let work = move || {
            let mut closed = shared.0.lock();
            while !*closed {
                wait(&shared.1, &mut closed, |closed| *closed);
            }
        };
        spawn(Some(&crew), Role::Owner, "deaf".to_owned(), work).unwrap();
        settle(&crew);
        let mut closed = desk.0.lock();
        let settled = crew.settle(monotonic() + Duration::from_millis(20));
        assert_eq!(settled, Err(vec!["deaf".to_owned()]));
        *closed = true;
        drop(closed);
        desk.1.notify_all();
        settle(&crew);
    }

    #[test]
    fn an_answer_that_was_overtaken_does_not_count() {
        let crew = Arc::new(Crew::default());
        let late = crew.join("late".to_owned());
        late.begin_wait(Question::Channel(late.question.0.clone()));
        let looked = late.stirred();
        // Before the answer is given somebody else works, and may have left something.
        drop(crew.join("other".to_owned()));
        late.has_nothing_to_do(looked);
        assert!(crew.state.lock().ask(), "it has to look again");
        // So may who is at work while it looks, and has left something by the time that they wait.
        let other = crew.join("other".to_owned());
        late.has_nothing_to_do(late.stirred());
        other.begin_wait(Question::Channel(other.question.0.clone()));
        other.has_nothing_to_do(other.stirred());
        assert!(crew.state.lock().ask(), "it has to look again");
        late.has_nothing_to_do(late.stirred());
        assert!(!crew.state.lock().ask());
    }

    #[test]
    fn a_thread_that_is_no_member_waits_as_ever() {
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
