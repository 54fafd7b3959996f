//! The seam between the library and a broker: traits for links and channels, over plain data.
//!
//! [`amqp`] implements the traits over a socket and is the only module that knows the client
//! library behind it. The embedded broker implements them in this process.
//!
//! Every [`Link`], [`Channel`] and [`Subscription`] is owned by one thread. Calls on them block
//! without a timeout; the [`KillSwitch`] of the link ends them, and any thread may trigger it.

mod activity;
pub(crate) mod amqp;
/// The embedded broker against a real one. It is with the tests, which a packaged crate lacks.
#[cfg(all(test, differential))]
#[path = "../../tests/differential/mod.rs"]
mod differential;
#[cfg(test)]
pub(crate) mod fake;

pub(crate) use activity::Activity;

use crate::message::delivery::{Delivery, Outgoing, Returned};
use crate::topology::declaration::Declaration;
use crossbeam_channel::Select;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// The broker's answer to a publish on a confirm channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Confirm {
    pub(crate) tag: u64,
    pub(crate) multiple: bool,
    pub(crate) ack: bool,
}

/// An item received by a subscription.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "almost all items are deliveries")]
pub(crate) enum Incoming {
    Delivery(Delivery),
    /// The broker ended the subscription, because its queue was deleted or moved to another node.
    Cancelled,
    /// The broker answered our cancel. Nothing follows.
    CancelOk,
    /// The channel or the whole link is gone.
    Ended(Failure),
}

/// The reason for a failed broker call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The broker closed the channel, with this reply code and reply text.
    Refused { code: u16, text: String },
    /// The link is gone.
    Lost(String),
    /// The broker did not answer within the timeout of the caller.
    TimedOut,
    /// All channels of the link are in use (`channel_max`).
    NoChannelLeft,
}

impl Failure {
    /// Whether this is AMQP's 404: the queue or exchange does not exist, or its cluster node is
    /// down.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }

    /// The reason alone, for a text that already says that the connection was lost.
    pub(crate) fn into_reason(self) -> String {
        match self {
            Self::Lost(reason) => reason,
            failure => failure.to_string(),
        }
    }

    /// Whether this is AMQP's 403: missing permission, or another consumer is exclusive.
    pub(crate) fn is_access_refused(&self) -> bool {
        matches!(self, Self::Refused { code: 403, .. })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { text, .. } => f.write_str(text),
            Self::Lost(reason) => write!(f, "the connection was lost: {reason}"),
            Self::TimedOut => f.write_str("the broker did not answer in time"),
            Self::NoChannelLeft => {
                f.write_str("the connection has no free channel left (channel_max)")
            }
        }
    }
}

/// The source of events is gone: its link or its channel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// An unsolicited event of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// The broker stopped reading publishes because of a resource alarm, with this reason.
    Blocked(String),
    Unblocked,
}

/// A way to reach a broker.
pub(crate) trait Transport: fmt::Debug + Send + Sync + 'static {
    /// Connects and logs in, or fails by `limit`. Blocks, so it runs on a thread of its own.
    /// `armed` receives the kill switch as soon as a socket exists.
    fn dial(&self, limit: Instant, armed: &dyn Fn(KillSwitch)) -> Result<Dialled, String>;

    /// The dialled address, without credentials.
    fn address(&self) -> String;
}

/// A newly opened link.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) link: Box<dyn Link>,
    pub(crate) kill: KillSwitch,
    /// The negotiated maximum frame size in bytes; `usize::MAX` if the broker set no limit.
    pub(crate) frame_max: usize,
    /// The times of the last read and write on the socket.
    pub(crate) activity: Activity,
}

/// Ends a link from any thread: every call on it returns within milliseconds, even if the broker
/// hangs.
#[derive(Clone)]
pub(crate) struct KillSwitch(Arc<dyn Fn() + Send + Sync>);

impl KillSwitch {
    pub(crate) fn new(kill: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(kill))
    }

    pub(crate) fn throw(&self) {
        (self.0)();
    }

    /// Whether another clone exists.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl fmt::Debug for KillSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KillSwitch")
    }
}

/// One connection to the broker.
pub(crate) trait Link: fmt::Debug + Send {
    fn open_channel(&mut self) -> Result<Box<dyn Channel>, Failure>;

    /// Adds the link's own events to `select` and returns their index.
    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize;

    /// The next event, without blocking. Fails once the link is gone, which is noticed here even
    /// without traffic.
    fn next_event(&self) -> Result<Option<LinkEvent>, Gone>;

    /// Closes the link. If it was already gone, the error is the reason.
    fn close(self: Box<Self>) -> Result<(), String>;
}

/// One channel of a link.
pub(crate) trait Channel: fmt::Debug + Send {
    fn declare(&self, declaration: &Declaration) -> Result<(), Failure>;

    /// Checks that the queue or exchange of `declaration` exists, ignoring its arguments. AMQP
    /// cannot check a binding; the check of one succeeds.
    fn check(&self, declaration: &Declaration) -> Result<(), Failure>;

    /// Limits unsettled deliveries to `prefetch`; 0 means no limit.
    fn set_prefetch(&self, prefetch: u16) -> Result<(), Failure>;

    fn subscribe(&self, queue: &str) -> Result<Box<dyn Subscription + '_>, Failure>;

    /// The number of ready messages in the queue.
    fn count(&self, queue: &str) -> Result<usize, Failure>;

    /// Fetches one message, to be settled on this channel.
    fn get(&self, queue: &str) -> Result<Option<Delivery>, Failure>;

    fn ack(&self, tag: u64, multiple: bool) -> Result<(), Failure>;

    /// Requeues a delivery.
    fn nack(&self, tag: u64) -> Result<(), Failure>;

    /// Rejects a delivery without requeueing: the broker dead-letters or drops it.
    fn reject(&self, tag: u64) -> Result<(), Failure>;

    /// Puts the channel into confirm mode.
    fn confirms(&self) -> Result<Box<dyn Confirms>, Failure>;

    fn publish(&self, message: &Outgoing) -> Result<(), Failure>;

    fn close(self: Box<Self>) -> Result<(), Failure>;
}

/// An active `basic.consume`.
pub(crate) trait Subscription {
    /// Adds the incoming items to `select` and returns their index.
    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize;

    /// The next item, without blocking.
    fn next(&self) -> Option<Incoming>;

    /// Cancels and waits for the answer. Items that arrived before it are still returned by
    /// [`next`](Self::next).
    fn cancel(&self) -> Result<(), Failure>;
}

/// The confirms and returns of one channel, in the order of the broker: a return precedes its
/// confirm.
pub(crate) trait Confirms: fmt::Debug + Send {
    /// Adds the confirms to `select` and returns their index.
    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize;

    /// The next confirm, without blocking. Fails once the channel is gone.
    fn next_confirm(&self) -> Result<Option<Confirm>, Gone>;

    /// The next return, without blocking. Every return that precedes a received confirm is
    /// available.
    fn next_return(&self) -> Option<Returned>;
}
