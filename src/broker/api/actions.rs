//! What another client could do.

use super::inspect::MessageView;
use crate::broker::model::declare::QueueFlags;
use crate::broker::model::exchange::{Binding, Exchange};
use crate::broker::model::ids::LinkId;
use crate::broker::model::policy::Policy;
use crate::broker::model::publish::Published;
use crate::broker::model::refusal::Refusal;
use crate::broker::server::broker::Broker;
use crate::error::Error;
use crate::message::delivery::{Body, Outgoing};
use crate::message::headers::{Headers, Properties};
use crate::naming::{self, NameTooLong};
use crate::topology::declaration::ExchangeKind;

/// Who is meant by "another client": no link has this number.
const OUTSIDE: Option<LinkId> = Some(LinkId(0));

const DURABLE: QueueFlags = QueueFlags {
    durable: true,
    exclusive: false,
    auto_delete: false,
};

impl Broker {
    /// Publishes a message as it is, with no header but the given ones, and says what became of it.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when the exchange does not exist or is internal, or a property is not valid. [`Error::NameTooLong`].
    pub fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        properties: Properties,
        headers: Headers,
        body: impl Into<Vec<u8>>,
    ) -> Result<Published, Error> {
        check_names(&[("exchange", exchange), ("routing key", routing_key)])?;
        let outgoing = Outgoing {
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            mandatory: false,
            properties,
            headers,
            body: Body::new(body.into()),
        };
        let published = self.update(|hub, at| hub.state.publish_raw(&outgoing, at));
        published.map_err(refused("another client publishes"))
    }

    /// Declares a durable queue with these arguments.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when an argument is not valid, or the queue exists and is different. [`Error::NameTooLong`].
    pub fn declare_queue(&self, name: &str, arguments: &Headers) -> Result<(), Error> {
        naming::check("queue", name)?;
        let declared = self.update(|hub, at| {
            hub.state
                .declare_queue(name, DURABLE, arguments, OUTSIDE, at)
        });
        declared.map_err(refused("another client declares a queue"))
    }

    /// Deletes a queue with its messages; its consumers are cancelled. One that does not exist stays so.
    pub fn delete_queue(&self, name: &str) {
        self.update(|hub, at| {
            // As its owner, who is refused nothing.
            let owner = hub.state.queues.get(name).and_then(|queue| queue.owner);
            drop(hub.state.delete_queue(name, owner, at));
        });
    }

    /// Deletes a queue in which no message is ready; returns whether there was one.
    pub fn delete_queue_if_empty(&self, name: &str) -> bool {
        self.update(|hub, at| {
            let queue = hub.state.queues.get(name);
            let Some(queue) = queue.filter(|queue| queue.ready.is_empty()) else {
                return false;
            };
            let owner = queue.owner;
            hub.state.delete_queue(name, owner, at).is_ok()
        })
    }

    /// Takes the first message out of a queue, as `basic.get` does when nothing has to be acknowledged.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when there is no such queue, or it is exclusive to somebody. [`Error::NameTooLong`].
    pub fn take(&self, queue: &str) -> Result<Option<MessageView>, Error> {
        naming::check("queue", queue)?;
        let taken = self.update(|hub, at| hub.state.take(queue, at));
        let taken = taken.map_err(refused("another client takes a message"))?;
        Ok(taken.map(MessageView::from))
    }

    /// Consumes from a queue on a connection of its own, exclusively, and acknowledges nothing, until the
    /// [`ExclusiveConsumer`] is dropped or every connection is. Meanwhile nobody else may consume from a classic queue.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when there is no such queue, or it has a consumer. [`Error::NameTooLong`].
    pub fn consume_exclusively(&self, queue: &str) -> Result<ExclusiveConsumer, Error> {
        naming::check("queue", queue)?;
        let occupied = self.update(|hub, at| hub.state.consume_exclusively(queue, at));
        let link = occupied.map_err(refused("another client consumes"))?;
        Ok(ExclusiveConsumer {
            broker: self.clone(),
            link,
        })
    }

    /// Throws away what is ready in a queue; returns how many messages that were.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when there is no such queue. [`Error::NameTooLong`].
    pub fn purge(&self, name: &str) -> Result<usize, Error> {
        naming::check("queue", name)?;
        let purged = self.update(|hub, at| hub.state.purge(name, at));
        purged.map_err(refused("another client purges a queue"))
    }

    /// Sets a policy over the queues whose names `applies` accepts, those to come too, in place of the policy of that name.
    /// Of several that apply to a queue the one that was set last counts.
    ///
    /// `applies` is asked now about every queue, and later about each one that is declared, in the middle of that: it has to
    /// answer by the name alone. One that calls this broker, or a connection to it, waits for itself for ever.
    ///
    /// It may define `message-ttl`, `expires`, `dead-letter-exchange`, `dead-letter-routing-key`, `max-length`,
    /// `max-length-bytes`, `overflow` and `delivery-limit`. Where a queue was declared with the same, the smaller number counts
    /// and any other value of the queue's own.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when it defines anything else.
    pub fn set_policy(
        &self,
        name: &str,
        applies: impl Fn(&str) -> bool + Send + Sync + 'static,
        definition: &Headers,
    ) -> Result<(), Error> {
        let policy = Policy {
            name: name.to_owned(),
            applies: Box::new(applies),
            definition: definition.clone(),
        };
        let set = self.update(|hub, at| hub.state.set_policy(policy, at));
        set.map_err(refused("an operator sets a policy"))
    }

    /// Takes a policy away. One that does not exist is no error.
    pub fn clear_policy(&self, name: &str) {
        self.update(|hub, at| hub.state.clear_policy(name, at));
    }

    /// Declares a durable exchange, with arguments such as `alternate-exchange`.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when the exchange exists and is different, or its name is reserved. [`Error::NameTooLong`].
    pub fn declare_exchange(
        &self,
        name: &str,
        kind: ExchangeKind,
        arguments: &Headers,
    ) -> Result<(), Error> {
        naming::check("exchange", name)?;
        let mut exchange = Exchange::new(name, kind, true);
        exchange.arguments = arguments.clone();
        let declared = self.update(|hub, _| hub.state.declare_exchange(exchange));
        declared.map_err(refused("another client declares an exchange"))
    }

    /// Deletes an exchange with its bindings. One that does not exist is no error.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] for RabbitMQ's own exchanges. [`Error::NameTooLong`].
    pub fn delete_exchange(&self, name: &str) -> Result<(), Error> {
        naming::check("exchange", name)?;
        let deleted = self.update(|hub, _| hub.state.delete_exchange(name));
        deleted.map_err(refused("another client deletes an exchange"))
    }

    /// Binds a queue, with arguments for a headers exchange.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when queue or exchange does not exist, and for the default exchange. [`Error::NameTooLong`].
    pub fn bind(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Headers,
    ) -> Result<(), Error> {
        let binding = binding(queue, exchange, routing_key, arguments)?;
        let bound = self.update(|hub, _| hub.state.bind(exchange, binding, OUTSIDE));
        bound.map_err(refused("another client binds a queue"))
    }

    /// Takes a binding away. One that does not exist is no error.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when queue or exchange does not exist, and for the default exchange. [`Error::NameTooLong`].
    pub fn unbind(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Headers,
    ) -> Result<(), Error> {
        let binding = binding(queue, exchange, routing_key, arguments)?;
        let unbound = self.update(|hub, _| hub.state.unbind(exchange, &binding, OUTSIDE));
        unbound.map_err(refused("another client unbinds a queue"))
    }
}

