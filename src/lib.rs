//! RabbitMQ for services without async.

mod clock;
#[cfg(test)]
mod contract;
mod envelope;
mod headers;
mod id;
pub mod naming;
mod outcome;
mod properties;
mod retry;

pub use envelope::Envelope;
pub use headers::{HeaderValue, Headers};
pub use outcome::Outcome;
pub use properties::Properties;
pub use retry::{
    ExplainedAttempt, Explanation, LadderError, NextStep, PolicyError, RetryLadder, RetryPolicy,
    Rung,
};
