//! The virtual host of a test: a broker of its own.

use std::marker::PhantomData;

use rungmq::HeaderValue;

use super::lists::Row;
use super::node::Node;
use super::raw::Raw;

/// A fresh virtual host, the only one of its node.
#[derive(Debug)]
pub struct Vhost<'n> {
    node: Node,
    name: String,
    of: PhantomData<&'n Node>,
}

impl Vhost<'static> {
    #[track_caller]
    pub fn new() -> Self {
        Self::over(Node::start())
    }
}

impl<'n> Vhost<'n> {
    /// On a node of the test's own, which has no other.
    pub fn on(node: &'n Node) -> Self {
        Self::over(node.clone())
    }

    fn over(node: Node) -> Self {
        Self {
            name: node.name(),
            node,
            of: PhantomData,
        }
    }

    pub fn node(&self) -> &Node {
        &self.node
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn url(&self) -> String {
        self.node.url()
    }

    #[track_caller]
    pub fn raw(&self) -> Raw {
        Raw::open(&self.url())
    }

    pub fn close_connections(&self) -> usize {
        self.node.close_connections(&self.name)
    }

    pub fn delete_queue_if_empty(&self, queue: &str) {
        self.node.broker().delete_queue_if_empty(queue);
    }

    pub fn lose(&self, queue: &str) {
        self.node.broker().lose_queue(queue);
    }

    pub fn find(&self, queue: &str) {
        self.node.broker().restore_queue(queue);
    }

    #[track_caller]
    pub fn set_policy(&self, name: &str, pattern: &str, definition: &serde_json::Value) {
        let pattern = Pattern::read(pattern);
        let applies = move |queue: &str| pattern.matches(queue);
        let entries = definition.as_object().unwrap().iter();
        let entries = entries.map(|(key, value)| match value.as_i64() {
            Some(number) => (key.clone(), HeaderValue::I64(number)),
            None => (key.clone(), HeaderValue::from(value.as_str().unwrap())),
        });
        let broker = self.node.broker();
        broker
            .set_policy(name, applies, &entries.collect())
            .unwrap();
    }

    pub fn clear_policy(&self, name: &str) {
        self.node.broker().clear_policy(name);
    }

    #[track_caller]
    pub fn list_queues(&self, columns: &[&str]) -> Vec<Row> {
        self.node.list_queues(&self.name, columns)
    }

    /// How many messages the queue holds now, delivered ones included.
    #[track_caller]
    pub fn message_count(&self, queue: &str) -> u64 {
        let row = self.queue(queue, &["messages"]).unwrap();
        row["messages"].as_u64().unwrap()
    }

    #[track_caller]
    pub fn queue(&self, name: &str, columns: &[&str]) -> Option<Row> {
        let columns = [&["name"], columns].concat();
        let mut rows = self.list_queues(&columns).into_iter();
        rows.find(|row| row["name"] == name)
    }

    pub fn queue_names(&self) -> Vec<String> {
        let queues = self.node.broker().queues().into_iter();
        queues.map(|queue| queue.name).collect()
    }

    #[track_caller]
    pub fn list_exchanges(&self, columns: &[&str]) -> Vec<Row> {
        self.node.list_exchanges(&self.name, columns)
    }

    pub fn list_bindings(&self) -> Vec<Row> {
        self.node.list_bindings(&self.name)
    }

    pub fn list_consumers(&self) -> Vec<Row> {
        self.node.list_consumers(&self.name)
    }

    #[track_caller]
    pub fn list_channels(&self, columns: &[&str]) -> Vec<Row> {
        self.node.list_channels(&self.name, columns)
    }

    #[track_caller]
    pub fn list_connections(&self, columns: &[&str]) -> Vec<Row> {
        self.node.list_connections(&self.name, columns)
    }
}

/// A regular expression of the kinds that the tests write: a text, anchored or not.
struct Pattern {
    text: String,
    at_start: bool,
    at_end: bool,
}

impl Pattern {
    #[track_caller]
    fn read(pattern: &str) -> Self {
        let (rest, at_start) = match pattern.strip_prefix('^') {
            Some(rest) => (rest, true),
            None => (pattern, false),
        };
        let (rest, at_end) = match rest.strip_suffix('$') {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let text = rest.replace("[.]", "\\.");
        let bare = text.replace("\\.", "");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        assert!(
            bare.chars().all(is_plain),
            "not on the embedded broker: {pattern}"
        );
        Self {
            text: text.replace("\\.", "."),
            at_start,
            at_end,
        }
    }

    fn matches(&self, name: &str) -> bool {
        match (self.at_start, self.at_end) {
            (true, true) => name == self.text,
            (true, false) => name.starts_with(&self.text),
            (false, true) => name.ends_with(&self.text),
            (false, false) => name.contains(&self.text),
        }
    }
}
