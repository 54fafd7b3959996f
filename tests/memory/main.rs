//! The tests of `tests/it` on the embedded broker: the same files, over a kit of the same names.
//!
//! `RUNGMQ_TEST_PROFILE` chooses the version it behaves like: `3.10`, the default, or `4.0`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test; the panic says which"
)]
#![allow(
    dead_code,
    unused_imports,
    reason = "what only the tests need that run on RabbitMQ alone"
)]

#[path = "../it/delivery/mod.rs"]
mod delivery;
mod harness;
#[path = "../it/support.rs"]
mod support;
