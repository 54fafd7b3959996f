//! RabbitMQ for services without async.

mod clock;
mod headers;
mod properties;

pub use headers::{HeaderValue, Headers};
pub use properties::Properties;
