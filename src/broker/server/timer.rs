//! The broker's own thread: it waits until something is over, and then has the broker look.

use super::broker::{Due, Shared};
use crate::time::clock::{Clock, Timer};
use crate::time::threads::{self, Role, SpawnError};
use crossbeam_channel::{Receiver, Select, TryRecvError, never, tick};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Starts the thread. It ends with the broker, whose end of `changes` is dropped.
pub(crate) fn start(shared: &Arc<Shared>, changes: Receiver<()>) -> Result<(), SpawnError> {
    let clock = shared.clock().clone();
    let weak = Arc::downgrade(shared);
    let name = format!("rungmq-memory-{}", shared.name());
    let timer = {
        let clock = clock.clone();
        move || {
            let mut pulse = Pulse::default();
            run(&weak, &mut pulse, &mut |due, beats| {
                wait(&*clock, due, beats, &changes)
            });
        }
    };
    clock.spawn(Role::Owner, name, Box::new(timer))
}

/// What a wait ended with.
enum Woken {
    Look,
    Beat,
    Ended,
}

fn run(
    broker: &Weak<Shared>,
    pulse: &mut Pulse,
    wait: &mut dyn FnMut(&Due, &Receiver<Instant>) -> Woken,
) {
    loop {
        let Some(shared) = broker.upgrade() else {
            return;
        };
        let due = shared.look();
        pulse.set(shared.heartbeat());
        drop(shared);
        match wait(&due, &pulse.beats) {
            Woken::Look => {}
            Woken::Beat => {
                if let Some(shared) = broker.upgrade() {
                    shared.beat();
                }
            }
            Woken::Ended => return,
        }
    }
}

/// Waits for the next thing to be over or read, for a change, or for the next heartbeat.
fn wait(clock: &dyn Clock, due: &Due, beats: &Receiver<Instant>, changes: &Receiver<()>) -> Woken {
    let over = due.over.map_or_else(Timer::never, |over| clock.at(over));
    let mut select = Select::new();
    select.recv(changes);
    select.recv(&over);
    select.recv(beats);
    match due.read {
        // That is work to do, which a test clock waits for.
        Some(read) => drop(select.ready_deadline(read)),
        None => threads::ready(select, None),
    }
    if beats.try_recv().is_ok() {
        return Woken::Beat;
    }
    match changes.try_recv() {
        Err(TryRecvError::Disconnected) => Woken::Ended,
        Ok(()) | Err(TryRecvError::Empty) => Woken::Look,
    }
}

/// When heartbeats are sent: twice in each interval.
struct Pulse {
    heartbeat: Option<Duration>,
    beats: Receiver<Instant>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            heartbeat: None,
            beats: never(),
        }
    }
}

impl Pulse {
    fn set(&mut self, heartbeat: Option<Duration>) {
        if heartbeat != self.heartbeat {
            self.heartbeat = heartbeat;
            self.beats = heartbeat.map_or_else(never, |heartbeat| tick(heartbeat / 2));
        }
    }
}
