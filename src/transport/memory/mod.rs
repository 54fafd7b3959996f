//! A broker in memory behind the seam: never kinder than RabbitMQ.
//!
//! [`State`](state::State) is the core. It is pure: operations go in with the time, and what clients shall hear comes out
//! as effects. [`Hub`](hub::Hub) adds the links, each with a mailbox that is read in order, and the [faults](faults::Faults);
//! [`Broker`] puts a lock, a clock and a timer thread around it. [`MemoryTransport`] is the seam's side.
//!
//! The rules are those of RabbitMQ 3.10.8 and 4.0.5, whose code was read and which were asked by random programs.
//!
//! # What it does not have
//!
//! * Streams: declaring one is refused with 540.
//! * Clusters, policies, more than one virtual host, users other than `guest` and their permissions (but see
//!   [`Broker::refuse`]).
//! * At-least-once dead-lettering: `x-dead-letter-strategy` is checked, and the messages go at most once.
//! * Exchanges bound to exchanges, exchanges that delete themselves, transactions, direct reply-to (a message that asks for it
//!   is refused, as by a broker on whose channel nobody consumes the replies), consumers with priorities or exclusive ones,
//!   consuming without acknowledgements.
//! * The limit on the time that a consumer may hold a message (`consumer_timeout`).
//! * Latency: a confirm, or a message that has left one queue for another, is there at once. A quorum queue with
//!   `reject-publish` tells its publishers at once that it is full, so that they get one message too many into it, not
//!   several; `x-expires` of a quorum queue is exact, where RabbitMQ looks every few seconds.
//! * Arguments that make the real one crash (a nonsensical `x-queue-master-locator`, an `x-death` header whose entries are no
//!   tables) are passed over.
//! * Queue names with line breaks, and the empty name for "the queue declared last on this channel".
//! * When several consumers of one channel hold messages of a quorum queue and the channel ends, they come back in the order
//!   in which the consumers began; on 3.x that order is a random one.

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
