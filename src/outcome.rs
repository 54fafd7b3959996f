//! What became of a delivery.

use std::fmt;

/// What became of a delivery, as the metrics count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Accepted and acknowledged.
    Acked,
    /// Its next attempt is on its way.
    Retried,
    /// The handler rejected it; it is in the dead-letter queue.
    Rejected,
    /// The policy gave up, or the reason was fatal; it is in the dead-letter queue.
    DeadLettered,
    /// It is in the parked queue.
    Parked,
    /// It went back to its queue, its attempt unchanged.
    HandedBack,
    /// What was decided was thrown away, because the broker has the delivery back.
    Discarded,
}

impl Outcome {
    /// The outcome as a metric label, such as `dead_lettered`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
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

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
