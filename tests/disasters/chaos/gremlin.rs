//! Makes trouble by a script, and writes down when.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;

use super::consumers::Consumers;
use super::now_millis;
use super::queues::Queues;
use super::script::{Blow, Script, Trouble};
use crate::harness::Vhost;
use crate::harness::wait::{Stopwatch, let_pass};

/// What happened, once it has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// The process of that number was killed, ended or stopped for a while.
    Killed(u32),
    Terminated(u32),
    Suspended(u32),
    /// It ended by itself, which the gremlin had brought about.
    StartFailed(u32),
    BrokerKilled,
    ConnectionsClosed,
    BrokerFrozen,
    /// These queues, which were empty.
    Deleted(Vec<String>),
    Alarm,
    ShortRungs,
    CopiesRefused,
    QueuesHung,
}

impl What {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Killed(_) => "consumer killed",
            Self::Terminated(_) => "consumer terminated",
            Self::Suspended(_) => "consumer suspended",
            Self::StartFailed(_) => "start of a consumer failed",
            Self::BrokerKilled => "broker killed",
            Self::ConnectionsClosed => "connections closed",
            Self::BrokerFrozen => "broker frozen",
            Self::Deleted(_) => "empty queues deleted",
            Self::Alarm => "memory alarm",
            Self::ShortRungs => "rungs cut short",
            Self::CopiesRefused => "copies refused",
            Self::QueuesHung => "dead-letter and parked queues hung",
        }
    }
}

/// From and to, in milliseconds since 1970.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) what: What,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

pub(crate) struct Gremlin<'a> {
    vhost: &'a Vhost<'a>,
    queues: &'a Queues<'a>,
    consumers: &'a Consumers,
    clock: Stopwatch,
    time: Duration,
    events: Mutex<Vec<Event>>,
    calm: AtomicBool,
}

impl<'a> Gremlin<'a> {
    /// For `time` from now on.
    pub(crate) fn new(
        vhost: &'a Vhost<'a>,
        queues: &'a Queues<'a>,
        consumers: &'a Consumers,
        time: Duration,
    ) -> Self {
        Self {
            vhost,
            queues,
            consumers,
            clock: Stopwatch::start(),
            time,
            events: Mutex::default(),
            calm: AtomicBool::new(false),
        }
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        let mut events = self.events.lock().clone();
        events.extend(self.consumers.failed_starts());
        events.sort_by_key(|event| event.from);
        events
    }

    fn is_on(&self) -> bool {
        self.clock.elapsed() < self.time
    }

    /// Disturbs the broker until the time is up. The last trouble is over when it returns.
    pub(crate) fn trouble(&self, mut script: Script) {
        while self.is_on() {
            for trouble in script.troubles() {
                if matches!(trouble, Trouble::DeleteEmpty) {
                    self.queues.clear_out();
                }
                let from = now_millis();
                let what = self.make(trouble);
                self.note(what, from);
            }
            let_pass(script.pause());
        }
    }

    /// Disturbs the consumers until the time is up.
    pub(crate) fn blows(&self, mut script: Script) {
        while self.is_on() {
            let (index, blow) = script.blow(self.consumers.count());
            let from = now_millis();
            match blow {
                Blow::Kill(down) => {
                    let process = self.consumers.kill_9(index);
                    self.note(What::Killed(process), from);
                    let_pass(down);
                    self.consumers.start_again(index);
                }
                Blow::Terminate => {
                    let process = self.consumers.terminate(index);
                    self.note(What::Terminated(process), from);
                    self.consumers.start_again(index);
                }
                Blow::Suspend(time) => {
                    let process = self.consumers.suspend(index, time);
                    self.note(What::Suspended(process), from);
                }
            }
            let_pass(script.pause());
        }
    }

    /// Until it is calm: starts again what could not start.
    pub(crate) fn look_after_consumers(&self) {
        while !self.calm.load(Ordering::SeqCst) {
            self.consumers.look_after();
            let_pass(Duration::from_millis(200));
        }
    }

    /// Ends supervision of the consumers when dropped, also when the test fails: its scope joins
    /// that thread.
    pub(crate) fn calm_when_dropped(&self) -> impl Drop + '_ {
        Calm(&self.calm)
    }

    fn note(&self, what: What, from: u64) {
        let to = now_millis();
        self.events.lock().push(Event { what, from, to });
    }

    fn make(&self, trouble: Trouble) -> What {
        let node = self.vhost.node();
        match trouble {
            Trouble::KillBroker(down) => {
                // Or it would forget the queue that a consumer has just declared again, and that a
                // policy was cleared.
                node.sync_metadata();
                node.kill_9();
                let_pass(down);
                node.start_again();
                What::BrokerKilled
            }
            Trouble::CloseConnections => {
                self.vhost.close_connections();
                What::ConnectionsClosed
            }
            Trouble::CloseSomeConnections(salt) => {
                node.close_some_connections(self.vhost.name(), salt);
                What::ConnectionsClosed
            }
            Trouble::Freeze(time) => {
                node.freeze();
                let_pass(time);
                node.thaw();
                What::BrokerFrozen
            }
            Trouble::DeleteEmpty => What::Deleted(self.queues.delete_empty()),
            Trouble::MemoryAlarm(time) => {
                node.memory_alarm(true);
                let_pass(time);
                node.memory_alarm(false);
                What::Alarm
            }
            Trouble::ShortRungs(time) => {
                let ttl = json!({"message-ttl": 100});
                self.vhost.set_policy("chaos", r"\.retry\.", &ttl);
                let_pass(time);
                self.vhost.clear_policy("chaos");
                What::ShortRungs
            }
            Trouble::RefuseCopies(time) => {
                // One step after the other: a limit that came first would drop what is in the
                // queues.
                let pattern = r"\.(retry\..*|dlq|parked)$";
                for definition in [
                    json!({"overflow": "reject-publish"}),
                    json!({"overflow": "reject-publish", "max-length": 0}),
                ] {
                    self.vhost.set_policy("chaos", pattern, &definition);
                    self.vhost.list_queues(&["name", "messages"]);
                }
                let_pass(time);
                self.vhost.clear_policy("chaos");
                What::CopiesRefused
            }
            Trouble::HangQueues { time, killed } => {
                let hung = self.queues.set_aside();
                let suspend = |on| hung.iter().for_each(|queue| self.vhost.suspend(queue, on));
                suspend(true);
                let_pass(time);
                if !killed {
                    suspend(false);
                }
                What::QueuesHung
            }
        }
    }
}

struct Calm<'a>(&'a AtomicBool);

impl Drop for Calm<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
