//! The tests' kit over the embedded broker: the names and methods of `tests/it/harness`, as far as there is something
//! behind them. What is missing here, [`only_on_rabbitmq`] keeps away.
#![allow(
    dead_code,
    unused_imports,
    reason = "a kit: not every tool is in use all the time"
)]

mod amqp;
#[path = "../../it/harness/got.rs"]
mod got;
mod lists;
#[path = "../../it/harness/logs.rs"]
pub(crate) mod logs;
mod node;
mod proxy;
mod raw;
mod vhost;
#[path = "../../it/harness/wait.rs"]
pub(crate) mod wait;

pub(crate) use got::{Got, table};
pub(crate) use lists::Row;
pub(crate) use node::Node;
pub(crate) use proxy::{Flow, Proxy, Way};
pub(crate) use raw::Raw;
pub(crate) use vhost::Vhost;
pub(crate) use wait::{holds_for, secs, wait_for, wait_until};

/// The broker ends with its process: what two processes are to share cannot be on it.
pub(crate) const IN_PROCESS: bool = true;

/// Tests of what the embedded broker has not: see `tests/it/harness`. They are no tests of this binary.
macro_rules! only_on_rabbitmq {
    ($why:literal; $($item:item)*) => {};
}
pub(crate) use only_on_rabbitmq;
