//! What the tests need around the library under test: brokers, raw clients, logs, and waiting.
//!
//! There are two kits with the same names, [`rabbitmq`] over real brokers and [`embedded`] over the
//! embedded one, so that a test is written once and runs on both. What both share stands beside
//! them:
//!
//! * [`wait`] is the only place that waits; [`logs`] keeps what was logged.
//! * [`observed`] and [`support`] are connections of the library's with their counts, and what
//!   their handlers were given.
//! * [`worker_process`] starts examples as processes of their own.
//! * [`Authority`] signs certificates, for `Node::listen_with_tls`.

mod certificates;
pub mod embedded;
mod got;
pub mod logs;
pub mod observed;
pub mod rabbitmq;
pub mod support;
mod virtual_host;
pub mod wait;
pub mod work;
pub mod worker_process;

pub use self::certificates::{Authority, Certificate};
pub use self::got::{Got, IntoValue, table};
pub use self::virtual_host::VirtualHost;
pub use self::wait::{holds_for, secs, wait_for, wait_until};