/// Another client that has a queue for itself. Made by [`MemoryBroker::consume_exclusively`](crate::testing::MemoryBroker::consume_exclusively).
#[derive(Debug)]
#[must_use = "the queue is free again when it is dropped"]
pub struct ExclusiveConsumer {
    broker: Broker,
    link: LinkId,
}

impl Drop for ExclusiveConsumer {
    fn drop(&mut self) {
        self.broker
            .update(|hub, at| hub.state.end_link(self.link, at));
    }
}

fn refused(action: &str) -> impl FnOnce(Refusal) -> Error {
    move |Refusal { code, text }| Error::Broker {
        action: action.to_owned(),
        code,
        text,
    }
}

fn check_names(names: &[(&'static str, &str)]) -> Result<(), NameTooLong> {
    let mut names = names.iter();
    names.try_for_each(|(what, name)| naming::check(what, name))
}

fn binding(
    queue: &str,
    exchange: &str,
    routing_key: &str,
    arguments: &Headers,
) -> Result<Binding, NameTooLong> {
    check_names(&[
        ("queue", queue),
        ("exchange", exchange),
        ("routing key", routing_key),
    ])?;
    Ok(Binding {
        queue: queue.to_owned(),
        routing_key: routing_key.to_owned(),
        arguments: arguments.clone(),
    })
}
