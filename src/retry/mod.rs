//! When a message is delivered again, where it waits until then, and what becomes of it otherwise.
//!
//! All of it is pure: no I/O, no clock, no random numbers of its own.

mod decide;
mod explain;
mod ladder;
mod policy;

/// From here on a retry waits on the broker, unless something else is said.
pub(crate) const DEFAULT_THRESHOLD: std::time::Duration = std::time::Duration::from_secs(30);

pub(crate) use decide::{Decision, UNDECODABLE, Verdict, Wait, decide};
pub use explain::{ExplainedAttempt, Explanation};
pub use ladder::{LadderError, RetryLadder, Rung};
pub use policy::{NextStep, PolicyError, RetryPolicy};
