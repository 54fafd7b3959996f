//! The state of a connection: its phase, its consumers, and the callers that wait for its end.
//!
//! The handles and the supervisor share it. Handles read it and request a close; only the
//! supervisor moves it to [`Phase::Down`], back to [`Phase::Up`], and to an end.

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
const DROP_TIMEOUT: Duration = Duration::from_secs(1);

/// A message to the supervisor, from the handles or from a link.
pub(super) enum Command {
    /// A notice of the link with this number. The supervisor ignores those of earlier links.
    Notice {
        number: u64,
        notice: LinkNotice,
    },
    /// The result of the dial with this number.
    Dialled {
        number: u64,
        result: Result<Uplink, DialError>,
    },
    Close(Deadline),
}

/// A cheap handle to the state of one connection.
#[derive(Clone)]
pub(super) struct ConnectionState(Arc<Inner>);

struct Inner {
    commands: Sender<Command>,
    clock: Arc<dyn Clock>,
    lifecycle: Mutex<Lifecycle>,
    /// Signalled, with `lifecycle`, when `waiters_released` is set and when the phase ends.
    changed: Condvar,
}

/// What the lock of the state protects.
struct Lifecycle {
    phase: Phase,
    /// The current link; `None` while the connection is down and after its end.
    uplink: Option<Uplink>,
    consumers: Vec<Consumer>,
    /// When the phase began, in milliseconds since 1970.
    since: i64,
    last_error: Option<String>,
    /// The result of the close, until one caller has taken it.
    close_result: Option<Result<(), Error>>,
    /// Callers of close may return before the end: only handlers that called it still run.
    waiters_released: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Up,
    /// Lost for this reason, and being recovered.
    Down(String),
    Closing,
    Closed,
    /// Lost for this reason, after the last attempt to recover.
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

impl Lifecycle {
    fn take_ended_consumers(&mut self) -> Vec<Consumer> {
        let (ended, consumers) = self.consumers.drain(..).partition(Consumer::has_ended);
        self.consumers = consumers;
        ended
    }

    /// Whether callers of close may return.
    fn releases_close(&self) -> bool {
        self.waiters_released || self.phase.has_ended()
    }
}

impl ConnectionState {
    pub(super) fn new(commands: Sender<Command>, uplink: Uplink, clock: Arc<dyn Clock>) -> Self {
        let lifecycle = Lifecycle {
            phase: Phase::Up,
            uplink: Some(uplink),
            consumers: Vec::new(),
            since: clock.epoch_millis(),
            last_error: None,
            close_result: None,
            waiters_released: false,
        };
        Self(Arc::new(Inner {
            commands,
            clock,
            lifecycle: Mutex::new(lifecycle),
            changed: Condvar::new(),
        }))
    }

    /// The current link of a connection that can be used.
    pub(super) fn uplink(&self) -> Result<Uplink, Error> {
        // A call over the link waits for an owner thread, which must not be this one.
        if is_owner_thread() {
            return Err(Error::OwnThread);
        }
        let lifecycle = self.0.lifecycle.lock();
        lifecycle.phase.check()?;
        lifecycle.uplink.clone().ok_or(Error::Closed)
    }

    pub(super) fn phase(&self) -> Phase {
        self.0.lifecycle.lock().phase.clone()
    }

    /// When the connection went up or down, in milliseconds since 1970, and the last error.
    pub(super) fn history(&self) -> (i64, Option<String>) {
        let lifecycle = self.0.lifecycle.lock();
        (lifecycle.since, lifecycle.last_error.clone())
    }

    pub(super) fn consumers(&self) -> Vec<Consumer> {
        self.0.lifecycle.lock().consumers.clone()
    }

    /// Adds a consumer. One that is added while the connection closes is stopped immediately.
    pub(super) fn register(&self, consumer: &Consumer) {
        // Declared before the guard and so dropped after it: the last handle of a consumer drops
        // the user's handler, which may call back into this state.
        let _ended;
        let mut lifecycle = self.0.lifecycle.lock();
        _ended = lifecycle.take_ended_consumers();
        lifecycle.consumers.push(consumer.clone());
        // A close that began before the registration did not stop this consumer.
        if !matches!(lifecycle.phase, Phase::Up | Phase::Down(_)) {
            consumer.stop(Deadline::within(Duration::ZERO));
        }
    }

