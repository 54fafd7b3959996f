//! The seam between the library and a broker.
//!
//! Everything above speaks to these traits and to plain data. [`amqp`] implements them over a socket; nothing else in
//! the crate knows the client library behind it.
//!
//! Every [`Link`], [`Channel`] and [`Subscription`] has one owner thread. Calls on them block without a limit of their
//! own; what ends them is the [`KillSwitch`] of their link, which any thread may throw.

mod activity;
pub(crate) mod amqp;
#[cfg(test)]
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

/// What a subscription hands over.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all of them are deliveries"
)]
pub(crate) enum Incoming {
    Delivery(Delivery),
    /// The broker ended the subscription: its queue was deleted, or moved to another node.
    Cancelled,
    /// Our own cancel was answered: nothing follows.
    CancelOk,
    /// The channel is gone, or the whole link.
    Ended(Failure),
}

/// Why a broker call brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The broker closed the channel with a reply code, in its own words.
    Refused { code: u16, text: String },
    /// The link is gone.
    Lost(String),
    /// No answer within the limit that the caller set.
    TimedOut,
    /// Every channel that the link may have is in use.
    NoChannelLeft,
}

impl Failure {
    /// AMQP's 404: what was named is not there, or is on a cluster node that is down.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }

    /// What ended the connection, or why the call failed, for a text that says already what is lost.
    pub(crate) fn into_reason(self) -> String {
        match self {
            Self::Lost(reason) => reason,
            failure => failure.to_string(),
        }
    }

    /// AMQP's 403: the user may not do this, or somebody consumes exclusively.
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

/// What was read from is gone, and nothing more will come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// What happens to a link without being asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// The broker does not read publishes until an alarm of its own is over.
    Blocked(String),
    Unblocked,
}

/// A way to reach a broker.
pub(crate) trait Transport: fmt::Debug + Send + Sync + 'static {
    /// Connects, at the latest by `limit`. Blocks, so it runs on a thread of its own; `armed` gets the kill switch as soon
    /// as there is a socket.
    fn dial(&self, limit: Instant, armed: &dyn Fn(KillSwitch)) -> Result<Dialled, String>;

    /// The addresses that are dialled, without credentials.
    fn address(&self) -> String;
}

/// A link that has just been opened.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) link: Box<dyn Link>,
    pub(crate) kill: KillSwitch,
    /// The largest frame the broker takes, in bytes; `usize::MAX` when it set no limit.
    pub(crate) frame_max: usize,
    /// When something last arrived on its socket.
    pub(crate) activity: Activity,
}

/// Ends a link from any thread: every call on it returns within milliseconds, whatever the broker does.
#[derive(Clone)]
pub(crate) struct KillSwitch(Arc<dyn Fn() + Send + Sync>);

impl KillSwitch {
    pub(crate) fn new(kill: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(kill))
    }

    pub(crate) fn throw(&self) {
        (self.0)();
    }

    /// Whether there is another holder of it.
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

    /// The next event, without waiting; an error once the link is gone, the one sign of that which needs no traffic.
    fn next_event(&self) -> Result<Option<LinkEvent>, Gone>;

    /// Closes the link and says why it was already gone, if it was.
    fn close(self: Box<Self>) -> Result<(), String>;
}

/// One channel of a link.
pub(crate) trait Channel: fmt::Debug + Send {
    fn declare(&self, declaration: &Declaration) -> Result<(), Failure>;

    /// Asks whether the queue or exchange of `declaration` exists, whatever its arguments; a binding cannot be asked for.
    fn check(&self, declaration: &Declaration) -> Result<(), Failure>;

    /// Allows at most `prefetch` unsettled deliveries.
    fn set_prefetch(&self, prefetch: u16) -> Result<(), Failure>;

    fn subscribe(&self, queue: &str) -> Result<Box<dyn Subscription + '_>, Failure>;

    /// How many messages are ready in the queue.
    fn count(&self, queue: &str) -> Result<usize, Failure>;

    /// Fetches one message, to be settled on this channel.
    fn get(&self, queue: &str) -> Result<Option<Delivery>, Failure>;

    fn ack(&self, tag: u64, multiple: bool) -> Result<(), Failure>;

    /// Gives a delivery back to its queue.
    fn nack(&self, tag: u64) -> Result<(), Failure>;

    /// Rejects a delivery for good: the broker dead-letters or drops it.
    fn reject(&self, tag: u64) -> Result<(), Failure>;

    /// Makes this a confirm channel.
    fn confirms(&self) -> Result<Box<dyn Confirms>, Failure>;

    fn publish(&self, message: &Outgoing) -> Result<(), Failure>;

    fn close(self: Box<Self>) -> Result<(), Failure>;
}

/// A live `basic.consume`.
pub(crate) trait Subscription {
    /// Adds what this subscription waits for to `select` and returns its index.
    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize;

    /// What has arrived, without waiting.
    fn next(&self) -> Option<Incoming>;

    /// Cancels and waits for the answer; what arrived before it can still be taken with [`next`](Self::next).
    fn cancel(&self) -> Result<(), Failure>;
}

/// The confirms and returns of one channel, in the broker's order: a return comes before its confirm.
pub(crate) trait Confirms: fmt::Debug + Send {
    /// Adds the confirms to `select` and returns their index.
    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize;

    /// The next confirm, without waiting; an error once the channel is gone.
    fn next_confirm(&self) -> Result<Option<Confirm>, Gone>;

    /// The next return, without waiting. After a confirm was taken every return that belongs before it is here.
    fn next_return(&self) -> Option<Returned>;
}
