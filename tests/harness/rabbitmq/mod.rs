//! The kit over real brokers, which it starts and ends itself.
//!
//! * [`Vhost::new`] is where most tests start: a fresh virtual host on the one node that all tests
//!   share.
//! * [`Node::start`] makes a node of the test's own, to kill, freeze or put under an alarm.
//! * [`Cluster::alone`] lends the one cluster of three nodes to one test at a time.
//! * [`Raw`] looks at the broker past the library under test; [`Proxy`] spoils the connection to
//!   it.

mod cluster;
mod evaluator;
mod lists;
pub(crate) mod node;
mod proxy;
mod raw;
mod vhost;

pub use self::cluster::Cluster;
pub use self::lists::Row;
pub use self::node::Node;
pub use self::proxy::{Flow, Proxy, Way};
pub use self::raw::{BAD, BAD_BYTES, Raw};
pub use self::vhost::Vhost;

use super::{got, wait};

/// The broker is a process of its own: others can reach it.
pub const IN_PROCESS: bool = false;
