//! A crew: the threads of one test clock, and how the clock learns that all of them are idle.
//!
//! A member of a crew waits for work in [`Membership::ready`] or [`Membership::wait`], where its
//! wait is registered with a waker. [`Crew::wait_until_idle`] wakes every waiting member; each
//! looks for work, and reports that it found none together with the epoch that it read before it
//! looked. The epoch advances with every beginning and end of a wait and with every member that
//! joins or leaves. So the crew is idle when every member has reported for the current epoch: no
//! member has worked between the first look and the last.

use super::instant::monotonic;
use crossbeam_channel::{Receiver, Select, Sender, bounded};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a member without a report is woken again. A condvar's notification is lost on a member
/// that has registered its wait and does not block yet, and a report may be of an earlier epoch.
const WAKE_INTERVAL: Duration = Duration::from_millis(1);

thread_local! {
    static MEMBERSHIP: RefCell<Option<Membership>> = const { RefCell::new(None) };
}

/// Makes this thread a member of a crew for the rest of its life.
pub(super) fn enter(membership: Option<Membership>) {
    MEMBERSHIP.set(membership);
}

/// Calls `f` with the membership of this thread.
pub(super) fn with_membership<R>(f: impl FnOnce(Option<&Membership>) -> R) -> R {
    MEMBERSHIP.with_borrow(|membership| f(membership.as_ref()))
}

/// Blocks until an operation of `select` is ready, and returns its index; `None` at the limit.
pub(super) fn block(select: &mut Select<'_>, limit: Option<Instant>) -> Option<usize> {
    match limit {
        Some(limit) => select.ready_deadline(limit).ok(),
        None => Some(select.ready()),
    }
}

/// Threads that work together, and that can be waited for until none of them has work.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    state: Mutex<CrewState>,
    /// Signalled, with `state`, at every change of a member.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CrewState {
    members: BTreeMap<u64, Member>,
    last_id: u64,
    /// Counts the events after which a member may have work: the beginning and end of a wait, a
    /// member that joins or leaves, and each call of [`Crew::wait_until_idle`], before which a
    /// thread outside may have made work.
    epoch: u64,
}

#[derive(Debug)]
struct Member {
    name: String,
    /// Wakes the member to look for work; `None` while it works.
    waker: Option<Waker>,
    /// The latest epoch for which it has reported that it has no work.
    idle_epoch: Option<u64>,
}

#[derive(Debug)]
enum Waker {
    Channel(Sender<()>),
    Condvar(Arc<Condvar>),
}

impl Waker {
    fn wake(&self) {
        match self {
            // A full channel holds a wake-up already.
            Self::Channel(wakes) => drop(wakes.try_send(())),
            Self::Condvar(condvar) => drop(condvar.notify_all()),
        }
    }
}

impl Crew {
    /// Whether this thread is a member.
    pub(super) fn contains_this_thread(self: &Arc<Self>) -> bool {
        with_membership(|membership| {
            membership.is_some_and(|membership| Arc::ptr_eq(&membership.crew, self))
        })
    }

    /// Adds a member, which counts as working until its first wait.
    pub(super) fn join(self: &Arc<Self>, name: String) -> Membership {
        let mut state = self.state.lock();
        state.last_id += 1;
        state.epoch += 1;
        let id = state.last_id;
        let member = Member {
            name,
            waker: None,
            idle_epoch: None,
        };
        state.members.insert(id, member);
        Membership {
            crew: self.clone(),
            id,
            wakes: bounded(1),
        }
    }

    /// Waits until every member is idle.
    ///
    /// # Errors
    ///
    /// At the limit, the names of the members that work or have not reported.
    pub(super) fn wait_until_idle(&self, limit: Instant) -> Result<(), Vec<String>> {
        let mut state = self.state.lock();
        state.epoch += 1;
        loop {
            while let Some(working) = state.working() {
                if self.changed.wait_until(&mut state, limit).timed_out() {
                    return Err(working);
                }
            }
            let epoch = state.epoch;
            while state.epoch == epoch {
                if !state.wake_unreported() {
                    return Ok(());
                }
                if monotonic() >= limit {
                    return Err(names(state.unreported()));
                }
                self.changed.wait_for(&mut state, WAKE_INTERVAL);
            }
        }
    }

