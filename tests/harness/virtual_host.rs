//! What the shared part of the harness asks of a virtual host, whichever broker it is on.

use crate::rabbitmq::Row;
use crate::{embedded, rabbitmq};

/// A virtual host of either kit.
pub trait VirtualHost {
    fn url(&self) -> String;
    /// The first part of the broker's version.
    fn major(&self) -> u32;
    fn list_queues(&self, columns: &[&str]) -> Vec<Row>;
    fn list_exchanges(&self, columns: &[&str]) -> Vec<Row>;
    fn list_bindings(&self) -> Vec<Row>;
    fn list_channels(&self, columns: &[&str]) -> Vec<Row>;
    /// The row of one queue; `None` when there is no such queue.
    fn queue(&self, name: &str, columns: &[&str]) -> Option<Row>;
    /// How many messages the queue holds now, delivered ones included.
    fn message_count(&self, queue: &str) -> u64;
}

macro_rules! virtual_host {
    ($kit:ident) => {
        impl VirtualHost for $kit::Vhost<'_> {
            fn url(&self) -> String {
                self.url()
            }

            fn major(&self) -> u32 {
                self.node().major()
            }

            #[track_caller]
            fn list_queues(&self, columns: &[&str]) -> Vec<Row> {
                self.list_queues(columns)
            }

            #[track_caller]
            fn list_exchanges(&self, columns: &[&str]) -> Vec<Row> {
                self.list_exchanges(columns)
            }

            #[track_caller]
            fn list_bindings(&self) -> Vec<Row> {
                self.list_bindings()
            }

            #[track_caller]
            fn list_channels(&self, columns: &[&str]) -> Vec<Row> {
                self.list_channels(columns)
            }

            #[track_caller]
            fn queue(&self, name: &str, columns: &[&str]) -> Option<Row> {
                self.queue(name, columns)
            }

            #[track_caller]
            fn message_count(&self, queue: &str) -> u64 {
                self.message_count(queue)
            }
        }
    };
}

virtual_host!(embedded);
virtual_host!(rabbitmq);
