//! The broker's shared core: the lock and the clock around the [`Hub`], and the timer thread.
//!
//! [`Broker`](super::broker::Broker) handles own the core; the timer thread holds it weakly and
//! ends with it.

use super::connection::ServerConnection;
use super::hub::Hub;
use crate::broker::model::ids::Moment;
use crate::broker::model::profile::Profile;
use crate::time::clock::{Clock, Timer};
use crate::time::threads::{self, Role, SpawnError};
use crossbeam_channel::{Receiver, Select, Sender, TryRecvError, bounded, never, tick};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The state that all handles of a broker share.
pub(crate) struct BrokerCore {
    name: String,
    clock: Arc<dyn Clock>,
    /// Everything that changes: the model, the connections and the faults. Taken after the lock of
    /// the registry and before that of a [`CloseReason`](super::connection::CloseReason).
    hub: Mutex<Hub>,
    /// Wakes the timer thread. Dropped with the core, which ends that thread.
    changed: Sender<()>,
}

/// When the timer thread has to act next.
struct NextWake {
    /// Something expires, by the broker's clock.
    expiry: Option<Instant>,
    /// A delayed request becomes readable, in real time.
    readable: Option<Instant>,
}

impl BrokerCore {
    /// Creates the core and starts its timer thread. Times to live and ages follow `clock`.
    pub(crate) fn start(
        name: String,
        profile: Profile,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, SpawnError> {
        let (changed, changes) = bounded(1);
        let core = Arc::new(Self {
            name,
            clock: clock.clone(),
            hub: Mutex::new(Hub::new(profile)),
            changed,
        });
        let weak = Arc::downgrade(&core);
        let thread = format!("rungmq-memory-{}", core.name);
        let timer_clock = clock.clone();
        let timer = move || run_timer(&weak, &*timer_clock, &changes);
        clock.spawn(Role::Owner, thread, Box::new(timer))?;
        Ok(core)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Changes the broker's state, then processes and sends what follows from it.
    pub(crate) fn update<R>(&self, work: impl FnOnce(&mut Hub, Moment) -> R) -> R {
        let mut hub = self.hub.lock();
        let schedule = |hub: &Hub| (hub.due(), hub.next_readable_at(), hub.connections.len());
        let before = schedule(&hub);
        let at = self.moment();
        hub.expire(at);
        let result = work(&mut hub, at);
        hub.process_requests(at);
        let is_rescheduled = schedule(&hub) != before;
        drop(hub);
        if is_rescheduled {
            // One token is enough: the timer thread recomputes everything when it wakes.
            let _ = self.changed.try_send(());
        }
        result
    }

    /// Reads the broker's state as it is now, without what has expired.
    pub(crate) fn inspect<R>(&self, read: impl FnOnce(&Hub) -> R) -> R {
        let mut hub = self.hub.lock();
        hub.expire(self.moment());
        read(&hub)
    }

    pub(crate) fn profile(&self) -> Profile {
        self.hub.lock().state.profile
    }

    fn moment(&self) -> Moment {
        Moment {
            now: self.clock.now(),
            epoch_millis: self.clock.epoch_millis(),
        }
    }

    /// Expires and reads what is due, and returns when there is more to do.
    fn process_due(&self) -> NextWake {
        let mut hub = self.hub.lock();
        let at = self.moment();
        hub.expire(at);
        hub.process_requests(at);
        NextWake {
            expiry: hub.due(),
            readable: hub.next_readable_at(),
        }
    }

    /// The shortest heartbeat interval of all connections; none when no connection has heartbeats.
    fn heartbeat(&self) -> Option<Duration> {
        let hub = self.hub.lock();
        let all = hub
            .connections
            .values()
            .map(|connection| connection.heartbeat);
        all.filter(|heartbeat| !heartbeat.is_zero()).min()
    }

    /// Sends a heartbeat to every client. A silent broker sends none, and the clients that have
    /// missed two of them close their connections.
    fn send_heartbeats(&self) {
        self.update(|hub, _| {
            if hub.faults.is_silent() {
                hub.close_silent_connections();
            } else {
                hub.connections
                    .values()
                    .for_each(ServerConnection::note_sent);
            }
        });
    }
}

/// What ended a wait of the timer thread.
enum WakeReason {
    Due,
    Heartbeat,
    Stopped,
}

/// The timer thread: processes what is due until the core is dropped.
fn run_timer(core: &Weak<BrokerCore>, clock: &dyn Clock, changes: &Receiver<()>) {
    let mut heartbeats = HeartbeatTicker::default();
    loop {
        // The reference is dropped before the wait: it must not keep the broker alive.
        let Some(strong) = core.upgrade() else {
            return;
        };
        let next = strong.process_due();
        heartbeats.set(strong.heartbeat());
        drop(strong);
        match wait(clock, &next, &heartbeats.ticks, changes) {
            WakeReason::Due => {}
            WakeReason::Heartbeat => {
                if let Some(core) = core.upgrade() {
                    core.send_heartbeats();
                }
            }
            WakeReason::Stopped => return,
        }
    }
}

/// Waits until something expires or becomes readable, the schedule changes, or a heartbeat is due.
fn wait(
    clock: &dyn Clock,
    next: &NextWake,
    heartbeats: &Receiver<Instant>,
    changes: &Receiver<()>,
) -> WakeReason {
    let expiry = next
        .expiry
        .map_or_else(Timer::never, |expiry| clock.at(expiry));
    let mut select = Select::new();
    select.recv(changes);
    select.recv(&expiry);
    select.recv(heartbeats);
    match next.readable {
        // A delayed request is outstanding work: a test clock must not count this thread as idle.
        Some(readable) => drop(select.ready_deadline(readable)),
        None => threads::ready(select, None),
    }
    if heartbeats.try_recv().is_ok() {
        return WakeReason::Heartbeat;
    }
    match changes.try_recv() {
        Err(TryRecvError::Disconnected) => WakeReason::Stopped,
        Ok(()) | Err(TryRecvError::Empty) => WakeReason::Due,
    }
}

/// Ticks twice in each heartbeat interval.
struct HeartbeatTicker {
    interval: Option<Duration>,
    ticks: Receiver<Instant>,
}

impl Default for HeartbeatTicker {
    fn default() -> Self {
        Self {
            interval: None,
            ticks: never(),
        }
    }
}

impl HeartbeatTicker {
    fn set(&mut self, interval: Option<Duration>) {
        // An unchanged interval keeps its ticker: a new one would start its period again.
        if interval != self.interval {
            self.interval = interval;
            self.ticks = interval.map_or_else(never, |interval| tick(interval / 2));
        }
    }
}
