//! A broker in memory behind the seam: never kinder than RabbitMQ.
//!
//! [`State`](state::State) is the core. It is pure: operations go in with the time, and what clients shall hear comes out
//! as effects. [`Broker`] puts a lock, a clock and the links' mailboxes around it; [`MemoryTransport`] is the seam's side.

mod arguments;
mod broker;
mod channel;
mod client;
mod dead_letter;
mod exchange;
mod faults;
mod handle;
mod inspect;
mod link;
mod message;
mod profile;
mod queue;
mod ready;
mod refusal;
mod registry;
mod state;
mod timer;
mod url;
mod wire;

pub use self::{
    broker::Broker,
    faults::Right,
    handle::BrokerBuilder,
    inspect::{BindingView, ExchangeView, MessageView, QueueView},
    profile::Profile,
    state::publish::Published,
};
pub(crate) use self::{link::MemoryTransport, registry::named, url::MemoryUrl};

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests;
