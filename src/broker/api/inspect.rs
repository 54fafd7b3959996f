//! What is in the broker.

use crate::broker::model::ready::QueuedMessage;
use crate::broker::server::broker::Broker;
use crate::message::delivery::Delivery;
use crate::message::envelope::Envelope;
use crate::message::headers::{HeaderValue, Headers, Properties};
use crate::message::id::new_id;
use crate::topology::declaration::ExchangeKind;
use std::borrow::Cow;
use std::time::Duration;

/// A queue, as `rabbitmqctl list_queues` shows it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QueueView {
    /// Its name.
    pub name: String,
    /// `classic` or `quorum`.
    pub kind: &'static str,
    /// Whether it outlives the broker.
    pub durable: bool,
    /// Whether it belongs to one connection.
    pub exclusive: bool,
    /// Whether it goes with its last consumer.
    pub auto_delete: bool,
    /// As it was declared; where RabbitMQ 4 adds `x-queue-type`, it is there too.
    pub arguments: Headers,
    /// The policy that applies to it.
    pub policy: Option<String>,
    /// How many messages wait to be delivered.
    pub ready: usize,
    /// How many were delivered and are not settled.
    pub unacked: usize,
    /// How many consumers it has.
    pub consumers: usize,
}

/// A message in a queue, as it stands on the wire.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MessageView {
    /// Where it was published last: by a client, or by its dead-lettering.
    pub exchange: String,
    /// What it was published with.
    pub routing_key: String,
    /// Its AMQP properties.
    pub properties: Properties,
    /// All its headers, reserved ones and those of the broker included.
    pub headers: Headers,
    /// Its body.
    pub body: Vec<u8>,
    /// Whether it was delivered before and came back.
    pub redelivered: bool,
    /// How often a quorum queue took it back.
    pub delivery_count: u64,
}

impl MessageView {
    /// What the library says about the message: its id, its attempt, why it was set aside.
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

    /// Its body as text; what is not UTF-8 is shown as `U+FFFD`.
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
    /// Its name; the default exchange has none.
    pub name: String,
    /// How it chooses queues.
    pub kind: ExchangeKind,
    /// Whether it outlives the broker.
    pub durable: bool,
    /// Whether clients may not publish to it.
    pub internal: bool,
    /// As it was declared.
    pub arguments: Headers,
}

/// A queue bound to an exchange, as `rabbitmqctl list_bindings` shows it. Each queue is bound to the default exchange
/// by its name as well, which is not shown.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BindingView {
    /// Where messages come from.
    pub exchange: String,
    /// Where they go.
    pub queue: String,
    /// Which ones, but for fanout and headers exchanges.
    pub routing_key: String,
    /// Which ones, of a headers exchange.
    pub arguments: Headers,
}

/// A connection, as `rabbitmqctl list_connections` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionView {
    /// Which one: later ones have higher numbers, and none comes twice.
    pub number: u64,
    /// How many channels it has.
    pub channels: usize,
    /// Whether it is not read, because it has published under an alarm.
    pub blocked: bool,
    /// How often each side shows that it is there; zero is never.
    pub heartbeat: Duration,
}

/// A channel, as `rabbitmqctl list_channels` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelView {
    /// Which one, of all connections: later ones have higher numbers, and none comes twice.
    pub number: u64,
    /// The number of its connection.
    pub connection: u64,
    /// How many consumers it has.
    pub consumers: usize,
    /// How many messages it was handed and has not settled.
    pub unacked: usize,
}

/// A consumer, as `rabbitmqctl list_consumers` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerView {
    /// What it consumes.
    pub queue: String,
    /// The number of its channel.
    pub channel: u64,
    /// How many messages it may be handed ahead; zero is no limit.
    pub prefetch: u16,
}

impl Broker {
    /// The queues, by name.
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

    /// The queue of that name, if there is one.
    #[must_use]
    pub fn queue(&self, name: &str) -> Option<QueueView> {
        self.queues().into_iter().find(|queue| queue.name == name)
    }

    /// The messages that are ready in `queue`, head first; they stay there. A queue that does not exist has none.
    #[must_use]
    pub fn messages(&self, queue: &str) -> Vec<MessageView> {
        self.inspect(|hub| {
            let queue = hub.state.queues.get(queue);
            let ready = queue.into_iter().flat_map(|queue| queue.ready.iter());
            ready.map(MessageView::from).collect()
        })
    }

    /// The exchanges, by name; the default exchange and RabbitMQ's own are among them.
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

    /// The bindings, by exchange.
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

    /// The connections, oldest first. A `Connection` has two: one consumes, the other publishes and is opened when it is
    /// first needed.
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

    /// The channels, oldest first.
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

    /// The consumers, by channel.
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

    /// How often somebody tried to connect so far, with or without success.
    #[must_use]
    pub fn connection_attempts(&self) -> usize {
        self.inspect(|hub| hub.attempts)
    }

    /// How many operations connections have sent so far: declarations, publishes, acknowledgements and the like, read or
    /// not. As long as it stays, nothing was sent.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.inspect(|hub| hub.last_request)
    }
}
