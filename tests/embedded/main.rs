//! The tests of `tests/it` on the embedded broker: the same files, over a kit of the same names.
//!
//! What needs more than behaviour stays with a real broker. Single tests say why at `only_on_rabbitmq!`; whole modules are
//! `bounds`, `examples` and `worker_process` (processes of their own), `guard`, `latency`, `opening` and `tls` (bytes on a
//! socket), `logins` (several users). `tests/conformance.sh` lists what runs where.
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

#[path = "../it/conflicts.rs"]
mod conflicts;
#[path = "../it/contract.rs"]
mod contract;
#[path = "../it/delivery/mod.rs"]
mod delivery;
#[path = "../it/extremes.rs"]
mod extremes;
mod harness;
#[path = "../it/harness_selftest.rs"]
mod harness_selftest;
#[path = "../it/ladders.rs"]
mod ladders;
#[path = "../it/loss.rs"]
mod loss;
#[path = "../it/names.rs"]
mod names;
#[path = "../it/observed.rs"]
mod observed;
#[path = "../it/permissions.rs"]
mod permissions;
#[path = "../it/publish_large.rs"]
mod publish_large;
#[path = "../it/publish_missing_exchange.rs"]
mod publish_missing_exchange;
#[path = "../it/publish_outcomes.rs"]
mod publish_outcomes;
#[path = "../it/publish_trouble.rs"]
mod publish_trouble;
#[path = "../it/recovery/mod.rs"]
mod recovery;
#[path = "../it/rungs.rs"]
mod rungs;
#[path = "../it/setting_aside.rs"]
mod setting_aside;
#[path = "../it/shutdown/mod.rs"]
mod shutdown;
#[path = "../it/stress.rs"]
mod stress;
#[path = "../it/support.rs"]
mod support;
#[path = "../it/topologies.rs"]
mod topologies;
// Only what measures this process.
#[path = "../it/worker_process.rs"]
mod worker_process;
