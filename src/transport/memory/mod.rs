//! A broker in memory behind the seam: never kinder than RabbitMQ.
//!
//! [`State`](state::State) is the core. It is pure: operations go in with the time, and what clients shall hear comes out
//! as effects. [`Broker`] puts a lock, a clock and the links' mailboxes around it; [`MemoryTransport`] is the seam's side.

#![allow(
    dead_code,
    reason = "the public API that uses the rest is not there yet"
)]

mod arguments;
mod broker;
mod channel;
mod dead_letter;
mod exchange;
mod faults;
mod inspect;
mod link;
mod message;
mod profile;
mod queue;
mod ready;
mod refusal;
mod state;
mod timer;
mod wire;

#[allow(unused_imports, reason = "the public API is not there yet")]
pub(crate) use self::{
    broker::Broker,
    exchange::Exchange,
    faults::{Drop, Right},
    inspect::{BindingView, MessageView, QueueView},
    link::MemoryTransport,
    profile::Profile,
    refusal::Refusal,
    state::declare::QueueFlags,
    state::publish::Published,
};

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests;
