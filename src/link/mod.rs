//! One connection to the broker and the threads that own it.
//!
//! [`Link`] is the handle that everybody may hold: it asks the owner thread for channels and tells when the connection is
//! gone. [`Admin`] declares and checks on throw-away channels. [`Dialler`] makes links. A [`Generation`] marks what belongs
//! to one channel, so that nothing of it is ever used on another.

mod admin;
mod backoff;
mod declare;
mod dialler;
mod generation;
mod opener;

pub(crate) use admin::{Admin, Operation};
pub(crate) use backoff::Backoff;
pub(crate) use dialler::{DialError, Dialler, Sockets};
pub(crate) use generation::Generation;
pub(crate) use opener::{Link, LinkNotice};

use crate::time::threads::SpawnError;
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use std::sync::Arc;
use std::time::Duration;

/// The consuming side of a connection while it is up: the link, and who declares and checks on it.
#[derive(Clone, Debug)]
pub(crate) struct Uplink {
    pub(crate) link: Arc<Link>,
    pub(crate) admin: Admin,
}

impl Uplink {
    /// Dials, and starts the threads of a link. `limit` bounds each call to the broker.
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

/// Tells any number of waiters at once that something is over, by being dropped.
#[derive(Debug)]
pub(crate) struct Over {
    _sender: Sender<std::convert::Infallible>,
}

/// Becomes ready, and stays so, once its [`Over`] is dropped.
pub(crate) type OverSignal = Receiver<std::convert::Infallible>;

/// Whether what the signal tells of is over.
pub(crate) fn is_over(signal: &OverSignal) -> bool {
    signal.try_recv() == Err(TryRecvError::Disconnected)
}

impl Over {
    pub(crate) fn new() -> (Self, OverSignal) {
        let (sender, signal) = bounded(0);
        (Self { _sender: sender }, signal)
    }
}
