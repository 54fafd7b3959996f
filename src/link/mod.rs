//! One connection to the broker and the threads that own it.
//!
//! [`Link`] is the handle that everybody may hold: it asks the owner thread for channels and tells when the connection is
//! gone. [`Admin`] declares and checks on throw-away channels. [`Dialler`] makes links. A [`Generation`] marks what belongs
//! to one channel, so that nothing of it is ever used on another.

mod admin;
mod dialler;
mod generation;
mod opener;

pub(crate) use admin::{Admin, Operation};
pub(crate) use dialler::{Dialler, Sockets};
pub(crate) use generation::Generation;
pub(crate) use opener::{Link, LinkNotice};

use crossbeam_channel::{Receiver, Sender, bounded};
use std::thread;

/// Whether this is one of the library's threads that others wait for. A worker is not: it may wait like any caller.
pub(crate) fn is_owner_thread() -> bool {
    let current = thread::current();
    let name = current.name().unwrap_or_default();
    name.starts_with("rungmq-") && !name.starts_with("rungmq-worker-")
}

/// Tells any number of waiters at once that something is over, by being dropped.
#[derive(Debug)]
pub(crate) struct Over {
    _sender: Sender<std::convert::Infallible>,
}

/// Becomes ready, and stays so, once its [`Over`] is dropped.
pub(crate) type OverSignal = Receiver<std::convert::Infallible>;

impl Over {
    pub(crate) fn new() -> (Self, OverSignal) {
        let (sender, signal) = bounded(0);
        (Self { _sender: sender }, signal)
    }
}
