//! The methods that inspect a broker, and the views they return.

use crate::broker::model::ready::QueuedMessage;
use crate::broker::server::broker::Broker;
use crate::message::delivery::Delivery;
use crate::message::envelope::Envelope;
use crate::message::headers::{HeaderValue, Headers, Properties};
use crate::message::wire::new_id;
use crate::topology::declaration::ExchangeKind;
use std::borrow::Cow;
use std::time::Duration;

/// A queue, as `rabbitmqctl list_queues` shows it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QueueView {
    /// The name of the queue.
    pub name: String,
    /// The type: `classic` or `quorum`.
    pub kind: &'static str,
    /// Whether the queue survives a restart of the broker.
    pub durable: bool,
    /// Whether the queue belongs to one connection.
    pub exclusive: bool,
    /// Whether the queue is deleted with its last consumer.
    pub auto_delete: bool,
    /// The arguments of its declaration, with the `x-queue-type` that RabbitMQ 4 adds.
    pub arguments: Headers,
    /// The name of the policy that applies to the queue.
    pub policy: Option<String>,
    /// The number of messages that are ready for delivery.
    pub ready: usize,
    /// The number of delivered messages that are not settled.
    pub unacked: usize,
    /// The number of consumers.
    pub consumers: usize,
}

/// A message in a queue, in its wire format.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MessageView {
    /// The exchange of its last publish, by a client or by dead-lettering.
    pub exchange: String,
    /// The routing key of its last publish.
    pub routing_key: String,
    /// The AMQP properties.
    pub properties: Properties,
    /// All headers, including reserved ones and those of the broker.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the message was delivered before and requeued.
    pub redelivered: bool,
    /// The number of times a quorum queue has requeued the message.
    pub delivery_count: u64,
}

impl MessageView {
    /// What the library stores with the message: its id, its attempt, and why it was dead-lettered
    /// or parked.
    #[must_use]
    pub fn envelope(&self) -> Envelope {
        Envelope::read(
            &self.properties,
            &self.headers,
            &self.routing_key,
            i64::MAX,
            new_id,
        )
    }

    /// The body as text; invalid UTF-8 becomes `U+FFFD`.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }
}

impl From<&QueuedMessage> for MessageView {
    fn from(queued: &QueuedMessage) -> Self {
        let message = &queued.message;
        Self {
            exchange: message.exchange.clone(),
            routing_key: message.routing_key().to_owned(),
            properties: message.properties.clone(),
            headers: message.headers.clone(),
            body: message.body.to_vec(),
            redelivered: queued.redelivered,
            delivery_count: queued.returned,
        }
    }
}

impl From<Delivery> for MessageView {
    fn from(delivery: Delivery) -> Self {
        let count = delivery.headers.get("x-delivery-count");
        let count = count.and_then(HeaderValue::as_i64).unwrap_or(0);
        Self {
            exchange: delivery.exchange,
            routing_key: delivery.routing_key,
            properties: delivery.properties,
            headers: delivery.headers,
            body: delivery.body.to_vec(),
            redelivered: delivery.redelivered,
            delivery_count: u64::try_from(count).unwrap_or(0),
        }
    }
}

/// An exchange, as `rabbitmqctl list_exchanges` shows it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ExchangeView {
    /// The name of the exchange; empty for the default exchange.
    pub name: String,
    /// The type of the exchange.
    pub kind: ExchangeKind,
    /// Whether the exchange survives a restart of the broker.
    pub durable: bool,
    /// Whether the exchange refuses publishes of clients.
    pub internal: bool,
    /// The arguments of its declaration.
    pub arguments: Headers,
}

/// A binding, as `rabbitmqctl list_bindings` shows it. The implicit bindings of the default
/// exchange are not included.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BindingView {
    /// The exchange.
    pub exchange: String,
    /// The queue.
    pub queue: String,
    /// The routing key; ignored by fanout and headers exchanges.
    pub routing_key: String,
    /// The arguments of the binding, for headers exchanges.
    pub arguments: Headers,
}

/// A connection, as `rabbitmqctl list_connections` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionView {
    /// The number of the connection. Numbers increase, and none is used twice.
    pub number: u64,
    /// The number of its channels.
    pub channels: usize,
    /// Whether the broker does not read the connection, because it published under an alarm.
    pub blocked: bool,
    /// The heartbeat interval; zero is none.
    pub heartbeat: Duration,
}

/// A channel, as `rabbitmqctl list_channels` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelView {
    /// The number of the channel, unique among all connections. Numbers increase, and none is used
    /// twice.
    pub number: u64,
    /// The number of its connection.
    pub connection: u64,
    /// The number of its consumers.
    pub consumers: usize,
    /// The number of messages that were delivered on it and are not settled.
    pub unacked: usize,
}

