//! The dialler: connects to the addresses of one connection.
//!
//! Each attempt runs in a thread of its own, because a name look-up cannot be interrupted.

use crate::time::clock::Clock;
use crate::time::instant::{later, monotonic};
use crate::time::threads::Role;
use crate::transport::{Dialled, KillSwitch, Transport};
use crossbeam_channel::bounded;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A failed attempt to connect: the last address, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DialError {
    pub(crate) address: String,
    pub(crate) reason: String,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.address, self.reason)
    }
}

/// The kill switches of every socket of one connection, including sockets that are being dialled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sockets(Arc<Mutex<Switches>>);

#[derive(Debug, Default)]
struct Switches {
    armed: Vec<KillSwitch>,
    /// Set by `kill_all`: later sockets are killed on arrival.
    closed: bool,
}

impl Sockets {
    /// Adds the kill switch of a new socket.
    fn arm(&self, kill: KillSwitch) {
        let mut switches = self.0.lock();
        if switches.closed {
            kill.throw();
        } else {
            // A switch without another holder belongs to a socket that has ended.
            switches.armed.retain(KillSwitch::is_in_use);
            switches.armed.push(kill);
        }
    }

    /// Shuts every socket down, including those dialled later.
    pub(crate) fn kill_all(&self) {
        let mut switches = self.0.lock();
        switches.closed = true;
        for kill in switches.armed.drain(..) {
            kill.throw();
        }
    }
}

/// Connects to the first of several addresses that answers.
#[derive(Debug)]
pub(crate) struct Dialler {
    transports: Vec<Arc<dyn Transport>>,
    /// The index of the address to try next, modulo their number. It is a hint and orders nothing,
    /// so relaxed loads and stores suffice.
    next: AtomicUsize,
    limit: Duration,
    sockets: Sockets,
    clock: Arc<dyn Clock>,
}

impl Dialler {
    /// `limit` bounds one attempt at one address.
    pub(crate) fn new(
        transports: Vec<Arc<dyn Transport>>,
        limit: Duration,
        sockets: Sockets,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            transports,
            next: AtomicUsize::new(0),
            limit,
            sockets,
            clock,
        }
    }

    /// The first address, without credentials.
    pub(crate) fn address(&self) -> String {
        let first = self.transports.first();
        first
            .map(|transport| transport.address())
            .unwrap_or_default()
    }

    /// The clock that starts the threads of this dialler's links.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Tries each address once, beginning with the one that answered last.
    pub(crate) fn dial(&self) -> Result<Dialled, DialError> {
        let mut last = DialError {
            address: String::new(),
            reason: "there is no address".to_owned(),
        };
        for _ in 0..self.transports.len() {
            let index = self.next.load(Ordering::Relaxed) % self.transports.len();
            match self.dial_one(&self.transports[index]) {
                Ok(dialled) => return Ok(dialled),
                Err(error) => last = error,
            }
            // Only a failure moves on, so the address that answered stays first.
            self.next.store(index + 1, Ordering::Relaxed);
        }
        Err(last)
    }

    /// Makes one attempt, on a thread of its own, and waits for it until the limit.
    fn dial_one(&self, transport: &Arc<dyn Transport>) -> Result<Dialled, DialError> {
        let error = |reason: String| DialError {
            address: transport.address(),
            reason,
        };
        let limit = later(monotonic(), self.limit);
        let (reply, answer) = bounded(1);
        let armed = Arc::new(Mutex::new(None::<KillSwitch>));
        let attempt = {
            let (transport, sockets, armed) =
                (transport.clone(), self.sockets.clone(), armed.clone());
            move || {
                let dialled = transport.dial(limit, &|kill| {
                    sockets.arm(kill.clone());
                    *armed.lock() = Some(kill);
                });
                // After a timeout the receiver is gone; the drop of the link then closes it here.
                let _ = reply.send(dialled);
            }
        };
        self.clock
            .spawn(Role::Owner, "rungmq-dial".to_owned(), Box::new(attempt))
            .map_err(|failed| error(failed.to_string()))?;
        match answer.recv_deadline(limit) {
            Ok(dialled) => dialled.map_err(error),
            Err(_) => {
                // Shutting the socket down frees the thread of the attempt.
                if let Some(kill) = armed.lock().take() {
                    kill.throw();
                }
                Err(error(format!("no connection within {:?}", self.limit)))
            }
        }
    }
}
