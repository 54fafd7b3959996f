//! What a message of the chaos run asks of its handler. Shared by the test and `examples/chaos_consumer.rs`.

use std::time::Duration;

use rungmq::{PolicyError, RetryPolicy};
use serde::{Deserialize, Serialize};

/// The 300 ms are waited for in the consumer, the 600 and 1200 in rungs.
pub(crate) const THRESHOLD: Duration = Duration::from_millis(500);
/// Deliveries of one message, when nothing but its handler fails.
pub(crate) const ATTEMPTS: u32 = 4;

pub(crate) fn policy() -> Result<RetryPolicy, PolicyError> {
    RetryPolicy::exponential(ATTEMPTS, Duration::from_millis(300), Duration::from_secs(2))
}

/// A payload.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) n: u64,
    pub(crate) plan: Plan,
}

/// How the handler answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Plan {
    Accept,
    /// Accepts after a while.
    Slow,
    /// Fails while the attempt is not larger, then accepts.
    Fail(u32),
    /// Panics while the attempt is not larger, then accepts.
    Panic(u32),
    FailAlways,
    Fatal,
    Reject,
    Park,
    /// The body is no JSON: the codec refuses it, the handler never sees it.
    Undecodable,
}

/// What follows the number in the body of such a message.
pub(crate) const UNDECODABLE: &str = " is no work";

/// One line of a consumer's diary.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Milliseconds since 1970.
    pub(crate) at: u64,
    pub(crate) process: u32,
    pub(crate) n: u64,
    pub(crate) attempt: u32,
    pub(crate) redelivered: bool,
    pub(crate) step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    Started,
    /// Written before the answer is given, so that whatever was accepted is in the diary.
    Accepted,
    /// Any other answer.
    Ended,
}
