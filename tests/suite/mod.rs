//! The scenarios, for any broker: `tests/rabbitmq` and `tests/embedded` include this folder, each over its kit.

mod delivery;
mod harness_selftest;
mod load;
mod publishing;
mod recovery;
mod retries;
mod shutdown;
mod topology;
