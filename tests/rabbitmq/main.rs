//! Tests against real brokers, started by the harness. One binary, so that all its tests share one
//! node.

mod bounds;
mod examples;
mod guard;
mod latency;
mod logins;
mod opening;
#[path = "../suite/mod.rs"]
mod suite;
mod tls;

/// The kit over real brokers.
mod harness {
    pub(crate) use ::harness::rabbitmq::*;
    pub(crate) use ::harness::*;

    /// Tests that say why they cannot run on the embedded broker, which runs all others.
    macro_rules! only_on_rabbitmq {
        ($why:literal; $($item:item)*) => { $($item)* };
    }
    pub(crate) use only_on_rabbitmq;
}
