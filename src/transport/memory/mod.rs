//! A broker in memory behind the seam: never kinder than RabbitMQ.
//!
//! [`State`](state::State) is the core. It is pure: operations go in with the time, and what clients shall hear comes out
//! as effects. [`Hub`](hub::Hub) adds the links, each with a mailbox that is read in order, and the [faults](faults::Faults);
//! [`Broker`] puts a lock, a clock and a timer thread around it. [`MemoryTransport`] is the seam's side.
//!
//! The rules are those of RabbitMQ 3.10.8 and 4.0.5, as both show them when random programs are run on them.

mod arguments;
mod broker;
mod channel;
mod client;
mod dead_letter;
mod equivalence;
mod exchange;
mod faults;
mod handle;
mod hub;
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
    client::Occupant,
    faults::Right,
    handle::BrokerBuilder,
    inspect::{
        BindingView, ChannelView, ConnectionView, ConsumerView, ExchangeView, MessageView,
        QueueView,
    },
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
