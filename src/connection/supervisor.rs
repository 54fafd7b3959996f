//! The supervisor: holds the connection's state, and takes everything down by one deadline.
//!
//! It makes no call to the broker itself. What it waits for it waits for with a limit, and behind every limit stands the
//! kill switch of the sockets.

use crate::consumer::{Consumer, GRACE, Services, do_not_wait_for_this_handler};
use crate::error::Error;
use crate::link::{LinkNotice, OverSignal, Sockets, is_owner_thread};
use crate::shutdown::{Deadline, DrainTimeout, StrandedDelivery};
use crossbeam_channel::{Receiver, Select, Sender, unbounded};
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
    /// All that is left are handlers that wait for this very close.
    quiet: bool,
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

impl State {
    /// Whether callers of close may return.
    fn has_returned(&self) -> bool {
        self.quiet || self.phase.has_ended()
    }
}

impl Status {
    pub(super) fn new(commands: Sender<Command>) -> Self {
        let state = State {
            phase: Phase::Up,
            consumers: Vec::new(),
            result: None,
            quiet: false,
        };
        Self(Arc::new(Shared {
            commands,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }))
    }

    /// Whether the connection can be used. While it closes handlers may still publish.
    pub(super) fn check(&self) -> Result<(), Error> {
        if is_owner_thread() {
            return Err(Error::OwnThread);
        }
        match &self.0.state.lock().phase {
            Phase::Up | Phase::Closing => Ok(()),
            Phase::Closed => Err(Error::Closed),
            Phase::Lost(reason) => Err(Error::ConnectionLost {
                reason: reason.clone(),
            }),
        }
    }

    /// Whether it is neither closed nor closing nor lost.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.0.state.lock().phase, Phase::Up)
    }

    /// Takes a consumer in. One that comes while the connection closes is stopped at once.
    pub(super) fn register(&self, consumer: &Consumer) {
        let mut state = self.0.state.lock();
        state.consumers.retain(|known| !known.has_ended());
        state.consumers.push(consumer.clone());
        if !matches!(state.phase, Phase::Up) {
            consumer.stop(Deadline::within(Duration::ZERO));
        }
    }

    /// Closes, and waits for it. The result goes to the first caller; whoever comes later finds the connection closed.
    pub(super) fn close(&self, deadline: Deadline, timeout: Duration) -> Result<(), Error> {
        if is_owner_thread() {
            return Err(Error::OwnThread);
        }
        do_not_wait_for_this_handler();
        let mut state = self.0.state.lock();
        self.begin(&mut state, deadline, timeout);
        while !state.has_returned() {
            self.0.changed.wait(&mut state);
        }
        state.result.take().unwrap_or(Ok(()))
    }

    pub(super) fn wait(&self) -> Result<(), Error> {
        if is_owner_thread() {
            return Err(Error::OwnThread);
        }
        // A main thread ends the process with this, so it waits for what a handler does after its own close, too.
        let in_handler = do_not_wait_for_this_handler();
        let mut state = self.0.state.lock();
        while !(state.phase.has_ended() || in_handler && state.quiet) {
            self.0.changed.wait(&mut state);
        }
        match &state.phase {
            Phase::Lost(reason) => Err(Error::ConnectionLost {
                reason: reason.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// The last handle is gone: everything is stopped, and nobody waits for long.
    pub(super) fn abandon(&self) {
        let mut state = self.0.state.lock();
        if state.phase.has_ended() {
            return;
        }
        self.begin(&mut state, Deadline::within(Duration::ZERO), Duration::ZERO);
        // A thread of the library's own, a worker too, must not wait for itself.
        let current = thread::current();
        if current
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

    /// No handler starts any more once this has returned; the rest is the supervisor's.
    fn begin(&self, state: &mut State, deadline: Deadline, timeout: Duration) {
        if state.phase.has_ended() {
            return;
        }
        if matches!(state.phase, Phase::Up) {
            // What they left behind was said when they ended.
            state.consumers.retain(|consumer| !consumer.has_ended());
        }
        state.phase = Phase::Closing;
        for consumer in &state.consumers {
            consumer.stop(deadline);
        }
        drop(self.0.commands.send(Command::Close { deadline, timeout }));
    }

    /// All that is left is what nobody waits for: callers may return, and the rest goes on behind them.
    fn be_quiet(&self) {
        self.0.state.lock().quiet = true;
        self.0.changed.notify_all();
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
        let mut drain = Drain {
            deadline,
            timeout,
            publishing_ends: false,
        };
        for consumer in &consumers {
            self.wait_for(
                &[consumer.ended(), consumer.quiet()],
                Duration::ZERO,
                &mut drain,
                &consumers,
            );
        }
        if drain.deadline.has_passed() {
            consumers.iter().for_each(Consumer::cut);
        } else if consumers.iter().any(|consumer| !consumer.has_ended()) {
            self.status.be_quiet();
        }
        for consumer in &consumers {
            self.wait_for(&[consumer.ended()], GRACE, &mut drain, &consumers);
        }
        drain.publishing_ends = true;
        self.services.publisher.stop(drain.deadline.left());
        self.wait_for(&[&self.publisher_ended], GRACE, &mut drain, &consumers);
        self.services.link.close();
        self.wait_for(&[self.services.link.gone()], GRACE, &mut drain, &consumers);
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

    /// Waits for any of the signals until the deadline and `grace`. A close that allows less time moves the deadline for
    /// everybody.
    fn wait_for(
        &self,
        signals: &[&OverSignal],
        grace: Duration,
        drain: &mut Drain,
        consumers: &[Consumer],
    ) {
        loop {
            let mut select = Select::new();
            for signal in signals {
                select.recv(signal);
            }
            let command = select.recv(&self.commands);
            let ready = match drain.deadline.plus(grace).instant() {
                Some(limit) => select.ready_deadline(limit),
                None => Ok(select.ready()),
            };
            if ready != Ok(command) {
                return;
            }
            if let Ok(Command::Close { deadline, timeout }) = self.commands.try_recv()
                && drain.shorten(deadline, timeout)
            {
                consumers
                    .iter()
                    .for_each(|consumer| consumer.stop(deadline));
                if drain.publishing_ends {
                    self.services.publisher.stop(deadline.left());
                }
            }
        }
    }
}

/// The deadline of a close that runs, and the time that it was made of.
struct Drain {
    deadline: Deadline,
    timeout: Duration,
    /// Handlers need publishing until the last of them has ended.
    publishing_ends: bool,
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
