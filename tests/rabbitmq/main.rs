//! Tests against real brokers, started by `harness`. One binary, so that all its tests share one node.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test; the panic says which"
)]

mod bounds;
mod conflicts;
mod contract;
mod delivery;
mod examples;
mod extremes;
mod guard;
mod harness;
mod harness_selftest;
mod ladders;
mod latency;
mod logins;
mod loss;
mod names;
mod observed;
mod opening;
mod permissions;
mod publish_large;
mod publish_missing_exchange;
mod publish_outcomes;
mod publish_trouble;
mod recovery;
mod rungs;
mod setting_aside;
mod shutdown;
mod stress;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod topologies;
mod worker_process;
