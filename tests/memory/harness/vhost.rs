//! The virtual host of a test: a broker of its own.

use std::marker::PhantomData;

use super::lists::Row;
use super::node::Node;
use super::raw::Raw;

/// A fresh virtual host, the only one of its node.
#[derive(Debug)]
pub(crate) struct Vhost<'n> {
    node: Node,
    name: String,
    of: PhantomData<&'n Node>,
}

impl Vhost<'static> {
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self::over(Node::start())
    }
}

impl<'n> Vhost<'n> {
    /// On a node of the test's own, which has no other.
    pub(crate) fn on(node: &'n Node) -> Self {
        Self::over(node.clone())
    }

    fn over(node: Node) -> Self {
        Self {
            name: node.name(),
            node,
            of: PhantomData,
        }
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn url(&self) -> String {
        self.node.url()
    }

    #[track_caller]
    pub(crate) fn raw(&self) -> Raw {
        Raw::open(&self.url())
    }

    pub(crate) fn close_connections(&self) -> usize {
        self.node.close_connections(&self.name)
    }

    pub(crate) fn lose(&self, queue: &str) {
        self.node.broker().lose_queue(queue);
    }

    #[track_caller]
    pub(crate) fn list_queues(&self, columns: &[&str]) -> Vec<Row> {
        self.node.list_queues(columns)
    }

    #[track_caller]
    pub(crate) fn queue(&self, name: &str, columns: &[&str]) -> Option<Row> {
        let columns = [&["name"], columns].concat();
        let mut rows = self.list_queues(&columns).into_iter();
        rows.find(|row| row["name"] == name)
    }

    pub(crate) fn queue_names(&self) -> Vec<String> {
        let queues = self.node.broker().queues().into_iter();
        queues.map(|queue| queue.name).collect()
    }

    #[track_caller]
    pub(crate) fn list_exchanges(&self, columns: &[&str]) -> Vec<Row> {
        self.node.list_exchanges(columns)
    }

    pub(crate) fn list_bindings(&self) -> Vec<Row> {
        self.node.list_bindings()
    }

    pub(crate) fn list_consumers(&self) -> Vec<Row> {
        self.node.list_consumers()
    }

    #[track_caller]
    pub(crate) fn list_channels(&self, columns: &[&str]) -> Vec<Row> {
        self.node.list_channels(columns)
    }

    #[track_caller]
    pub(crate) fn list_connections(&self, columns: &[&str]) -> Vec<Row> {
        self.node.list_connections(columns)
    }
}
