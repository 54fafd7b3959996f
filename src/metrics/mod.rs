//! What can be measured: events for an [`Observer`], and a [`Registry`] that counts them.

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

/// What became of a delivery that reached a consumer.
///
/// Each delivery has exactly one outcome, known when its fate is: a copy counts only once the broker has confirmed it.
/// The outcomes are the values of the label `outcome` of `acemq.consume.total` and `acemq.consume.duration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler accepted it and it was acknowledged.
    Acked,
    /// It will be delivered again, with its attempt one higher.
    Retried,
    /// The handler rejected it: it went to the dead-letter queue.
    Rejected,
    /// It was given up, or retrying could not help: it went to the dead-letter queue.
    DeadLettered,
    /// It was parked by the handler or could not be decoded: it went to the parked queue.
    Parked,
    /// It went back to its queue as it was, its attempt unchanged: its copy did not land, or a drain cut its wait.
    HandedBack,
    /// Its outcome was thrown away, because the broker had the message back by then or the drain's deadline had passed.
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

/// Hears of everything worth measuring; every method does nothing unless it is written.
///
/// The methods are called on the library's own threads, [`published`](Self::published) also on the thread that publishes:
/// they should be quick and must not block. A panic in one is caught and ignored. [`Registry`] is an
/// observer that keeps counts in memory; write another one to feed a metrics library of your choice.
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
    /// A publish has ended, one of the application's or a copy of the library's own.
    fn published(&self, event: &Published<'_>) {
        let _ = event;
    }

    /// A delivery was taken on: its attempt is known, its handler has not run. Each is followed by one
    /// [`consumed`](Self::consumed).
    fn received(&self, event: &Received<'_>) {
        let _ = event;
    }

    /// The fate of a delivery is known.
    fn consumed(&self, event: &Consumed<'_>) {
        let _ = event;
    }

    /// The copy of a delivery that was retried or set aside stands where it should.
    fn copy_landed(&self, event: &CopyLanded<'_>) {
        let _ = event;
    }

    /// The broker would not take a message into its dead-letter or parked queue.
    fn set_aside_failed(&self, event: &SetAsideFailed<'_>) {
        let _ = event;
    }

    /// A retry was to wait in a rung that does not exist.
    fn rung_missing(&self, event: &RungMissing<'_>) {
        let _ = event;
    }

    /// A delivery went back to its queue, its attempt unchanged.
    fn handed_back(&self, event: &HandedBack<'_>) {
        let _ = event;
    }

    /// A consumer has a live subscription, at its start and again after each loss.
    fn subscribed(&self, event: &Subscribed<'_>) {
        let _ = event;
    }

    /// The connection was lost, and will be made again.
    fn lost(&self, event: &Lost<'_>) {
        let _ = event;
    }

    /// Before the next attempt to make a lost connection again there is a pause.
    fn retrying(&self, event: &Retrying) {
        let _ = event;
    }

    /// The connection was lost and is up again.
    fn recovered(&self, event: &Recovered) {
        let _ = event;
    }
}

/// Passes events to the connection's observers, and keeps their panics off the library's threads.
#[derive(Clone, Default)]
pub(crate) struct Metrics(Vec<Arc<dyn Observer>>);

macro_rules! pass_on {
    ($($event:ident: $type:ty),+ $(,)?) => {
        impl Metrics {
            $(pub(crate) fn $event(&self, event: &$type) {
                for observer in &self.0 {
                    let _ = catch_unwind(AssertUnwindSafe(|| observer.$event(event)));
                }
            })+
        }
    };
}

pass_on!(
    published: Published<'_>, received: Received<'_>, consumed: Consumed<'_>, copy_landed: CopyLanded<'_>,
    set_aside_failed: SetAsideFailed<'_>, rung_missing: RungMissing<'_>, handed_back: HandedBack<'_>,
    subscribed: Subscribed<'_>, lost: Lost<'_>, retrying: Retrying, recovered: Recovered,
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