    /// Closes the connection and waits for it. The first caller to return takes the result; later
    /// ones find the connection closed.
    pub(super) fn close(&self, deadline: Deadline) -> Result<(), Error> {
        if is_owner_thread() {
            return Err(Error::OwnThread);
        }
        let exclusion = exclude_current_handler_from_drain();
        let _ended;
        let mut lifecycle = self.0.lifecycle.lock();
        let own = lifecycle
            .consumers
            .iter()
            .any(|consumer| consumer.has_handler(&exclusion));
        _ended = self.begin_close(&mut lifecycle, deadline);
        while !lifecycle.releases_close() {
            self.0.changed.wait(&mut lifecycle);
        }
        // The drain of this connection never covered a handler of another one, whose own drain
        // waits for it again.
        if own {
            exclusion.keep();
        } else {
            drop(exclusion);
        }
        lifecycle.close_result.take().unwrap_or(Ok(()))
    }

    /// Waits for the end of the connection.
    pub(super) fn wait(&self) -> Result<(), Error> {
        if is_owner_thread() {
            return Err(Error::OwnThread);
        }
        // A main thread ends the process after this, so it also waits for what a handler does after
        // its own close. A handler must not: the end of the connection may wait for that handler.
        let exclusion = exclude_current_handler_from_drain();
        let in_handler = exclusion.is_in_handler();
        exclusion.keep();
        let mut lifecycle = self.0.lifecycle.lock();
        while !(lifecycle.phase.has_ended() || in_handler && lifecycle.waiters_released) {
            self.0.changed.wait(&mut lifecycle);
        }
        match &lifecycle.phase {
            Phase::GaveUp(reason) => Err(Error::ConnectionLost {
                reason: reason.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Closes with a timeout of zero, for the drop of the last handle.
    pub(super) fn abandon(&self) {
        let _ended;
        let mut lifecycle = self.0.lifecycle.lock();
        if lifecycle.phase.has_ended() {
            return;
        }
        _ended = self.begin_close(&mut lifecycle, Deadline::within(Duration::ZERO));
        // The end waits for every thread of the library, workers included, so none may wait for it.
        if threads::role().is_some() {
            return;
        }
        let limit = Deadline::within(DROP_TIMEOUT);
        while !lifecycle.phase.has_ended() && !limit.has_passed() {
            self.0.changed.wait_for(&mut lifecycle, limit.left());
        }
    }

    /// Stops the consumers, so that no further handler starts, and tells the supervisor to close.
    ///
    /// Returns the consumers that had ended before, to be dropped after the state is unlocked.
    fn begin_close(&self, lifecycle: &mut Lifecycle, deadline: Deadline) -> Vec<Consumer> {
        if lifecycle.phase.has_ended() {
            return Vec::new();
        }
        let ended = if lifecycle.phase == Phase::Closing {
            Vec::new()
        } else {
            // Their cancel has reported what they left behind.
            lifecycle.take_ended_consumers()
        };
        lifecycle.phase = Phase::Closing;
        for consumer in &lifecycle.consumers {
            consumer.stop(deadline);
        }
        let _ = self.0.commands.send(Command::Close(deadline));
        ended
    }

    /// Records the loss of the link. A connection that closes stays in that phase.
    pub(super) fn lose(&self, reason: &str) {
        let mut lifecycle = self.0.lifecycle.lock();
        lifecycle.uplink = None;
        if lifecycle.phase == Phase::Up {
            lifecycle.since = self.0.clock.epoch_millis();
        }
        if matches!(lifecycle.phase, Phase::Up | Phase::Down(_)) {
            lifecycle.phase = Phase::Down(reason.to_owned());
            lifecycle.last_error = Some(reason.to_owned());
        }
    }

    /// Records a new link and passes it to every consumer.
    pub(super) fn recover(&self, uplink: &Uplink) {
        let mut lifecycle = self.0.lifecycle.lock();
        if !matches!(lifecycle.phase, Phase::Down(_)) {
            return;
        }
        lifecycle.phase = Phase::Up;
        lifecycle.since = self.0.clock.epoch_millis();
        lifecycle.uplink = Some(uplink.clone());
        for consumer in &lifecycle.consumers {
            consumer.recover(uplink.clone());
        }
    }

    /// Lets callers of close return while the handlers that called it still run.
    pub(super) fn release_waiters(&self) {
        self.0.lifecycle.lock().waiters_released = true;
        self.0.changed.notify_all();
    }

    /// Moves to a final phase and wakes every waiter.
    pub(super) fn end(&self, phase: Phase, close_result: Option<Result<(), Error>>) {
        let mut lifecycle = self.0.lifecycle.lock();
        lifecycle.phase = phase;
        lifecycle.since = self.0.clock.epoch_millis();
        lifecycle.uplink = None;
        lifecycle.close_result = close_result;
        let consumers = std::mem::take(&mut lifecycle.consumers);
        self.0.changed.notify_all();
        // As in `register`, a consumer is dropped only after the state is unlocked.
        drop(lifecycle);
        drop(consumers);
    }
}
