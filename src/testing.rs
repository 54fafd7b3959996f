//! For the tests of services: an embedded broker, and a clock that the test moves.
//!
//! See the guide to [testing](crate::docs::testing).

pub use crate::clock::TestClock;
pub use crate::transport::memory::{
    BindingView, Broker as MemoryBroker, BrokerBuilder as MemoryBrokerBuilder, ExchangeView,
    MessageView, Profile, Published, QueueView, Right,
};
