//! Tests that take whole brokers down for minutes. They are a binary of their own, which disturbs
//! no other test.

mod chaos;
mod cluster;

/// The kit over real brokers.
mod harness {
    pub(crate) use ::harness::rabbitmq::*;
    pub(crate) use ::harness::*;
}
