//! Tests against real brokers, started by `harness`. One binary, so that all its tests share one node.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test; the panic says which"
)]

mod bounds;
mod harness;
mod harness_selftest;
mod latency;
mod loss;
mod observed;
mod publish_outcomes;
mod publish_trouble;
mod rungs;
mod setting_aside;
mod worker_process;
