//! One connection to the broker and the thread that owns it.
//!
//! [`Link`] is the handle that other threads share: it asks the owner thread for channels and
//! signals the end of the connection. [`Dialler`] makes links. [`Admin`] declares and checks on
//! throw-away channels of a link. A [`Generation`] marks what belongs to one channel, so that
//! nothing of it is used on another.

mod admin;
mod backoff;
mod declare;
mod dialler;
mod generation;

pub(crate) use admin::{Admin, Operation};
pub(crate) use backoff::Backoff;
pub(crate) use dialler::{DialError, Dialler, Sockets};
pub(crate) use generation::Generation;

use crate::time::clock::Clock;
use crate::time::threads::{self, Role, SpawnError};
use crate::transport;
use crate::transport::{Activity, Channel, Dialled, Failure, KillSwitch, LinkEvent};
use crossbeam_channel::{
    Receiver, Select, Sender, TryRecvError, bounded, select_biased, unbounded,
};
use log::debug;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// The reason of an end without an error.
const CLOSED: &str = "it was closed";

type OpenReply = Sender<Result<Box<dyn Channel>, Failure>>;

enum Request {
    Open(OpenReply),
    Close,
}

/// An event on a link that no request caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkNotice {
    Blocked(String),
    Unblocked,
    /// The last notice: the connection ended, for this reason.
    Gone(String),
}

/// A handle to one connection. Its drop does not close the connection.
#[derive(Debug)]
pub(crate) struct Link {
    requests: Sender<Request>,
    kill: KillSwitch,
    frame_max: usize,
    activity: Activity,
    gone: OverSignal,
    /// Why the connection ended. The owner sets it before it drops the [`Over`] of `gone`.
    reason: Arc<Mutex<Option<String>>>,
}

impl Link {
    /// Starts the owner thread, which calls `notify`.
    pub(crate) fn start(
        dialled: Dialled,
        name: &str,
        clock: &dyn Clock,
        notify: impl Fn(LinkNotice) + Send + 'static,
    ) -> Result<Arc<Self>, SpawnError> {
        let (requests, inbox) = unbounded();
        let (over, gone) = Over::new();
        let reason = Arc::new(Mutex::new(None));
        let owner = LinkOwner {
            link: dialled.link,
            requests: inbox,
            reason: reason.clone(),
            kill: dialled.kill.clone(),
            _over: over,
        };
        clock.spawn(
            Role::Owner,
            format!("rungmq-opener-{name}"),
            Box::new(move || owner.run(&notify)),
        )?;
        Ok(Arc::new(Self {
            requests,
            kill: dialled.kill,
            frame_max: dialled.frame_max,
            activity: dialled.activity,
            gone,
            reason,
        }))
    }

    /// Opens a channel, within `limit`.
    pub(crate) fn open_channel(&self, limit: Duration) -> Result<Box<dyn Channel>, Failure> {
        let (reply, answer) = bounded(1);
        if self.requests.send(Request::Open(reply)).is_err() {
            return Err(self.lost());
        }
        // Biased, so that an answer that arrives with the end of the connection counts.
        select_biased! {
            recv(answer) -> opened => opened.unwrap_or_else(|_| Err(self.lost())),
            recv(self.gone) -> _ => Err(self.lost()),
            default(limit) => Err(Failure::TimedOut),
        }
    }

    /// Asks the owner to close. Returns immediately; [`gone`](Self::gone) signals the end.
    pub(crate) fn close(&self) {
        let _ = self.requests.send(Request::Close);
    }

    /// Shuts the socket down, without waiting for the broker.
    pub(crate) fn kill(&self) {
        self.kill.throw();
    }

    /// Ready once the connection has ended.
    pub(crate) fn gone(&self) -> &OverSignal {
        &self.gone
    }

    pub(crate) fn is_gone(&self) -> bool {
        is_over(&self.gone)
    }

    /// The negotiated maximum frame size, in bytes.
    pub(crate) fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// When the socket was last read and written.
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// The failure of a call on a connection that has ended.
    pub(crate) fn lost(&self) -> Failure {
        let reason = self.reason.lock().clone();
        Failure::Lost(reason.unwrap_or_else(|| CLOSED.to_owned()))
    }
}

/// The owner thread: it opens channels, forwards events, and closes.
struct LinkOwner {
    link: Box<dyn transport::Link>,
    requests: Receiver<Request>,
    reason: Arc<Mutex<Option<String>>>,
    kill: KillSwitch,
    _over: Over,
}

impl LinkOwner {
    fn run(mut self, notify: &dyn Fn(LinkNotice)) {
        while self.serve(notify) {}
        let reason = match self.link.close() {
            Ok(()) => CLOSED.to_owned(),
            Err(reason) => reason,
        };
        // A client that gave up by itself leaves the socket open, and the broker would keep its
        // unsettled deliveries.
        self.kill.throw();
        debug!("connection ended: {reason}");
        *self.reason.lock() = Some(reason.clone());
        notify(LinkNotice::Gone(reason));
    }

    /// Handles the next events and request; false when the connection has ended or is to close.
    fn serve(&mut self, notify: &dyn Fn(LinkNotice)) -> bool {
        let mut select = Select::new();
        select.recv(&self.requests);
        self.link.watch(&mut select);
        threads::ready(select, None);
        loop {
            match self.link.next_event() {
                Ok(Some(LinkEvent::Blocked(reason))) => notify(LinkNotice::Blocked(reason)),
                Ok(Some(LinkEvent::Unblocked)) => notify(LinkNotice::Unblocked),
                Ok(None) => break,
                Err(transport::Gone) => return false,
            }
        }
        match self.requests.try_recv() {
            Ok(Request::Open(reply)) => {
                let opened = self.link.open_channel();
                // The caller may have timed out; the drop of the channel then closes it here.
                let _ = reply.send(opened);
                true
            }
            Ok(Request::Close) => false,
            Err(error) => error.is_empty(),
        }
    }
}

/// The consuming side of a connection while it is up: its link, and the admin of that link.
#[derive(Clone, Debug)]
pub(crate) struct Uplink {
    pub(crate) link: Arc<Link>,
    pub(crate) admin: Admin,
}

impl Uplink {
    /// Dials, and starts the threads of the link. `limit` bounds each call to the broker.
    pub(crate) fn open(
        dialler: &Dialler,
        limit: Duration,
        notify: impl Fn(LinkNotice) + Send + 'static,
    ) -> Result<Self, DialError> {
        let clock = dialler.clock();
        let dialled = dialler.dial()?;
        let no_thread = |error: SpawnError| DialError {
            address: dialler.address(),
            reason: error.to_string(),
        };
        let link = Link::start(dialled, "consume", clock.as_ref(), notify).map_err(no_thread)?;
        let admin = Admin::start(link.clone(), limit, clock).map_err(no_thread)?;
        Ok(Self { link, admin })
    }
}

/// The sending side of an [`OverSignal`]: its drop wakes every waiter.
#[derive(Debug)]
pub(crate) struct Over {
    _sender: Sender<Infallible>,
}

/// Becomes ready, and stays ready, when its [`Over`] is dropped. Clones are the same signal.
pub(crate) type OverSignal = Receiver<Infallible>;

/// Whether the [`Over`] of this signal was dropped.
pub(crate) fn is_over(signal: &OverSignal) -> bool {
    signal.try_recv() == Err(TryRecvError::Disconnected)
}

impl Over {
    pub(crate) fn new() -> (Self, OverSignal) {
        let (sender, signal) = bounded(0);
        (Self { _sender: sender }, signal)
    }
}
