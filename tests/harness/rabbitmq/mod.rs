//! Private brokers and what a test needs around them.
//!
//! * [`Vhost::new`] is where most tests start: a fresh virtual host on the one node that all tests share.
//! * [`Node::start`] makes a node of the test's own, to kill, freeze or put under an alarm.
//! * [`Cluster::alone`] lends the one cluster of three nodes to one test at a time.
//! * [`Raw`] looks at the broker past the library under test; [`Proxy`] spoils the connection to it.
//! * [`Authority`] signs certificates, for [`Node::listen_with_tls`].
//! * [`wait`] is the only place that waits; [`logs`] keeps what was logged.
#![allow(
    dead_code,
    unused_imports,
    reason = "a kit: not every tool is in use all the time"
)]

mod certificates;
mod cluster;
mod got;
pub(crate) mod lists;
pub(crate) mod logs;
mod node;
mod proxy;
mod raw;
mod vhost;
pub(crate) mod wait;

pub(crate) use certificates::{Authority, Certificate};
pub(crate) use cluster::Cluster;
pub(crate) use got::{Got, table};
pub(crate) use lists::Row;
pub(crate) use node::Node;
pub(crate) use proxy::{Flow, Proxy, Way};
pub(crate) use raw::{BAD, BAD_BYTES, Raw};
pub(crate) use vhost::Vhost;
pub(crate) use wait::{holds_for, secs, wait_for, wait_until};

/// The broker is a process of its own: others can reach it.
pub(crate) const IN_PROCESS: bool = false;

/// Tests that say why they cannot run on the embedded broker, which runs all others: `tests/memory`.
macro_rules! only_on_rabbitmq {
    ($why:literal; $($item:item)*) => { $($item)* };
}
pub(crate) use only_on_rabbitmq;
