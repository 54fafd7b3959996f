//! A broker in memory behind the seam: never kinder than RabbitMQ.
//!
//! [`State`](state::State) is the core. It is pure: operations go in with the time, and what clients shall hear comes out
//! as effects. [`Hub`](hub::Hub) adds the links, each with a mailbox that is read in order, and the [faults](faults::Faults);
//! [`Broker`] puts a lock, a clock and a timer thread around it. [`MemoryTransport`] is the seam's side.
//!
//! The rules are those of RabbitMQ 3.10.8 and 4.0.5, as both show them when random programs are run on them.

pub(crate) mod api;
pub(crate) mod builder;
pub(crate) mod model;
pub(crate) mod server;
pub(crate) mod transport;

mod registry;
mod url;

pub use api::actions::Occupant;
pub use api::faults::Right;
pub use api::inspect::{
    BindingView, ChannelView, ConnectionView, ConsumerView, ExchangeView, MessageView, QueueView,
};
pub use builder::BrokerBuilder;
pub use model::profile::Profile;
pub use model::publish::Published;
pub(crate) use registry::named;
pub use server::broker::Broker;
pub(crate) use transport::MemoryTransport;
pub(crate) use url::MemoryUrl;

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests;
