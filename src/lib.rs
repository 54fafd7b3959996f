//! RabbitMQ for services without async.

mod ack;
mod clock;
mod codec;
mod headers;
mod properties;

pub use ack::{Ack, Answer, FatalError};
pub use codec::{Bytes, CodecError, Decode, Encode, Json, Text};
pub use headers::{HeaderValue, Headers};
pub use properties::Properties;
