//! What a seed decides: the plan of each message and the order of all trouble. Pure.

use std::iter;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::harness::work::Plan;

/// What happens to the broker, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// `kill -9`, and a start after a while.
    KillBroker(Duration),
    CloseConnections,
    /// So that a process loses what it publishes by and not what it consumes by, or the other way
    /// round.
    CloseSomeConnections(u32),
    /// SIGSTOP and SIGCONT; the longer ones are noticed by the heartbeats.
    Freeze(Duration),
    /// Rungs, dead-letter and parked queues, each if it is empty.
    DeleteEmpty,
    MemoryAlarm(Duration),
    /// A policy that ends the waits in rungs early.
    ShortRungs(Duration),
    /// A policy by which rungs, dead-letter and parked queues refuse every copy.
    RefuseCopies(Duration),
    /// Dead-letter and parked queues hang: a copy to them gets no confirm.
    HangQueues {
        time: Duration,
        /// The broker is killed meanwhile, so that these copies are lost.
        killed: bool,
    },
}

/// What happens to one of the consuming processes, beside the trouble of the broker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blow {
    /// `kill -9`, and a start after a while.
    Kill(Duration),
    /// SIGTERM, and a start as soon as it has ended.
    Terminate,
    /// SIGSTOP and SIGCONT.
    Suspend(Duration),
}

/// An endless script; equal seeds give equal scripts.
pub(crate) struct Script(StdRng);

impl Script {
    /// Each `part` of a run has a script of its own, so that none changes with the timing of
    /// another.
    pub(crate) fn new(seed: u64, part: u64) -> Self {
        Self(StdRng::seed_from_u64(
            seed.wrapping_mul(1_000).wrapping_add(part),
        ))
    }

    pub(crate) fn pause(&mut self) -> Duration {
        self.millis(200, 2_500)
    }

    /// One, or two in immediate succession.
    pub(crate) fn troubles(&mut self) -> Vec<Trouble> {
        let first = self.trouble();
        let killed = matches!(first, Trouble::HangQueues { killed: true, .. });
        let then = killed.then(|| Trouble::KillBroker(self.millis(0, 1_000)));
        iter::once(first).chain(then).collect()
    }

    fn trouble(&mut self) -> Trouble {
        match self.0.random_range(0..100) {
            0..15 => Trouble::KillBroker(self.millis(0, 3_000)),
            15..23 => Trouble::CloseConnections,
            23..35 => Trouble::CloseSomeConnections(self.0.random()),
            35..50 => Trouble::Freeze(self.millis(100, 7_000)),
            50..70 => Trouble::DeleteEmpty,
            70..80 => Trouble::MemoryAlarm(self.millis(200, 5_000)),
            80..86 => Trouble::ShortRungs(self.millis(500, 3_000)),
            86..93 => Trouble::RefuseCopies(self.millis(200, 3_000)),
            _ => Trouble::HangQueues {
                // Longer than the consumers wait for a confirm.
                time: self.millis(3_500, 7_000),
                killed: self.0.random(),
            },
        }
    }

    /// Which of `processes` is hit, and how.
    pub(crate) fn blow(&mut self, processes: usize) -> (usize, Blow) {
        let process = self.0.random_range(0..processes);
        let blow = match self.0.random_range(0..10) {
            0..5 => Blow::Kill(self.millis(0, 2_000)),
            5..8 => Blow::Terminate,
            _ => Blow::Suspend(self.millis(500, 6_000)),
        };
        (process, blow)
    }

    pub(crate) fn plan(&mut self) -> Plan {
        match self.0.random_range(0..100) {
            0..40 => Plan::Accept,
            40..46 => Plan::Slow,
            46..64 => Plan::Fail(self.0.random_range(1..4)),
            64..70 => Plan::Panic(self.0.random_range(1..4)),
            70..80 => Plan::FailAlways,
            80..86 => Plan::Fatal,
            86..90 => Plan::Reject,
            90..96 => Plan::Park,
            _ => Plan::Undecodable,
        }
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.0.random_range(from..to))
    }
}
