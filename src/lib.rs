//! RabbitMQ for services without async.

mod ack;
mod clock;
mod codec;
mod declaration;
mod headers;
pub mod metrics;
mod outcome;
mod properties;
mod retry_standin;
mod topology;

pub use ack::{Ack, Answer, FatalError};
pub use codec::{Bytes, CodecError, Decode, Encode, Json, Text};
pub use declaration::ExchangeKind;
pub use headers::{HeaderValue, Headers};
pub use outcome::Outcome;
pub use properties::Properties;
pub use topology::{Plan, Queue, Topology, TopologyError};
