//! Declaring, checking, binding, purging and deleting.

use super::arguments::QueueKind;
use super::exchange::{Binding, Exchange};
use super::ids::{LinkId, Moment, QueueId};
use super::profile::Profile;
use super::queue::Queue;
use super::refusal::{self, Refusal};
use super::{BrokerState, arguments, equivalence, exchange};
use crate::message::headers::Headers;
use crate::topology::declaration::Declaration;

/// The flags of a queue declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFlags {
    pub(crate) durable: bool,
    pub(crate) exclusive: bool,
    pub(crate) auto_delete: bool,
}

impl BrokerState {
    /// Declares a queue, an exchange or a binding for the connection `link`.
    pub(crate) fn declare(
        &mut self,
        declaration: &Declaration,
        link: Option<LinkId>,
        at: Moment,
    ) -> Result<(), Refusal> {
        match declaration {
            Declaration::Exchange {
                name,
                kind,
                durable,
            } => self.declare_exchange(Exchange::new(name, *kind, *durable)),
            Declaration::Queue {
                name,
                durable,
                exclusive,
                auto_delete,
                arguments,
            } => {
                let flags = QueueFlags {
                    durable: *durable,
                    exclusive: *exclusive,
                    auto_delete: *auto_delete,
                };
                self.declare_queue(name, flags, arguments, link, at)
            }
            Declaration::Binding {
                queue,
                exchange,
                routing_key,
            } => {
                let binding = Binding {
                    queue: queue.clone(),
                    routing_key: routing_key.clone(),
                    arguments: Headers::new(),
                };
                self.bind(exchange, binding, link)
            }
        }
    }

    /// Checks that a queue or an exchange exists, by a passive declaration. AMQP has none for
    /// bindings.
    pub(crate) fn check(
        &mut self,
        declaration: &Declaration,
        link: Option<LinkId>,
        at: Moment,
    ) -> Result<(), Refusal> {
        match declaration {
            Declaration::Exchange { name, .. } => {
                check_not_default(name)?;
                self.exchange(name).map(drop)
            }
            Declaration::Queue { name, .. } => self.count(name, link, at).map(drop),
            Declaration::Binding { .. } => Ok(()),
        }
    }

    /// The number of ready messages. The request counts as a use of the queue.
    pub(crate) fn count(
        &mut self,
        name: &str,
        link: Option<LinkId>,
        at: Moment,
    ) -> Result<usize, Refusal> {
        let queue = self.open_queue(name, link)?;
        queue.last_used = at.now;
        Ok(queue.ready.len())
    }

    pub(crate) fn declare_queue(
        &mut self,
        name: &str,
        flags: QueueFlags,
        arguments: &Headers,
        link: Option<LinkId>,
        at: Moment,
    ) -> Result<(), Refusal> {
        let id = QueueId(self.next_id());
        // The id makes the name of a server-named queue unique, where RabbitMQ uses a random text.
        let generated = format!("amq.gen-{:022}", id.0);
        let name = match name {
            "" if arguments.get("x-queue-type").and_then(|kind| kind.as_str())
                == Some("quorum") =>
            {
                return Err(Refusal::precondition_failed(
                    "Cannot declare a server-named queue for type rabbit_quorum_queue",
                ));
            }
            "" => &generated,
            reserved if reserved.starts_with("amq.") => {
                return Err(Refusal::access_refused(format!(
                    "queue name '{reserved}' contains reserved prefix 'amq.*'"
                )));
            }
            name => name,
        };
        self.check_not_lost(name)?;
        let owner = link.filter(|_| flags.exclusive);
        // An exclusive queue is never durable: it ends with its connection.
        let durable = flags.durable && !flags.exclusive;
        let mut arguments = arguments.clone();
        if self.profile == Profile::V4_0 && !arguments.contains("x-queue-type") {
            // 4.x adds the default type, and compares later declarations with the result.
            arguments.insert("x-queue-type", "classic");
        }
        if let Some(existing) = self.queues.get(name) {
            return check_equivalent(existing, owner, durable, flags, &arguments);
        }
        let (kind, settings) = arguments::read(name, &arguments, self.profile)?;
        if kind == QueueKind::Quorum {
            let wrong = [
                ("auto-delete", flags.auto_delete),
                ("exclusive-owner", flags.exclusive),
                ("non-durable", !durable),
            ];
            if let Some((property, _)) = wrong.iter().find(|(_, wrong)| *wrong) {
                return Err(Refusal::precondition_failed(format!(
                    "invalid property '{property}' for {}",
                    refusal::queue(name)
                )));
            }
        }
        let mut queue = Queue::new(id, name, kind, settings, self.profile, at.now);
        queue.durable = durable;
        queue.owner = owner;
        queue.auto_delete = flags.auto_delete;
        queue.arguments = arguments;
        self.queues.insert(name.to_owned(), queue);
        self.apply_policy(name, at);
        Ok(())
    }

