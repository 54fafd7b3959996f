//! What takes whole brokers down for minutes: a binary of its own, so that it disturbs no other test.

mod chaos;
mod cluster;

/// The kit over real brokers.
mod harness {
    pub(crate) use ::harness::rabbitmq::*;
    pub(crate) use ::harness::*;
}
