//! Metrics: events for an [`Observer`], and a [`Registry`] that aggregates them in memory.

mod events;
mod families;
mod prometheus;
mod registry;
mod snapshot;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use events::{
    Consumed, CopyLanded, HandBackReason, HandedBack, Lost, PublishOutcome, Published, Received,
    Recovered, Retrying, RungMissing, SetAsideFailed, Subscribed,
};
pub use registry::Registry;
pub use snapshot::{Histogram, Sample, Snapshot, Value};

/// The outcome of a delivery.
///
/// Each delivery that a consumer takes on has exactly one outcome. An outcome that needs a copy,
/// such as a retry, counts only once the broker has confirmed the copy. Outcomes are the values of
/// the label `outcome` of `acemq.consume.total` and `acemq.consume.duration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler accepted the message, and the delivery was acknowledged.
    Acked,
    /// The message will be delivered again as the next attempt.
    Retried,
    /// The handler rejected the message, which went to the dead-letter queue.
    Rejected,
    /// The message was given up, or its error was fatal. It went to the dead-letter queue.
    DeadLettered,
    /// The handler parked the message, or it could not be decoded. It went to the parked queue.
    Parked,
    /// The delivery was requeued with its attempt unchanged, because its copy was not confirmed or
    /// a drain ended its wait.
    HandedBack,
    /// The result of the handler was discarded, because the broker had already taken the message
    /// back or the deadline of a drain had passed.
    Discarded,
}

impl Outcome {
    /// The value of the label `outcome`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acked => "acked",
            Self::Retried => "retried",
            Self::Rejected => "rejected",
            Self::DeadLettered => "dead_lettered",
            Self::Parked => "parked",
            Self::HandedBack => "handed_back",
            Self::Discarded => "discarded",
        }
    }
}

/// The same text as [`as_str`](Outcome::as_str).
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Receives an event for everything the library measures. The default methods do nothing.
///
/// Methods run on the threads of the library, and [`published`](Self::published) also on the
/// publishing thread, so they should be quick and must not block. Panics are caught and ignored.
/// [`Registry`] is an observer that aggregates in memory; implement this trait to feed another
/// metrics library.
///
/// ```
/// use rungmq::metrics::{Observer, SetAsideFailed};
///
/// struct Alarm;
///
/// impl Observer for Alarm {
///     fn set_aside_failed(&self, event: &SetAsideFailed) {
///         eprintln!("{} takes no messages", event.target());
///     }
/// }
/// # let _: &dyn Observer = &Alarm;
/// ```
pub trait Observer: Send + Sync + 'static {
    /// A publish has ended, of an application's message or of a copy.
    fn published(&self, event: &Published<'_>) {
        let _ = event;
    }

    /// A consumer has taken on a delivery, before its handler runs. Exactly one
    /// [`consumed`](Self::consumed) follows.
    fn received(&self, event: &Received<'_>) {
        let _ = event;
    }

    /// The outcome of a delivery is final.
    fn consumed(&self, event: &Consumed<'_>) {
        let _ = event;
    }

    /// The broker has confirmed the copy of a delivery that was retried, dead-lettered or parked.
    fn copy_landed(&self, event: &CopyLanded<'_>) {
        let _ = event;
    }

    /// A message could not be put into its dead-letter or parked queue.
    fn set_aside_failed(&self, event: &SetAsideFailed<'_>) {
        let _ = event;
    }

    /// A retry found that its rung does not exist.
    fn rung_missing(&self, event: &RungMissing<'_>) {
        let _ = event;
    }

    /// A delivery was requeued with its attempt unchanged.
    fn handed_back(&self, event: &HandedBack<'_>) {
        let _ = event;
    }

    /// A consumer has subscribed, at its start or after a lost connection.
    fn subscribed(&self, event: &Subscribed<'_>) {
        let _ = event;
    }

    /// The connection was lost; the library reconnects.
    fn lost(&self, event: &Lost<'_>) {
        let _ = event;
    }

    /// The library pauses before the next attempt to reconnect.
    fn retrying(&self, event: &Retrying) {
        let _ = event;
    }

    /// The connection is up again after a loss.
    fn recovered(&self, event: &Recovered) {
        let _ = event;
    }
}

/// Passes events to the observers of a connection and catches their panics.
#[derive(Clone, Default)]
pub(crate) struct Metrics(Vec<Arc<dyn Observer>>);

macro_rules! pass_on {
    ($($event:ident: $type:ty),+ $(,)?) => {
        impl Metrics {
            $(pub(crate) fn $event(&self, event: &$type) {
                for observer in &self.0 {
                    // An observer must not end a thread of the library. The others still receive
                    // the event.
                    let _ = catch_unwind(AssertUnwindSafe(|| observer.$event(event)));
                }
            })+
        }
    };
}

pass_on!(
    published: Published<'_>, received: Received<'_>, consumed: Consumed<'_>,
    copy_landed: CopyLanded<'_>, set_aside_failed: SetAsideFailed<'_>,
    rung_missing: RungMissing<'_>, handed_back: HandedBack<'_>, subscribed: Subscribed<'_>,
    lost: Lost<'_>, retrying: Retrying, recovered: Recovered,
);

impl Metrics {
    pub(crate) fn add(&mut self, observer: impl Observer) {
        self.0.push(Arc::new(observer));
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Metrics({} observers)", self.0.len())
    }
}

#[cfg(test)]
mod tests;
