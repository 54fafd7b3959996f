//! What takes whole brokers down for minutes: a binary of its own, so that it disturbs no other test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test; the panic says which"
)]
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the kit is that of tests/it, of which these tests need a part"
)]

mod chaos;
mod cluster;
#[path = "../it/harness/mod.rs"]
mod harness;
#[path = "../it/observed.rs"]
mod observed;
#[path = "../it/worker_process.rs"]
mod worker_process;
