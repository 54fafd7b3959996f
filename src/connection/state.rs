//! The state of a connection, shared by its handles and its supervisor.

use crate::consumer::{Consumer, exclude_current_handler_from_drain};
use crate::error::Error;
use crate::link::{DialError, LinkNotice, Uplink};
use crate::time::clock::Clock;
use crate::time::deadline::Deadline;
use crate::time::threads::{self, is_owner_thread};
use crossbeam_channel::Sender;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// How long dropping the last handle waits.
const ABANDON: Duration = Duration::from_secs(1);

/// What the supervisor is told, by the handles and by the links.
pub(super) enum Command {
    /// From the link of that number; an old one's changes nothing.
    Notice {
        number: u64,
        notice: LinkNotice,
    },
    Dialled {
        number: u64,
        result: Result<Uplink, DialError>,
    },
    Close(Deadline),
}

#[derive(Clone)]
pub(super) struct Status(Arc<Shared>);

struct Shared {
    commands: Sender<Command>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    phase: Phase,
    uplink: Option<Uplink>,
    consumers: Vec<Consumer>,
    /// When the phase began, in milliseconds since 1970.
    since: i64,
    last_error: Option<String>,
    /// What the close brought, until one caller has taken it.
    result: Option<Result<(), Error>>,
    /// All that is left are handlers that wait for this very close.
    quiet: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Up,
    /// Lost, for this reason, and being made again.
    Down(String),
    Closing,
    Closed,
    /// Lost, for this reason, and not made again.
    GaveUp(String),
}

impl Phase {
    fn has_ended(&self) -> bool {
        matches!(self, Self::Closed | Self::GaveUp(_))
    }

    /// Whether the connection can be used. While it closes handlers may still publish.
    fn check(&self) -> Result<(), Error> {
        match self {
            Self::Up | Self::Closing => Ok(()),
            Self::Closed => Err(Error::Closed),
            Self::Down(reason) | Self::GaveUp(reason) => Err(Error::ConnectionLost {
                reason: reason.clone(),
            }),
        }
    }
}

impl State {
    fn take_ended(&mut self) -> Vec<Consumer> {
        let (ended, consumers) = self.consumers.drain(..).partition(Consumer::has_ended);
        self.consumers = consumers;
        ended
    }

    /// Whether callers of close may return.
    fn has_returned(&self) -> bool {
        self.quiet || self.phase.has_ended()
    }
}

impl Status {
    pub(super) fn new(commands: Sender<Command>, uplink: Uplink, clock: Arc<dyn Clock>) -> Self {
        let state = State {
            phase: Phase::Up,
            uplink: Some(uplink),
            consumers: Vec::new(),
            since: clock.epoch_millis(),
            last_error: None,
            result: None,
            quiet: false,
        };
        Self(Arc::new(Shared {
            commands,
            clock,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }))
    }

    /// The present link of a connection that can be used.
    pub(super) fn uplink(&self) -> Result<Uplink, Error> {
        if is_owner_thread() {
            return Err(Error::OwnThread);
        }
        let state = self.0.state.lock();
        state.phase.check()?;
        state.uplink.clone().ok_or(Error::Closed)
    }

    pub(super) fn phase(&self) -> Phase {
        self.0.state.lock().phase.clone()
    }

    /// Since when the connection has been up or down, in milliseconds since 1970, and the last trouble there was.
    pub(super) fn history(&self) -> (i64, Option<String>) {
        let state = self.0.state.lock();
        (state.since, state.last_error.clone())
    }

    pub(super) fn consumers(&self) -> Vec<Consumer> {
        self.0.state.lock().consumers.clone()
    }

    /// Takes a consumer in. One that comes while the connection closes is stopped at once.
    pub(super) fn register(&self, consumer: &Consumer) {
        // The last handle of a consumer drops the user's handler, which must find the state unlocked.
        let _ended;
        let mut state = self.0.state.lock();
        _ended = state.take_ended();
        state.consumers.push(consumer.clone());
        if !matches!(state.phase, Phase::Up | Phase::Down(_)) {
            consumer.stop(Deadline::within(Duration::ZERO));
        }
    }

