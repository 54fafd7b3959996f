//! RabbitMQ for services without async.

mod ack;
mod clock;
mod codec;
#[cfg(test)]
mod contract;
mod declaration;
mod envelope;
mod headers;
mod id;
pub mod metrics;
pub mod naming;
mod outcome;
mod properties;
mod retry;
mod topology;

pub use ack::{Ack, Answer, FatalError};
pub use codec::{Bytes, CodecError, Decode, Encode, Json, Text};
pub use declaration::ExchangeKind;
pub use envelope::Envelope;
pub use headers::{HeaderValue, Headers};
pub use outcome::Outcome;
pub use properties::Properties;
pub use retry::{
    ExplainedAttempt, Explanation, LadderError, NextStep, PolicyError, RetryLadder, RetryPolicy,
    Rung,
};
pub use topology::{Plan, Queue, Topology, TopologyError};
