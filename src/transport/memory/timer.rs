//! The broker's own thread: it waits until something is over, and then has the broker look.

use super::broker::Shared;
use crate::clock::Clock;
use crossbeam_channel::{Receiver, never, select, tick};
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Starts the thread. It ends with the broker, whose end of `changes` is dropped.
pub(super) fn start(shared: &Arc<Shared>, changes: Receiver<()>) -> io::Result<()> {
    let clock = shared.clock().clone();
    let weak = Arc::downgrade(shared);
    thread::Builder::new()
        .name(format!("rungmq-memory-{}", shared.name()))
        .spawn(move || {
            let mut pulse = Pulse::default();
            run(&weak, &mut pulse, &mut |due, beats| {
                wait(&*clock, due, beats, &changes)
            });
        })?;
    Ok(())
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
    wait: &mut dyn FnMut(Option<Instant>, &Receiver<Instant>) -> Woken,
) {
    loop {
        let Some(shared) = broker.upgrade() else {
            return;
        };
        let due = shared.expire();
        pulse.set(shared.heartbeat());
        drop(shared);
        match wait(due, &pulse.beats) {
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

/// Waits for the next thing to be over, for a change, or for the next heartbeat.
fn wait(
    clock: &dyn Clock,
    due: Option<Instant>,
    beats: &Receiver<Instant>,
    changes: &Receiver<()>,
) -> Woken {
    let over = due.map_or_else(never, |due| clock.at(due));
    select! {
        recv(changes) -> change => match change {
            Ok(()) => Woken::Look,
            Err(_) => Woken::Ended,
        },
        recv(over) -> _ => Woken::Look,
        recv(beats) -> _ => Woken::Beat,
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
