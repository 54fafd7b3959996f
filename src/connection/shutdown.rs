//! The shutdown of a connection: consumers, publisher and sockets end by one deadline.
//!
//! It runs on the supervisor's thread. Every wait has a timeout; at its end the sockets are shut
//! down, which frees the threads that are still blocked in a call.

use super::state::{Command, ConnectionState, Phase};
use crate::consumer::{Consumer, GRACE, drain_result};
use crate::link::{OverSignal, Sockets, Uplink, is_over};
use crate::publisher::Publisher;
use crate::time::deadline::Deadline;
use crate::time::threads;
use crossbeam_channel::{Receiver, Select};
use log::info;
use std::time::Duration;

/// How long the consumer threads may take to end after the sockets are shut down.
const JOIN_TIMEOUT: Duration = Duration::from_millis(300);

/// What a shutdown ends.
pub(super) struct Shutdown<'a> {
    pub(super) commands: &'a Receiver<Command>,
    pub(super) state: &'a ConnectionState,
    pub(super) publisher: &'a Publisher,
    pub(super) publisher_ended: &'a OverSignal,
    pub(super) uplink: Option<&'a Uplink>,
    pub(super) sockets: &'a Sockets,
}

/// The progress of a shutdown.
struct Drain {
    consumers: Vec<Consumer>,
    deadline: Deadline,
    /// Set after the last handler has ended, since until then handlers may publish.
    publisher_stopped: bool,
}

impl Drain {
    /// Moves the deadline, which only moves earlier; whether it did.
    fn shorten(&mut self, deadline: Deadline) -> bool {
        let before = self.deadline;
        self.deadline = before.min(deadline);
        self.deadline != before
    }
}

impl Shutdown<'_> {
    /// Drains the consumers, then closes the publisher, the link and the sockets.
    pub(super) fn close(&self, deadline: Deadline) {
        let consumers = self.state.consumers();
        // A consumer whose cancel has reported its deliveries does not report them twice.
        let mut to_report = consumers.clone();
        to_report.retain(|consumer| !consumer.has_reported());
        let mut drain = Drain {
            consumers: consumers.clone(),
            deadline,
            publisher_stopped: false,
        };
        for consumer in &consumers {
            let signals = [consumer.ended(), consumer.drained()];
            self.wait_for(&signals, Duration::ZERO, &mut drain);
        }
        if drain.deadline.has_passed() {
            // Ends the generations, so that no outcome or copy is written after the deadline.
            consumers.iter().for_each(Consumer::discard_outcomes);
        } else if consumers.iter().any(|consumer| !consumer.has_ended()) {
            // The handlers that are left wait for this close themselves. Their calls return now, so
            // that they can end by the deadline.
            self.state.release_waiters();
        }
        for consumer in &consumers {
            self.wait_for(&[consumer.ended()], GRACE, &mut drain);
        }
        drain.publisher_stopped = true;
        self.publisher.stop(drain.deadline.left());
        self.wait_for(&[self.publisher_ended], GRACE, &mut drain);
        if let Some(uplink) = self.uplink {
            uplink.link.close();
            self.wait_for(&[uplink.link.gone()], GRACE, &mut drain);
        }
        // Also ends the publishing socket, and dials that are still in progress.
        self.sockets.kill_all();
        let join_limit = Deadline::within(JOIN_TIMEOUT);
        for consumer in &consumers {
            consumer.join(join_limit);
        }
        let result = drain_result(&to_report, drain.deadline);
        info!("connection closed");
        self.state.end(Phase::Closed, Some(result));
    }

    /// Waits for any of the signals, at most until the deadline plus `grace`.
    ///
    /// A second close with an earlier deadline shortens the whole drain.
    fn wait_for(&self, signals: &[&OverSignal], grace: Duration, drain: &mut Drain) {
        loop {
            let mut select = Select::new();
            for signal in signals {
                select.recv(signal);
            }
            select.recv(self.commands);
            let limit = drain.deadline.plus(grace);
            threads::ready(select, limit.instant());
            if limit.has_passed() || signals.iter().any(|signal| is_over(signal)) {
                return;
            }
            if let Ok(Command::Close(deadline)) = self.commands.try_recv()
                && drain.shorten(deadline)
            {
                for consumer in &drain.consumers {
                    consumer.stop(deadline);
                }
                if drain.publisher_stopped {
                    self.publisher.stop(deadline.left());
                }
            }
        }
    }
}
