//! The supervisor: holds the connection's state, and takes everything down by one deadline.
//!
//! It makes no call to the broker itself. What it waits for it waits for with a limit, and behind every limit stands the
//! kill switch of the sockets.

use crate::consumer::{Consumer, GRACE, Services};
use crate::error::Error;
use crate::link::{LinkNotice, OverSignal, Sockets};
use crate::shutdown::{Deadline, DrainTimeout, StrandedDelivery};
use crossbeam_channel::{Receiver, Sender, select, unbounded};
use log::{debug, info, warn};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// After the kill switch: for the threads that it frees.
const AFTER_KILL: Duration = Duration::from_millis(300);
/// How long dropping the last handle waits.
const ABANDON: Duration = Duration::from_secs(1);

pub(super) enum Command {
    Notice(LinkNotice),
    Close {
        deadline: Deadline,
        timeout: Duration,
    },
}

/// The state of a connection, shared by its handles and its supervisor.
#[derive(Clone)]
pub(super) struct Status(Arc<Shared>);

struct Shared {
    commands: Sender<Command>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    phase: Phase,
    consumers: Vec<Consumer>,
    /// What the close brought, until one caller has taken it.
    result: Option<Result<(), Error>>,
}

enum Phase {
    Up,
    Closing,
    Closed,
    /// The connection was lost, for this reason; what was left has been taken down.
    Lost(String),
}

impl Phase {
    fn has_ended(&self) -> bool {
        matches!(self, Self::Closed | Self::Lost(_))
    }
}

impl Status {
    pub(super) fn new(commands: Sender<Command>) -> Self {
        let state = State {
            phase: Phase::Up,
            consumers: Vec::new(),
            result: None,
        };
        Self(Arc::new(Shared {
            commands,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }))
    }

    /// Whether the connection can be used. While it closes handlers may still publish.
    pub(super) fn check(&self) -> Result<(), Error> {
        match &self.0.state.lock().phase {
            Phase::Up | Phase::Closing => Ok(()),
            Phase::Closed => Err(Error::Closed),
            Phase::Lost(reason) => Err(Error::ConnectionLost {
                reason: reason.clone(),
            }),
        }
    }

    /// Takes a consumer in. One that comes while the connection closes is stopped at once.
    pub(super) fn register(&self, consumer: &Consumer) {
        let mut state = self.0.state.lock();
        state.consumers.retain(|known| !known.has_ended());
        state.consumers.push(consumer.clone());
        if !matches!(state.phase, Phase::Up) {
            drop(state);
            consumer.stop(Deadline::within(Duration::ZERO));
        }
    }

    /// Closes, and waits for it. The result goes to the first caller; whoever comes later finds the connection closed.
    pub(super) fn close(&self, deadline: Deadline, timeout: Duration) -> Result<(), Error> {
        let mut state = self.0.state.lock();
        if !state.phase.has_ended() {
            drop(self.0.commands.send(Command::Close { deadline, timeout }));
        }
        while !state.phase.has_ended() {
            self.0.changed.wait(&mut state);
        }
        state.result.take().unwrap_or(Ok(()))
    }