    /// Closes, and waits for it. The result goes to the first caller; whoever comes later finds the connection closed.
    pub(super) fn close(&self, deadline: Deadline) -> Result<(), Error> {
        if is_owner_thread() {
            return Err(Error::OwnThread);
        }
        let exclusion = exclude_current_handler_from_drain();
        let _ended;
        let mut state = self.0.state.lock();
        let own = state
            .consumers
            .iter()
            .any(|consumer| consumer.has_handler(&exclusion));
        _ended = self.begin(&mut state, deadline);
        while !state.has_returned() {
            self.0.changed.wait(&mut state);
        }
        if own {
            exclusion.keep();
        } else {
            drop(exclusion);
        }
        state.result.take().unwrap_or(Ok(()))
    }

    pub(super) fn wait(&self) -> Result<(), Error> {
        if is_owner_thread() {
            return Err(Error::OwnThread);
        }
        // A main thread ends the process with this, so it waits for what a handler does after its own close, too.
        let exclusion = exclude_current_handler_from_drain();
        let in_handler = exclusion.is_in_handler();
        exclusion.keep();
        let mut state = self.0.state.lock();
        while !(state.phase.has_ended() || in_handler && state.quiet) {
            self.0.changed.wait(&mut state);
        }
        match &state.phase {
            Phase::GaveUp(reason) => Err(Error::ConnectionLost {
                reason: reason.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// The last handle is gone: everything is stopped, and nobody waits for long.
    pub(super) fn abandon(&self) {
        let _ended;
        let mut state = self.0.state.lock();
        if state.phase.has_ended() {
            return;
        }
        _ended = self.begin(&mut state, Deadline::within(Duration::ZERO));
        // A thread of the library's own, a worker too, must not wait for itself.
        if threads::role().is_some() {
            return;
        }
        let limit = Deadline::within(ABANDON);
        while !state.phase.has_ended() && !limit.has_passed() {
            self.0.changed.wait_for(&mut state, limit.left());
        }
    }

    /// No handler starts any more once this has returned; the rest is the supervisor's. Returns the consumers that had ended
    /// before, to be dropped when the state is unlocked.
    fn begin(&self, state: &mut State, deadline: Deadline) -> Vec<Consumer> {
        if state.phase.has_ended() {
            return Vec::new();
        }
        let ended = if state.phase == Phase::Closing {
            Vec::new()
        } else {
            // What they left behind was said when they ended.
            state.take_ended()
        };
        state.phase = Phase::Closing;
        for consumer in &state.consumers {
            consumer.stop(deadline);
        }
        drop(self.0.commands.send(Command::Close(deadline)));
        ended
    }

    /// The link is gone. A connection that is being closed anyway stays so.
    pub(super) fn lose(&self, reason: &str) {
        let mut state = self.0.state.lock();
        state.uplink = None;
        if state.phase == Phase::Up {
            state.since = self.0.clock.epoch_millis();
        }
        if matches!(state.phase, Phase::Up | Phase::Down(_)) {
            state.phase = Phase::Down(reason.to_owned());
            state.last_error = Some(reason.to_owned());
        }
    }

    /// There is a link again: every consumer is told.
    pub(super) fn recover(&self, uplink: &Uplink) {
        let mut state = self.0.state.lock();
        if !matches!(state.phase, Phase::Down(_)) {
            return;
        }
        state.phase = Phase::Up;
        state.since = self.0.clock.epoch_millis();
        state.uplink = Some(uplink.clone());
        for consumer in &state.consumers {
            consumer.recover(uplink.clone());
        }
    }

    /// All that is left is what nobody waits for: callers may return, and the rest goes on behind them.
    pub(super) fn be_quiet(&self) {
        self.0.state.lock().quiet = true;
        self.0.changed.notify_all();
    }

    pub(super) fn end(&self, phase: Phase, result: Option<Result<(), Error>>) {
        let mut state = self.0.state.lock();
        state.phase = phase;
        state.since = self.0.clock.epoch_millis();
        state.uplink = None;
        state.result = result;
        let consumers = std::mem::take(&mut state.consumers);
        self.0.changed.notify_all();
        drop(state);
        drop(consumers);
    }
}
