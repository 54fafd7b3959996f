//! The broker from outside, for tests: what is in it, and what another client could do.

use super::broker::Broker;
use super::exchange::{Binding, Exchange};
use super::ready::Entry;
use super::refusal::Refusal;
use super::state::LinkId;
use super::state::declare::QueueFlags;
use super::state::publish::Published;
use crate::declaration::ExchangeKind;
use crate::headers::Headers;
use crate::properties::Properties;
use crate::transport::{Body, Outgoing};

/// Who is meant by "another client": no link has this number.
const OUTSIDE: Option<LinkId> = Some(LinkId(0));

/// A queue, as `rabbitmqctl list_queues` would show it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QueueView {
    pub(crate) name: String,
    /// `classic` or `quorum`.
    pub(crate) kind: &'static str,
    pub(crate) flags: QueueFlags,
    pub(crate) arguments: Headers,
    pub(crate) ready: usize,
    pub(crate) unacked: usize,
    pub(crate) consumers: usize,
}

/// A message that is ready in a queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MessageView {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) properties: Properties,
    pub(crate) headers: Headers,
    pub(crate) body: Body,
    pub(crate) redelivered: bool,
    /// How often a quorum queue took it back.
    pub(crate) delivery_count: u64,
}

/// A binding with its exchange. Every queue is bound to the default exchange as well, which is not listed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BindingView {
    pub(crate) exchange: String,
    pub(crate) queue: String,
    pub(crate) routing_key: String,
    pub(crate) arguments: Headers,
}

impl Broker {
    /// The queues by name.
    pub(crate) fn queues(&self) -> Vec<QueueView> {
        self.look(|hub| {
            let queues = hub.state.queues.values();
            queues
                .map(|queue| QueueView {
                    name: queue.name.clone(),
                    kind: queue.kind.as_str(),
                    flags: QueueFlags {
                        durable: queue.durable,
                        exclusive: queue.owner.is_some(),
                        auto_delete: queue.auto_delete,
                    },
                    arguments: queue.arguments.clone(),
                    ready: queue.ready.len(),
                    unacked: queue.unacked,
                    consumers: queue.consumers.len(),
                })
                .collect()
        })
    }

    /// One queue.
    pub(crate) fn queue(&self, name: &str) -> Option<QueueView> {
        self.queues().into_iter().find(|queue| queue.name == name)
    }

    /// What is ready in `queue`, head first, and stays there; `None` without such a queue.
    pub(crate) fn messages(&self, queue: &str) -> Option<Vec<MessageView>> {
        self.look(|hub| {
            let queue = hub.state.queues.get(queue)?;
            Some(queue.ready.iter().map(message).collect())
        })
    }

    /// The exchanges by name, the default one included.
    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        self.look(|hub| hub.state.exchanges.values().cloned().collect())
    }

    /// The bindings by exchange.
    pub(crate) fn bindings(&self) -> Vec<BindingView> {
        self.look(|hub| {
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

    /// How many connections are open, as the broker sees it.
    pub(crate) fn connections(&self) -> usize {
        self.look(|hub| hub.wires.values().filter(|wire| wire.open).count())
    }

    /// How many channels are open, as the broker sees it.
    pub(crate) fn channels(&self) -> usize {
        self.look(|hub| hub.state.channels.len())
    }

    /// Publishes as another client.
    pub(crate) fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        properties: Properties,
        headers: Headers,
        body: impl Into<Vec<u8>>,
    ) -> Result<Published, Refusal> {
        let outgoing = Outgoing {
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            mandatory: false,
            properties,
            headers,
            body: Body::new(body.into()),
        };
        self.with(|hub, at| hub.state.publish_raw(&outgoing, at))
    }

    /// Declares a queue as another client. An exclusive one is locked to every link, until the broker restarts.
    pub(crate) fn declare_queue(
        &self,
        name: &str,
        flags: QueueFlags,
        arguments: &Headers,
    ) -> Result<(), Refusal> {
        self.with(|hub, at| hub.state.declare_queue(name, flags, arguments, OUTSIDE, at))
    }

    /// Deletes a queue with its messages. Its consumers are cancelled.
    pub(crate) fn delete_queue(&self, name: &str) -> Result<(), Refusal> {
        self.with(|hub, at| {
            let owner = hub.state.queues.get(name).and_then(|queue| queue.owner);
            hub.state.delete_queue(name, owner, at)
        })
    }

    /// Throws away what is ready in a queue; returns how many messages that were.
    pub(crate) fn purge(&self, name: &str) -> Result<usize, Refusal> {
        self.with(|hub, at| hub.state.purge(name, at))
    }

    /// Declares an exchange as another client.
    pub(crate) fn declare_exchange(
        &self,
        name: &str,
        kind: ExchangeKind,
        durable: bool,
        internal: bool,
        arguments: &Headers,
    ) -> Result<(), Refusal> {
        let mut exchange = Exchange::new(name, kind, durable);
        exchange.internal = internal;
        exchange.arguments = arguments.clone();
        self.with(|hub, _| hub.state.declare_exchange(exchange))
    }

    /// Deletes an exchange with its bindings.
    pub(crate) fn delete_exchange(&self, name: &str) -> Result<(), Refusal> {
        self.with(|hub, _| hub.state.delete_exchange(name))
    }

    /// Binds a queue as another client.
    pub(crate) fn bind(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Headers,
    ) -> Result<(), Refusal> {
        let binding = binding(queue, routing_key, arguments);
        self.with(|hub, _| hub.state.bind(exchange, binding, OUTSIDE))
    }

    /// Takes a binding away.
    pub(crate) fn unbind(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Headers,
    ) -> Result<(), Refusal> {
        let binding = binding(queue, routing_key, arguments);
        self.with(|hub, _| hub.state.unbind(exchange, &binding, OUTSIDE))
    }
}

fn binding(queue: &str, routing_key: &str, arguments: &Headers) -> Binding {
    Binding {
        queue: queue.to_owned(),
        routing_key: routing_key.to_owned(),
        arguments: arguments.clone(),
    }
}

fn message(entry: &Entry) -> MessageView {
    let message = &entry.message;
    MessageView {
        exchange: message.exchange.clone(),
        routing_key: message.routing_key().to_owned(),
        properties: message.properties.clone(),
        headers: message.headers.clone(),
        body: message.body.clone(),
        redelivered: entry.redelivered,
        delivery_count: entry.returned,
    }
}
