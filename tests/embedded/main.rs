//! The suite on the embedded broker.
//!
//! What needs more than behaviour stays with a real broker. Single tests say why at
//! `only_on_rabbitmq!`; whole modules are in `tests/rabbitmq`: `bounds` and `examples` (processes
//! of their own), `guard`, `latency`, `opening` and `tls` (bytes on a socket), `logins` (several
//! users). `tests/conformance.sh` lists what runs where.
//!
//! `RUNGMQ_TEST_PROFILE` chooses the version it behaves like: `3.10`, the default, or `4.0`.
#![allow(
    dead_code,
    unused_imports,
    reason = "what only the tests need that run on RabbitMQ alone"
)]

#[path = "../suite/mod.rs"]
mod suite;

/// The kit over the embedded broker.
mod harness {
    pub(crate) use ::harness::embedded::*;
    pub(crate) use ::harness::*;

    /// Tests of what the embedded broker has not. They are no tests of this binary.
    macro_rules! only_on_rabbitmq {
        ($why:literal; $($item:item)*) => {};
    }
    pub(crate) use only_on_rabbitmq;
}
