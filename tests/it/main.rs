//! Tests against real brokers, started by `harness`. One binary, so that all its tests share one node.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test; the panic says which"
)]

mod harness;
mod harness_selftest;
mod shutdown;
