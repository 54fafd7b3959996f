//! What the broker says about its queues, bindings, channels, in the rows and columns of
//! rabbitmqctl.

use std::sync::atomic::Ordering;

use rungmq::{HeaderValue, Headers};
use serde_json::{Value, json};

use super::node::Node;

pub use crate::rabbitmq::Row;

impl Node {
    #[track_caller]
    pub fn list_queues(&self, _vhost: &str, columns: &[&str]) -> Vec<Row> {
        let queues = self.broker().queues().into_iter();
        let rows = queues.map(|queue| {
            row(json!({
                "name": queue.name,
                "type": queue.kind,
                "durable": queue.durable,
                "auto_delete": queue.auto_delete,
                "exclusive": queue.exclusive,
                "arguments": table(&queue.arguments),
                "policy": queue.policy,
                "messages": queue.ready + queue.unacked,
                "messages_ready": queue.ready,
                "messages_unacknowledged": queue.unacked,
                "consumers": queue.consumers,
            }))
        });
        shown(rows, columns)
    }

    #[track_caller]
    pub fn list_exchanges(&self, _vhost: &str, columns: &[&str]) -> Vec<Row> {
        let exchanges = self.broker().exchanges().into_iter();
        let rows = exchanges.map(|exchange| {
            row(json!({
                "name": exchange.name,
                "type": exchange.kind.as_str(),
                "durable": exchange.durable,
                "auto_delete": false,
                "internal": exchange.internal,
                "arguments": table(&exchange.arguments),
            }))
        });
        shown(rows, columns)
    }

    pub fn list_bindings(&self, _vhost: &str) -> Vec<Row> {
        let bindings = self.broker().bindings().into_iter();
        let own = bindings.map(|binding| {
            let arguments = table(&binding.arguments);
            (
                binding.exchange,
                binding.queue,
                binding.routing_key,
                arguments,
            )
        });
        let queues = self.broker().queues().into_iter();
        let by_name =
            queues.map(|queue| (String::new(), queue.name.clone(), queue.name, json!({})));
        let all = by_name.chain(own);
        let rows = all.map(|(exchange, queue, routing_key, arguments)| {
            row(json!({
                "source_name": exchange,
                "destination_name": queue,
                "destination_kind": "queue",
                "routing_key": routing_key,
                "arguments": arguments,
            }))
        });
        rows.collect()
    }

    pub fn list_consumers(&self, _vhost: &str) -> Vec<Row> {
        let consumers = self.broker().consumers().into_iter();
        let rows = consumers.map(|consumer| {
            row(json!({
                "queue_name": consumer.queue,
                "channel_pid": consumer.channel,
                "ack_required": true,
                "prefetch_count": consumer.prefetch,
            }))
        });
        rows.collect()
    }

    /// Those of the raw clients, of which each has one, are among them.
    #[track_caller]
    pub fn list_channels(&self, _vhost: &str, columns: &[&str]) -> Vec<Row> {
        let channels = self.broker().channels();
        let rows = channels.into_iter().map(|channel| {
            row(json!({
                "pid": channel.number,
                "number": channel.number,
                "connection": channel.connection,
                "consumer_count": channel.consumers,
                "messages_unacknowledged": channel.unacked,
            }))
        });
        let raws = self.inner().raws.lock();
        let idle = raws
            .iter()
            .filter(|(_, raw)| !raw.consumes.load(Ordering::SeqCst));
        let idle: Vec<_> = idle.map(|(number, _)| *number).collect();
        let raws = idle.into_iter().map(|raw| {
            let pid = format!("raw-{raw}");
            row(json!({
                "pid": pid,
                "number": 1,
                "connection": pid,
                "consumer_count": 0,
                "messages_unacknowledged": 0,
            }))
        });
        shown(rows.chain(raws), columns)
    }

    #[track_caller]
    pub fn list_connections(&self, _vhost: &str, columns: &[&str]) -> Vec<Row> {
        let connections = self.broker().connections().into_iter();
        let rows = connections.map(|connection| {
            row(json!({
                "pid": connection.number,
                "user": "guest",
                "channels": connection.channels,
                "client_properties": {},
                "timeout": connection.heartbeat.as_secs(),
            }))
        });
        let raws: Vec<_> = self.inner().raws.lock().keys().copied().collect();
        let raws = raws.into_iter().map(|raw| {
            let pid = format!("raw-{raw}");
            row(json!({"pid": pid, "user": "guest", "channels": 1, "client_properties": {}, "timeout": 0}))
        });
        shown(rows.chain(raws), columns)
    }
}

fn row(value: Value) -> Row {
    match value {
        Value::Object(row) => row,
        other => panic!("no row: {other}"),
    }
}

/// The rows with just these columns.
#[track_caller]
fn shown(rows: impl Iterator<Item = Row>, columns: &[&str]) -> Vec<Row> {
    let columns_of = |row: Row| {
        let column = |name: &&str| match row.get(*name) {
            Some(value) => ((*name).to_owned(), value.clone()),
            None => panic!("the embedded broker shows no {name}"),
        };
        columns.iter().map(column).collect()
    };
    rows.map(columns_of).collect()
}

fn table(headers: &Headers) -> Value {
    let entries = headers.iter();
    let entries = entries.map(|(name, value)| (name.to_owned(), shown_value(value)));
    Value::Object(entries.collect())
}

fn shown_value(value: &HeaderValue) -> Value {
    match value {
        HeaderValue::Bool(value) => json!(value),
        HeaderValue::Text(value) => json!(value),
        HeaderValue::F32(value) => json!(value),
        HeaderValue::F64(value) => json!(value),
        HeaderValue::Table(headers) => table(headers),
        HeaderValue::Array(values) => values.iter().map(shown_value).collect(),
        other => json!(other.as_i64()),
    }
}
