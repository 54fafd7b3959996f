//! Retries: when a message is delivered again, where it waits, and when it is given up.
//!
//! Everything here is pure: no I/O, no clock, no random numbers. Retries wait in the consumer or on
//! the broker, in retry queues called rungs; the rungs of one queue form its ladder.

mod decide;
mod explain;
mod ladder;
mod policy;

/// The default retry threshold. Delays of at least this length are spent on the broker.
pub(crate) const DEFAULT_THRESHOLD: std::time::Duration = std::time::Duration::from_secs(30);

pub(crate) use decide::{Decision, UNDECODABLE, Verdict, Wait, decide};
pub use explain::{ExplainedAttempt, Explanation};
pub use ladder::{LadderError, RetryLadder, Rung};
pub use policy::{NextStep, PolicyError, RetryPolicy};
