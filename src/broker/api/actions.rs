//! The methods that act as another client or as an operator.

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

/// The connection of "another client". No real connection has this number, so it owns no queue.
const OUTSIDE: Option<LinkId> = Some(LinkId(0));

const DURABLE: QueueFlags = QueueFlags {
    durable: true,
    exclusive: false,
    auto_delete: false,
};

impl Broker {
    /// Publishes a message with exactly these headers, and returns the result.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when the exchange does not exist or is internal, or when a property is
    /// invalid. [`Error::NameTooLong`].
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

    /// Declares a durable queue.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when an argument is invalid, or when the queue exists with other
    /// properties. [`Error::NameTooLong`].
    pub fn declare_queue(&self, name: &str, arguments: &Headers) -> Result<(), Error> {
        naming::check("queue", name)?;
        let declared = self.update(|hub, at| {
            hub.state
                .declare_queue(name, DURABLE, arguments, OUTSIDE, at)
        });
        declared.map_err(refused("another client declares a queue"))
    }

    /// Deletes a queue with its messages, and cancels its consumers. Has no effect on a missing
    /// queue.
    pub fn delete_queue(&self, name: &str) {
        self.update(|hub, at| {
            // Deleting in the owner's name also deletes an exclusive queue.
            let owner = hub.state.queues.get(name).and_then(|queue| queue.owner);
            let _ = hub.state.delete_queue(name, owner, at);
        });
    }

    /// Deletes a queue that has no ready messages, and returns whether it was deleted.
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

    /// Removes and returns the first ready message of a queue, as `basic.get` without
    /// acknowledgement.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when the queue does not exist or is exclusive to a connection.
    /// [`Error::NameTooLong`].
    pub fn take(&self, queue: &str) -> Result<Option<MessageView>, Error> {
        naming::check("queue", queue)?;
        let taken = self.update(|hub, at| hub.state.take(queue, at));
        let taken = taken.map_err(refused("another client takes a message"))?;
        Ok(taken.map(MessageView::from))
    }

    /// Consumes exclusively from a queue, on a separate connection and without acknowledging
    /// anything.
    ///
    /// A classic queue refuses other consumers until the [`ExclusiveConsumer`] or every connection
    /// is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when the queue does not exist or has a consumer. [`Error::NameTooLong`].
    pub fn consume_exclusively(&self, queue: &str) -> Result<ExclusiveConsumer, Error> {
        naming::check("queue", queue)?;
        let consuming = self.update(|hub, at| hub.state.consume_exclusively(queue, at));
        let link = consuming.map_err(refused("another client consumes"))?;
        Ok(ExclusiveConsumer {
            broker: self.clone(),
            link,
        })
    }

    /// Removes the ready messages of a queue, and returns how many there were.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when the queue does not exist. [`Error::NameTooLong`].
    pub fn purge(&self, name: &str) -> Result<usize, Error> {
        naming::check("queue", name)?;
        let purged = self.update(|hub, at| hub.state.purge(name, at));
        purged.map_err(refused("another client purges a queue"))
    }

    /// Sets a policy for the present and future queues whose names `applies` accepts, and replaces
    /// the policy of that name. Of several policies that apply to a queue, the one that was set
    /// last takes effect.
    ///
    /// A policy may define `message-ttl`, `expires`, `dead-letter-exchange`,
    /// `dead-letter-routing-key`, `max-length`, `max-length-bytes`, `overflow` and
    /// `delivery-limit`. Where a queue has an argument of the same name, the smaller number takes
    /// effect; for other values, the argument does.
    ///
    /// `applies` is called for every queue now, and for each later queue while it is declared. The
    /// broker is locked during the call: an `applies` that calls this broker, or a connection to
    /// it, deadlocks.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when the definition has any other key.
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

    /// Removes a policy. Has no effect on a missing policy.
    pub fn clear_policy(&self, name: &str) {
        self.update(|hub, at| hub.state.clear_policy(name, at));
    }

    /// Declares a durable exchange, with arguments such as `alternate-exchange`.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when the exchange exists with other properties, or when its name is
    /// reserved. [`Error::NameTooLong`].
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

    /// Deletes an exchange with its bindings. Has no effect on a missing exchange.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] for predeclared exchanges. [`Error::NameTooLong`].
    pub fn delete_exchange(&self, name: &str) -> Result<(), Error> {
        naming::check("exchange", name)?;
        let deleted = self.update(|hub, _| hub.state.delete_exchange(name));
        deleted.map_err(refused("another client deletes an exchange"))
    }

    /// Binds a queue to an exchange. The arguments are those of a headers exchange.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when the queue or the exchange does not exist, and for the default
    /// exchange. [`Error::NameTooLong`].
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

    /// Removes a binding. Has no effect on a missing binding, queue or exchange.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] for the default exchange, and when the queue of the binding is exclusive
    /// to a connection. [`Error::NameTooLong`].
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

/// An exclusive consumer of a queue; dropping it cancels the consumer and requeues its messages.
///
/// Created by
/// [`MemoryBroker::consume_exclusively`](crate::testing::MemoryBroker::consume_exclusively).
#[derive(Debug)]
#[must_use = "dropping it cancels the consumer"]
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
