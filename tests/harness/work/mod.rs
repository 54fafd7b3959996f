//! What a message of the chaos run asks of its handler. Shared by the test and by `chaos_consumer`.

mod plan;

pub use self::plan::Goes;

use std::time::Duration;

use rungmq::{PolicyError, RetryPolicy};
use serde::{Deserialize, Serialize};

/// The 300 ms are waited for in the consumer, the 600 and 1200 in rungs.
pub const THRESHOLD: Duration = Duration::from_millis(500);
/// Deliveries of one message, when nothing but its handler fails.
pub const ATTEMPTS: u32 = 4;

pub fn policy() -> Result<RetryPolicy, PolicyError> {
    RetryPolicy::exponential(ATTEMPTS, Duration::from_millis(300), Duration::from_secs(2))
}

/// A payload.
#[derive(Debug, Serialize, Deserialize)]
pub struct Work {
    pub n: u64,
    pub plan: Plan,
}

/// How the handler answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Plan {
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
pub const UNDECODABLE: &str = " is no work";

/// One line of a consumer's diary.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// Milliseconds since 1970.
    pub at: u64,
    pub process: u32,
    pub n: u64,
    pub attempt: u32,
    pub redelivered: bool,
    pub step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    Started,
    /// Written before the answer is given, so that whatever was accepted is in the diary.
    Accepted,
    /// Any other answer.
    Ended,
}