    pub(crate) fn declare_exchange(&mut self, exchange: Exchange) -> Result<(), Refusal> {
        let name = &exchange.name;
        check_not_default(name)?;
        if let Some(existing) = self.exchanges.get(name) {
            return exchange::check_equivalent(
                existing,
                exchange.kind,
                exchange.durable,
                exchange.internal,
                &exchange.arguments,
            );
        }
        if name.starts_with("amq.") {
            return Err(Refusal::access_refused(format!(
                "exchange name '{name}' contains reserved prefix 'amq.*'"
            )));
        }
        if let Some(alternate) = exchange.arguments.get("alternate-exchange")
            && alternate.as_str().is_none()
        {
            return Err(Refusal::precondition_failed(format!(
                "invalid type for arg 'alternate-exchange' in {}",
                refusal::exchange(name)
            )));
        }
        self.exchanges.insert(name.clone(), exchange);
        Ok(())
    }

    pub(crate) fn bind(
        &mut self,
        exchange: &str,
        binding: Binding,
        link: Option<LinkId>,
    ) -> Result<(), Refusal> {
        check_not_default(exchange)?;
        self.queue(&binding.queue)?;
        // RabbitMQ checks the arguments of the binding before the owner of the queue.
        self.exchange(exchange)?.check(&binding)?;
        self.open_queue(&binding.queue, link)?;
        if let Some(exchange) = self.exchanges.get_mut(exchange) {
            exchange.bind(binding);
        }
        Ok(())
    }

    /// Removes a binding. A missing binding is no error, even if its queue or exchange does not
    /// exist or is exclusive to another connection.
    pub(crate) fn unbind(
        &mut self,
        exchange: &str,
        binding: &Binding,
        link: Option<LinkId>,
    ) -> Result<(), Refusal> {
        check_not_default(exchange)?;
        let known = self.exchanges.get(exchange);
        if known.is_some_and(|known| known.bindings.contains(binding)) {
            self.open_queue(&binding.queue, link)?;
        }
        if let Some(exchange) = self.exchanges.get_mut(exchange) {
            exchange.bindings.retain(|other| other != binding);
        }
        Ok(())
    }

    /// Deletes a queue with its messages. A missing queue is no error.
    pub(crate) fn delete_queue(
        &mut self,
        name: &str,
        link: Option<LinkId>,
        at: Moment,
    ) -> Result<(), Refusal> {
        if self.queues.contains_key(name) {
            self.open_queue(name, link)?;
            self.remove_queue(name);
            self.run_to_quiescence(at);
        }
        Ok(())
    }

    pub(crate) fn delete_exchange(&mut self, name: &str) -> Result<(), Refusal> {
        check_not_default(name)?;
        if name.starts_with("amq.") {
            return Err(Refusal::access_refused(format!(
                "deletion of system {} not allowed",
                refusal::exchange(name)
            )));
        }
        self.exchanges.remove(name);
        Ok(())
    }

    /// Removes the ready messages of a queue, exclusive or not, and returns how many there were.
    pub(crate) fn purge(&mut self, name: &str, at: Moment) -> Result<usize, Refusal> {
        let owner = self.queue(name)?.owner;
        let queue = self.open_queue(name, owner)?;
        let ready = queue.ready.len();
        queue.ready.clear();
        self.mark_dirty(name);
        self.run_to_quiescence(at);
        Ok(ready)
    }
}

fn check_not_default(exchange: &str) -> Result<(), Refusal> {
    if exchange.is_empty() {
        return Err(Refusal::access_refused(
            "operation not permitted on the default exchange",
        ));
    }
    Ok(())
}

fn check_equivalent(
    existing: &Queue,
    owner: Option<LinkId>,
    durable: bool,
    flags: QueueFlags,
    arguments: &Headers,
) -> Result<(), Refusal> {
    let name = &existing.name;
    if owner != existing.owner {
        return Err(Refusal::locked_queue(name));
    }
    for (argument, received, current) in [
        ("durable", durable, existing.durable),
        ("auto_delete", flags.auto_delete, existing.auto_delete),
    ] {
        if received != current {
            return Err(Refusal::precondition_failed(format!(
                "inequivalent arg '{argument}' for {}: \
                 received '{received}' but current is '{current}'",
                refusal::queue(name)
            )));
        }
    }
    equivalence::check_equivalent(
        &refusal::queue(name),
        &arguments::known(existing.kind, existing.profile),
        &existing.arguments,
        arguments,
    )
}
