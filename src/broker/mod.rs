//! The embedded broker: RabbitMQ's behaviour in this process, behind the same seam as the real one.
//!
//! [`BrokerState`](model::BrokerState) is the pure model: operations go in with their time, and
//! effects for clients come out. [`Hub`](server::hub::Hub) adds the connections, each with an
//! inbox, and the [`Faults`](server::faults::Faults). [`BrokerCore`](server::core::BrokerCore) puts
//! a lock, a clock and a timer thread around the hub, and [`Broker`] is the handle of it, to which
//! `api` adds the methods of tests. [`MemoryTransport`] implements the traits of the transport.
//!
//! The rules are those of RabbitMQ 3.10.8 and 4.0.5, as observed by running random programs on
//! both.

pub(crate) mod api;
pub(crate) mod builder;
pub(crate) mod model;
pub(crate) mod server;
pub(crate) mod transport;

mod registry;
mod url;

pub use api::actions::ExclusiveConsumer;
pub use api::inspect::{
    BindingView, ChannelView, ConnectionView, ConsumerView, ExchangeView, MessageView, QueueView,
};
pub use builder::BrokerBuilder;
pub use model::profile::Profile;
pub use model::publish::Published;
pub(crate) use registry::named;
pub use server::broker::Broker;
pub use server::faults::Permission;
pub(crate) use transport::MemoryTransport;
pub(crate) use url::MemoryUrl;

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests;