/// A consumer, as `rabbitmqctl list_consumers` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerView {
    /// The queue.
    pub queue: String,
    /// The number of its channel.
    pub channel: u64,
    /// The maximum number of unsettled messages; zero is no limit.
    pub prefetch: u16,
}

impl Broker {
    /// Returns the queues, in the order of their names.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueView> {
        self.inspect(|hub| {
            let queues = hub.state.queues.values();
            queues
                .map(|queue| QueueView {
                    name: queue.name.clone(),
                    kind: queue.kind.as_str(),
                    durable: queue.durable,
                    exclusive: queue.owner.is_some(),
                    auto_delete: queue.auto_delete,
                    arguments: queue.arguments.clone(),
                    policy: queue.policy.clone(),
                    ready: queue.ready.len(),
                    unacked: queue.unacked,
                    consumers: queue.consumers.len(),
                })
                .collect()
        })
    }

    /// Returns the queue of that name, if it exists.
    #[must_use]
    pub fn queue(&self, name: &str) -> Option<QueueView> {
        self.queues().into_iter().find(|queue| queue.name == name)
    }

    /// Returns the ready messages of `queue`, head first, without removing them. A missing queue
    /// has none.
    #[must_use]
    pub fn messages(&self, queue: &str) -> Vec<MessageView> {
        self.inspect(|hub| {
            let queue = hub.state.queues.get(queue);
            let ready = queue.into_iter().flat_map(|queue| queue.ready.iter());
            ready.map(MessageView::from).collect()
        })
    }

    /// Returns the exchanges, in the order of their names, including the predeclared ones.
    #[must_use]
    pub fn exchanges(&self) -> Vec<ExchangeView> {
        self.inspect(|hub| {
            let exchanges = hub.state.exchanges.values();
            exchanges
                .map(|exchange| ExchangeView {
                    name: exchange.name.clone(),
                    kind: exchange.kind,
                    durable: exchange.durable,
                    internal: exchange.internal,
                    arguments: exchange.arguments.clone(),
                })
                .collect()
        })
    }

    /// Returns the bindings, in the order of their exchanges.
    #[must_use]
    pub fn bindings(&self) -> Vec<BindingView> {
        self.inspect(|hub| {
            let exchanges = hub.state.exchanges.values();
            let bindings = exchanges.flat_map(|exchange| {
                exchange.bindings.iter().map(|binding| BindingView {
                    exchange: exchange.name.clone(),
                    queue: binding.queue.clone(),
                    routing_key: binding.routing_key.clone(),
                    arguments: binding.arguments.clone(),
                })
            });
            bindings.collect()
        })
    }

    /// Returns the open connections, oldest first. A `Connection` has up to two: one that consumes,
    /// and one that publishes and is opened on its first use.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionView> {
        self.inspect(|hub| {
            let open = hub
                .connections
                .iter()
                .filter(|(_, connection)| connection.open);
            open.map(|(link, connection)| ConnectionView {
                number: link.0,
                channels: hub.state.channels_of(*link).len(),
                blocked: connection.blocked,
                heartbeat: connection.heartbeat,
            })
            .collect()
        })
    }

    /// Returns the channels, oldest first.
    #[must_use]
    pub fn channels(&self) -> Vec<ChannelView> {
        self.inspect(|hub| {
            let channels = hub.state.channels.iter();
            channels
                .map(|(id, channel)| ChannelView {
                    number: id.0,
                    connection: channel.link.0,
                    consumers: channel.consumers.len(),
                    unacked: channel.unacked(),
                })
                .collect()
        })
    }

    /// Returns the consumers, in the order of their channels.
    #[must_use]
    pub fn consumers(&self) -> Vec<ConsumerView> {
        self.inspect(|hub| {
            let channels = hub.state.channels.iter();
            let consumers = channels.flat_map(|(id, channel)| {
                channel.consumers.values().map(|consumer| ConsumerView {
                    queue: consumer.queue.clone(),
                    channel: id.0,
                    prefetch: consumer.prefetch,
                })
            });
            consumers.collect()
        })
    }

    /// Returns the number of attempts to connect so far, with or without success.
    #[must_use]
    pub fn connection_attempts(&self) -> usize {
        self.inspect(|hub| hub.attempts)
    }

    /// Returns the number of operations that connections have sent so far, read or not:
    /// declarations, publishes, acknowledgements and others. While it does not change, nothing is
    /// sent.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.inspect(|hub| hub.last_request)
    }
}
