//! RabbitMQ for services without async.

mod ack;
mod clock;
mod headers;
mod properties;

pub use ack::{Ack, Answer, FatalError};
pub use headers::{HeaderValue, Headers};
pub use properties::Properties;
