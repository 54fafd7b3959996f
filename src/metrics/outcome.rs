//! What became of a delivery.

use std::fmt;

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
