//! What several subjects need: a connection with its counts, and the declarations of a virtual host
//! as rows.

use rungmq::metrics::Registry;
use rungmq::{Connection, Message};
use serde_json::{Map, Value, json};

use crate::VirtualHost;
use crate::rabbitmq::Row;
use crate::wait::wait_until;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A payload that takes any JSON.
pub type Any = Message<Value>;

/// A connection to a virtual host.
#[track_caller]
pub fn connect(vhost: &impl VirtualHost) -> Connection {
    Connection::open(vhost.url()).unwrap()
}

/// The same, with everything counted.
#[track_caller]
pub fn connect_counted(vhost: &impl VirtualHost) -> (Connection, Registry) {
    let registry = Registry::new();
    let mq = Connection::builder(vhost.url())
        .observer(registry.clone())
        .open()
        .unwrap();
    (mq, registry)
}

/// How many deliveries of `queue` ended as `outcome`.
pub fn consumed(registry: &Registry, queue: &str, outcome: &str) -> u64 {
    let labels = [("queue", queue), ("outcome", outcome)];
    registry.snapshot().counter("acemq.consume.total", &labels)
}

/// Counts calls from any thread.
#[derive(Clone, Debug, Default)]
pub struct Calls(Arc<AtomicUsize>);

impl Calls {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    #[track_caller]
    pub fn wait_for(&self, n: usize, limit: Duration) {
        wait_until(limit, &format!("{n} calls"), || self.count() >= n);
        assert_eq!(self.count(), n);
    }
}

/// All declarations on a virtual host, in the shape and order of `fixtures/contract.json`.
#[derive(Debug, PartialEq)]
pub struct Declared {
    pub exchanges: Vec<Value>,
    pub queues: Vec<Value>,
    pub bindings: Vec<Value>,
}

impl Declared {
    #[track_caller]
    pub fn on(vhost: &impl VirtualHost) -> Self {
        let own = |name: &Value| name != "" && !name.as_str().unwrap().starts_with("amq.");
        let mut exchanges = vhost.list_exchanges(&[
            "name",
            "type",
            "durable",
            "auto_delete",
            "internal",
            "arguments",
        ]);
        exchanges.retain(|row| own(&row["name"]));
        let queues = vhost.list_queues(&[
            "name",
            "type",
            "durable",
            "auto_delete",
            "exclusive",
            "arguments",
        ]);
        let mut bindings = vhost.list_bindings();
        bindings.retain(|row| row["source_name"] != "");
        let major = vhost.major();
        Self {
            exchanges: sorted(exchanges.iter().map(exchange).collect()),
            queues: sorted(queues.iter().map(|row| queue(row, major)).collect()),
            bindings: sorted(bindings.iter().map(binding).collect()),
        }
    }

    /// The row of one queue.
    #[track_caller]
    pub fn queue(&self, name: &str) -> &Value {
        self.queues
            .iter()
            .find(|row| row["name"] == name)
            .unwrap_or_else(|| panic!("no queue {name} in {self:#?}"))
    }

    /// The names of all queues that contain `part`, in order.
    pub fn queues_with(&self, part: &str) -> Vec<&str> {
        let names = self.queues.iter().map(|row| row["name"].as_str().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.contains(part)).collect();
        names.sort_unstable();
        names
    }

    pub fn has_exchange(&self, name: &str) -> bool {
        self.exchanges.iter().any(|row| row["name"] == name)
    }

    /// How often `destination` is bound to `source` by its own name.
    pub fn bound_by_name(&self, source: &str, destination: &str) -> usize {
        let row = json!({"source": source, "destination": destination, "routing_key": destination});
        self.bindings.iter().filter(|known| **known == row).count()
    }
}

fn exchange(row: &Row) -> Value {
    assert_eq!(row["auto_delete"], false, "{row:?}");
    assert_eq!(row["internal"], false, "{row:?}");
    assert_eq!(row["arguments"], json!({}), "{row:?}");
    json!({"name": row["name"], "type": row["type"], "durable": row["durable"]})
}

fn queue(row: &Row, major: u32) -> Value {
    let kind = match row["type"].as_str().unwrap() {
        "rabbit_classic_queue" | "classic" => "classic",
        "rabbit_quorum_queue" | "quorum" => "quorum",
        other => panic!("no such type: {other}"),
    };
    let mut arguments = row["arguments"].as_object().unwrap().clone();
    // RabbitMQ 4 writes the type of a queue that was declared without one among its arguments.
    if major >= 4 && kind == "classic" {
        arguments.remove("x-queue-type");
    }
    let mut shown = Map::new();
    for column in ["name", "durable"] {
        shown.insert(column.to_owned(), row[column].clone());
    }
    shown.insert("type".to_owned(), json!(kind));
    shown.insert("arguments".to_owned(), arguments.into());
    // Said only when they are unusual: the fixture has no such column.
    for flag in ["auto_delete", "exclusive"] {
        if row[flag] == true {
            shown.insert(flag.to_owned(), json!(true));
        }
    }
    shown.into()
}

fn binding(row: &Row) -> Value {
    assert_eq!(row["destination_kind"], "queue", "{row:?}");
    assert_eq!(row["arguments"], json!({}), "{row:?}");
    json!({
        "source": row["source_name"], "destination": row["destination_name"], "routing_key": row["routing_key"],
    })
}

/// In the order of their text, so that lists compare as sets do.
pub fn sorted(mut rows: Vec<Value>) -> Vec<Value> {
    rows.sort_by_key(Value::to_string);
    rows
}
