//! The worker's output: JSON lines on stdout.

use rungmq::metrics::{Registry, Value as Metric};
use rungmq::{HeaderValue, Headers, Health, Message};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    /// A subscription began, the first one or one after a loss.
    Consuming { queue: &'a str },
    /// A handler started.
    Delivery {
        queue: &'a str,
        id: &'a str,
        attempt: u32,
        redelivered: bool,
        exchange: &'a str,
        routing_key: &'a str,
        original_exchange: &'a str,
        original_routing_key: &'a str,
        body_bytes: usize,
        headers: Value,
    },
    /// A handler returned.
    Handled { id: &'a str, attempt: u32 },
    /// The health of the connection changed.
    Health {
        status: &'static str,
        detail: Option<&'a str>,
    },
    /// The connection was closed: the last line.
    Closed {
        took_ms: u128,
        error: Option<String>,
        stranded: BTreeMap<String, usize>,
        metrics: Map<String, Value>,
    },
}

impl<'a> Event<'a> {
    pub(crate) fn delivery<T>(queue: &'a str, message: &'a Message<T>) -> Self {
        Self::Delivery {
            queue,
            id: message.envelope().id(),
            attempt: message.envelope().attempt(),
            redelivered: message.redelivered(),
            exchange: message.exchange(),
            routing_key: message.routing_key(),
            original_exchange: message.original_exchange(),
            original_routing_key: message.original_routing_key(),
            body_bytes: message.body().len(),
            headers: table(message.headers()),
        }
    }

    pub(crate) fn health(health: &'a Health) -> Self {
        Self::Health {
            status: health.status.as_str(),
            detail: health.detail.as_deref(),
        }
    }

    pub(crate) fn closed(
        took_ms: u128,
        error: Option<&rungmq::Error>,
        registry: &Registry,
    ) -> Self {
        let stranded = error
            .and_then(rungmq::Error::drain_timeout)
            .map(|drain| drain.stranded().clone());
        Self::Closed {
            took_ms,
            error: error.map(ToString::to_string),
            stranded: stranded.unwrap_or_default(),
            metrics: metrics(registry),
        }
    }

    /// Prints the event, ignoring errors: a closed pipe does not stop the worker.
    pub(crate) fn print(&self) {
        if let Ok(mut line) = serde_json::to_vec(self) {
            line.push(b'\n');
            let mut stdout = std::io::stdout().lock();
            let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
        }
    }
}

/// Every metric as a number; of a histogram, the number of its values.
fn metrics(registry: &Registry) -> Map<String, Value> {
    let snapshot = registry.snapshot();
    let number = |metric: &Metric| match metric {
        Metric::Counter(count) => json!(count),
        Metric::Gauge(level) => json!(level),
        Metric::Histogram(histogram) => json!(histogram.count()),
        _ => Value::Null,
    };
    snapshot
        .iter()
        .map(|sample| (sample.to_string(), number(sample.value())))
        .collect()
}

fn table(headers: &Headers) -> Value {
    headers
        .iter()
        .map(|(name, value)| (name.to_owned(), header(value)))
        .collect::<Map<_, _>>()
        .into()
}

/// A header value as JSON. A type that JSON does not have is an object with one `$` member.
fn header(value: &HeaderValue) -> Value {
    match value {
        HeaderValue::Bool(flag) => json!(flag),
        HeaderValue::U32(number) => json!(number),
        HeaderValue::F32(number) => json!(number),
        HeaderValue::F64(number) => json!(number),
        HeaderValue::Decimal { scale, value } => json!({ "$decimal": format!("{value}e-{scale}") }),
        HeaderValue::Text(text) => json!(text),
        HeaderValue::Bytes(bytes) => json!({ "$bytes": bytes }),
        HeaderValue::Timestamp(seconds) => json!({ "$timestamp": seconds }),
        HeaderValue::Array(values) => values.iter().map(header).collect(),
        HeaderValue::Table(headers) => table(headers),
        HeaderValue::Void => Value::Null,
        integer => json!(integer.as_i64()),
    }
}