    pub(super) fn wait(&self) -> Result<(), Error> {
        let mut state = self.0.state.lock();
        while !state.phase.has_ended() {
            self.0.changed.wait(&mut state);
        }
        match &state.phase {
            Phase::Lost(reason) => Err(Error::ConnectionLost {
                reason: reason.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// The last handle is gone.
    pub(super) fn abandon(&self) {
        let mut state = self.0.state.lock();
        if state.phase.has_ended() {
            return;
        }
        let now = Deadline::within(Duration::ZERO);
        drop(self.0.commands.send(Command::Close {
            deadline: now,
            timeout: Duration::ZERO,
        }));
        // A thread of the library's own must not wait for itself.
        if thread::current()
            .name()
            .is_some_and(|name| name.starts_with("rungmq-"))
        {
            return;
        }
        let limit = Deadline::within(ABANDON);
        while !state.phase.has_ended() && !limit.has_passed() {
            self.0.changed.wait_for(&mut state, limit.left());
        }
    }

    fn begin_closing(&self) -> Vec<Consumer> {
        let mut state = self.0.state.lock();
        state.phase = Phase::Closing;
        state.consumers.clone()
    }

    fn end(&self, phase: Phase, result: Option<Result<(), Error>>) {
        let mut state = self.0.state.lock();
        state.phase = phase;
        state.result = result;
        state.consumers.clear();
        self.0.changed.notify_all();
    }
}

pub(super) struct Supervisor {
    commands: (Sender<Command>, Receiver<Command>),
    sockets: Sockets,
}

impl Supervisor {
    pub(super) fn new(sockets: Sockets) -> Self {
        Self {
            commands: unbounded(),
            sockets,
        }
    }

    pub(super) fn commands(&self) -> Sender<Command> {
        self.commands.0.clone()
    }

    pub(super) fn start(
        self,
        status: Status,
        services: Services,
        publisher_ended: OverSignal,
    ) -> io::Result<()> {
        let (_, commands) = self.commands;
        let supervision = Supervision {
            commands,
            sockets: self.sockets,
            status,
            services,
            publisher_ended,
        };
        thread::Builder::new()
            .name("rungmq-supervisor".to_owned())
            .spawn(move || supervision.run())?;
        Ok(())
    }
}

struct Supervision {
    commands: Receiver<Command>,
    sockets: Sockets,
    status: Status,
    services: Services,
    publisher_ended: OverSignal,
}

impl Supervision {
    fn run(self) {
        while let Ok(command) = self.commands.recv() {
            match command {
                Command::Notice(LinkNotice::Blocked(reason)) => {
                    debug!("the consuming connection is blocked: {reason}")
                }
                Command::Notice(LinkNotice::Unblocked) => {
                    debug!("the consuming connection is unblocked")
                }
                Command::Notice(LinkNotice::Gone(reason)) => return self.lost(reason),
                Command::Close { deadline, timeout } => return self.close(deadline, timeout),
            }
        }
    }

    /// Without a connection nothing can be settled: running handlers run on, and their outcome is thrown away.
    fn lost(self, reason: String) {
        warn!("the connection was lost: {reason}");
        let deadline = Deadline::within(Duration::ZERO);
        for consumer in self.status.begin_closing() {
            consumer.stop(deadline);
        }
        self.services.publisher.stop(Duration::ZERO);
        self.sockets.kill_all();
        self.status.end(Phase::Lost(reason), None);
    }

    fn close(self, deadline: Deadline, timeout: Duration) {
        let consumers = self.status.begin_closing();
        let mut drain = Drain { deadline, timeout };
        for consumer in &consumers {
            consumer.stop(drain.deadline);
        }
        for consumer in &consumers {
            self.wait_for(consumer.ended(), &mut drain, &consumers);
        }
        self.services.publisher.stop(drain.deadline.left());
        self.wait_for(&self.publisher_ended, &mut drain, &consumers);
        self.services.link.close();
        self.wait_for(self.services.link.gone(), &mut drain, &consumers);
        self.sockets.kill_all();
        let freed = Deadline::within(AFTER_KILL);
        let mut stranded: Vec<StrandedDelivery> = Vec::new();
        for consumer in &consumers {
            consumer.join(freed);
            stranded.extend(consumer.stranded());
        }
        let result = match DrainTimeout::new(drain.timeout, stranded) {
            Some(timeout) => Err(Error::Drain(timeout)),
            None => Ok(()),
        };
        info!("the connection was closed");
        self.status.end(Phase::Closed, Some(result));
    }

    /// Waits until the deadline, and a little more for the broker's answers. A close that allows less moves the deadline
    /// for everybody.
    fn wait_for(&self, signal: &OverSignal, drain: &mut Drain, consumers: &[Consumer]) {
        loop {
            select! {
                recv(signal) -> _ => return,
                recv(self.commands) -> command => match command {
                    Ok(Command::Close { deadline, timeout }) => {
                        if drain.shorten(deadline, timeout) {
                            consumers.iter().for_each(|consumer| consumer.stop(deadline));
                            self.services.publisher.stop(deadline.left());
                        }
                    }
                    Ok(Command::Notice(LinkNotice::Gone(_))) | Err(_) => {}
                    Ok(Command::Notice(_)) => {}
                },
                default(drain.deadline.plus(GRACE).left()) => return,
            }
        }
    }
}

/// The deadline of a close that runs, and the time that it was made of.
struct Drain {
    deadline: Deadline,
    timeout: Duration,
}

impl Drain {
    fn shorten(&mut self, deadline: Deadline, timeout: Duration) -> bool {
        let earlier = self.deadline.min(deadline);
        let shorter = earlier != self.deadline;
        if shorter {
            self.deadline = earlier;
            self.timeout = timeout;
        }
        shorter
    }
}
