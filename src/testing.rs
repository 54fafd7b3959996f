//! For the tests of services: an embedded broker, and a clock that the test moves.
//!
//! See the guide to [testing](crate::docs::testing).

pub use crate::broker::{
    BindingView, Broker as MemoryBroker, BrokerBuilder as MemoryBrokerBuilder, ChannelView,
    ConnectionView, ConsumerView, ExchangeView, MessageView, Occupant, Profile, Published,
    QueueView, Right,
};
pub use crate::time::test_clock::TestClock;
