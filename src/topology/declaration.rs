//! A single declaration: an exchange, a queue or a binding.

use crate::message::headers::{HeaderValue, Headers};
use std::fmt;

/// The type of an exchange, which decides how it routes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExchangeKind {
    /// Routes to queues bound with exactly the routing key of the message.
    Direct,
    /// Routes to queues whose binding key matches the routing key: `*` matches one word, `#` any
    /// number of words.
    Topic,
    /// Routes to all bound queues.
    Fanout,
    /// Routes by the headers of the message.
    Headers,
}

impl ExchangeKind {
    /// The name of the type in AMQP, such as `topic`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Topic => "topic",
            Self::Fanout => "fanout",
            Self::Headers => "headers",
        }
    }
}

impl fmt::Display for ExchangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A declaration of an exchange, a queue or a binding. `Display` is a single line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Declaration {
    Exchange {
        name: String,
        kind: ExchangeKind,
        durable: bool,
    },
    Queue {
        name: String,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Headers,
    },
    Binding {
        queue: String,
        exchange: String,
        routing_key: String,
    },
}

impl Declaration {
    /// A durable direct exchange, the type of the library's own exchanges.
    pub(crate) fn direct_exchange(name: impl Into<String>) -> Self {
        Self::Exchange {
            name: name.into(),
            kind: ExchangeKind::Direct,
            durable: true,
        }
    }

    /// A durable queue without an `x-queue-type`, as the contract has it for rungs, dead-letter and
    /// parked queues.
    pub(crate) fn durable_queue(name: impl Into<String>, arguments: Headers) -> Self {
        Self::Queue {
            name: name.into(),
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments,
        }
    }

    /// A binding with the name of the queue as its routing key.
    pub(crate) fn bound_by_name(queue: &str, exchange: &str) -> Self {
        Self::Binding {
            queue: queue.to_owned(),
            exchange: exchange.to_owned(),
            routing_key: queue.to_owned(),
        }
    }
}

impl fmt::Display for Declaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exchange {
                name,
                kind,
                durable,
            } => write!(f, "exchange {name:?} ({kind}, {})", durability(*durable)),
            Self::Queue {
                name,
                durable,
                exclusive,
                auto_delete,
                arguments,
            } => {
                write!(f, "queue {name:?} ({}", durability(*durable))?;
                // Only flags that differ from the defaults are shown.
                f.write_str(if *exclusive { ", exclusive" } else { "" })?;
                f.write_str(if *auto_delete { ", auto-delete" } else { "" })?;
                f.write_str(")")?;
                for (index, (name, value)) in arguments.iter().enumerate() {
                    f.write_str(if index == 0 { " " } else { ", " })?;
                    write!(f, "{name}=")?;
                    write_value(f, value)?;
                }
                Ok(())
            }
            Self::Binding {
                queue,
                exchange,
                routing_key,
            } => write!(
                f,
                "binding of {queue:?} to {exchange:?} with {routing_key:?}"
            ),
        }
    }
}

fn durability(durable: bool) -> &'static str {
    if durable { "durable" } else { "transient" }
}

fn write_value(f: &mut fmt::Formatter<'_>, value: &HeaderValue) -> fmt::Result {
    if let Some(text) = value.as_str() {
        return write!(f, "{text:?}");
    }
    match value {
        HeaderValue::Bool(flag) => write!(f, "{flag}"),
        other => match other.as_i64() {
            Some(number) => write!(f, "{number}"),
            None => write!(f, "{other:?}"),
        },
    }
}
