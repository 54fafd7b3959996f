//! The part of the tests' harness that starts real brokers.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "a kit of the integration tests, of which this test needs a part"
)]

#[path = "../../../tests/harness/got.rs"]
mod got;
#[path = "../../../tests/harness/rabbitmq/mod.rs"]
mod rabbitmq;
#[path = "../../../tests/harness/wait.rs"]
pub(super) mod wait;

pub(super) use self::rabbitmq::{Node, Raw, Vhost};
