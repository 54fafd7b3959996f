//! The kit over the embedded broker: the names and methods of the kit over real ones, as far as
//! there is something behind them. What is missing here, `only_on_rabbitmq!` keeps away.

mod amqp;
mod lists;
mod node;
mod proxy;
mod raw;
mod vhost;

pub use self::lists::Row;
pub use self::node::Node;
pub use self::proxy::{Flow, Proxy, Way};
pub use self::raw::Raw;
pub use self::vhost::Vhost;

use super::{got, wait};

/// The broker ends with its process: what two processes are to share cannot be on it.
pub const IN_PROCESS: bool = true;
