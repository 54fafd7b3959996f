//! RabbitMQ for services without async.

mod ack;
mod clock;
mod codec;
mod headers;
pub mod metrics;
mod outcome;
mod properties;

pub use ack::{Ack, Answer, FatalError};
pub use codec::{Bytes, CodecError, Decode, Encode, Json, Text};
pub use headers::{HeaderValue, Headers};
pub use outcome::Outcome;
pub use properties::Properties;
