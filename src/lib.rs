//! RabbitMQ for services without async.

mod ack;
mod clock;
mod codec;
mod connection;
mod consumer;
#[cfg(test)]
mod contract;
mod copy;
mod declaration;
mod envelope;
mod error;
mod headers;
mod health;
mod id;
mod link;
mod message;
pub mod metrics;
pub mod naming;
mod outcome;
mod properties;
mod publish;
mod publisher;
mod retry;
mod shutdown;
mod topology;
mod transport;

pub use ack::{Ack, Answer, FatalError};
pub use codec::{Bytes, CodecError, Decode, Encode, Json, Text};
pub use connection::{Connection, ConnectionBuilder, ConsumerGroup, RunningGroup};
pub use consumer::{Consumer, ConsumerBuilder, SetAsideFailure};
pub use declaration::ExchangeKind;
pub use envelope::Envelope;
pub use error::Error;
pub use headers::{HeaderValue, Headers};
pub use health::{Health, HealthStatus};
pub use message::Message;
pub use outcome::Outcome;
pub use properties::Properties;
pub use publish::{Publish, PublishError};
pub use retry::{
    ExplainedAttempt, Explanation, LadderError, NextStep, PolicyError, RetryLadder, RetryPolicy,
    Rung,
};
pub use shutdown::{DrainTimeout, StrandedDelivery};
pub use topology::{Plan, Queue, Topology, TopologyError};
#[cfg(feature = "tls")]
pub use transport::amqp::tls::TlsOptions;