    fn update(&self, id: u64, update: impl FnOnce(&mut CrewState, &mut Member)) {
        let mut state = self.state.lock();
        if let Some(mut member) = state.members.remove(&id) {
            update(&mut state, &mut member);
            state.members.insert(id, member);
        }
        self.changed.notify_all();
    }
}

impl CrewState {
    /// The names of the members that do not wait; `None` when all wait.
    fn working(&self) -> Option<Vec<String>> {
        let members = self.members.values();
        let names = names(members.filter(|member| member.waker.is_none()));
        (!names.is_empty()).then_some(names)
    }

    /// The members that have not reported idle in this epoch.
    fn unreported(&self) -> impl Iterator<Item = &Member> {
        let members = self.members.values();
        members.filter(|member| member.idle_epoch != Some(self.epoch))
    }

    /// Wakes every member that has not reported; whether there is one.
    fn wake_unreported(&self) -> bool {
        let mut any = false;
        for member in self.unreported() {
            any = true;
            if let Some(waker) = &member.waker {
                waker.wake();
            }
        }
        any
    }
}

fn names<'m>(members: impl Iterator<Item = &'m Member>) -> Vec<String> {
    members.map(|member| member.name.clone()).collect()
}

/// The membership of one thread. Its drop, with the end of the thread, leaves the crew.
#[derive(Debug)]
pub(super) struct Membership {
    crew: Arc<Crew>,
    id: u64,
    wakes: (Sender<()>, Receiver<()>),
}

impl Membership {
    /// Blocks until an operation of `select` is ready, or until the limit.
    pub(super) fn ready<'s>(&'s self, mut select: Select<'s>, limit: Option<Instant>) {
        self.begin_wait(Waker::Channel(self.wakes.0.clone()));
        loop {
            let wake = select.recv(&self.wakes.1);
            if block(&mut select, limit) != Some(wake) {
                break;
            }
            let _ = self.wakes.1.try_recv();
            select.remove(wake);
            let epoch = self.epoch();
            if select.try_ready().is_ok() {
                break;
            }
            self.report_idle(epoch);
        }
        self.end_wait();
    }

    /// Blocks on `condvar` until it is notified and `has_work` is true.
    pub(super) fn wait<T>(
        &self,
        condvar: &Arc<Condvar>,
        guard: &mut MutexGuard<'_, T>,
        has_work: impl Fn(&T) -> bool,
    ) {
        self.begin_wait(Waker::Condvar(condvar.clone()));
        loop {
            condvar.wait(guard);
            let epoch = self.epoch();
            if has_work(guard) {
                break;
            }
            self.report_idle(epoch);
        }
        self.end_wait();
    }

    fn begin_wait(&self, waker: Waker) {
        self.crew.update(self.id, |state, member| {
            // A member that looked while this one worked may have looked before its work arrived.
            state.epoch += 1;
            member.waker = Some(waker);
        });
    }

    /// The current epoch. Read before a look for work, so that an overtaken report does not count.
    fn epoch(&self) -> u64 {
        self.crew.state.lock().epoch
    }

    fn report_idle(&self, epoch: u64) {
        self.crew
            .update(self.id, |_, member| member.idle_epoch = Some(epoch));
    }

    fn end_wait(&self) {
        self.crew.update(self.id, |state, member| {
            state.epoch += 1;
            member.waker = None;
        });
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.crew.state.lock();
        state.members.remove(&self.id);
        state.epoch += 1;
        self.crew.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overtaken_report_does_not_count() {
        let crew = Arc::new(Crew::default());
        let late = crew.join("late".to_owned());
        late.begin_wait(Waker::Channel(late.wakes.0.clone()));
        let epoch = late.epoch();
        // Another member works between the look and the report, and may have made work.
        drop(crew.join("other".to_owned()));
        late.report_idle(epoch);
        assert!(crew.state.lock().wake_unreported(), "it has to look again");
        // So may one that works during the look and waits afterwards.
        let other = crew.join("other".to_owned());
        late.report_idle(late.epoch());
        other.begin_wait(Waker::Channel(other.wakes.0.clone()));
        other.report_idle(other.epoch());
        assert!(crew.state.lock().wake_unreported(), "it has to look again");
        late.report_idle(late.epoch());
        assert!(!crew.state.lock().wake_unreported());
    }
}
