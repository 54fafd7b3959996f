//! Tools for the tests of services: an embedded broker, and a clock that the test advances.
//!
//! The guide to [testing](crate::docs::testing) has examples.

pub use crate::broker::{
    BindingView, Broker as MemoryBroker, BrokerBuilder as MemoryBrokerBuilder, ChannelView,
    ConnectionView, ConsumerView, ExchangeView, ExclusiveConsumer, MessageView, Permission,
    Profile, Published, QueueView,
};
pub use crate::time::test_clock::TestClock;
