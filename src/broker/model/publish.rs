//! Publishing and dead-lettering: the ways into a queue.

use super::arguments::QueueKind;
use super::dead_letter::{DeadLettering, DeathReason, is_cycle};
use super::ids::{ChannelId, Moment};
use super::message::Message;
use super::profile::Profile;
use super::queue::Admission;
use super::ready::QueuedMessage;
use super::refusal::{self, Refusal};
use super::{BrokerState, Effect};
use crate::message::delivery::{Outgoing, Returned};
use crate::transport::Confirm;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A message that has left its queue and is not yet routed by the dead-letter exchange.
#[derive(Debug)]
pub(crate) struct DeadLetter {
    message: Arc<Message>,
    reason: DeathReason,
    queue: String,
    exchange: String,
    routing_key: Option<String>,
}

/// The result of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Published {
    /// Every queue that the message was routed to has accepted it.
    Confirmed,
    /// The message was routed to no queue.
    Unroutable,
    /// A queue rejected the message.
    Rejected,
}

impl BrokerState {
    /// Publishes on a channel, and confirms if the channel is in confirm mode.
    pub(crate) fn publish(
        &mut self,
        channel: ChannelId,
        outgoing: &Outgoing,
        at: Moment,
    ) -> Result<(), Refusal> {
        self.check_publishable(&outgoing.exchange)?;
        let message = Message::published(outgoing, self.profile)?;
        let tag = self.channel(channel)?.next_publish();
        if tag.is_some() && self.faults.nack > 0 {
            // The tag is used up before this check: a nacked publish is numbered like any other.
            self.faults.nack -= 1;
            self.confirm(channel, tag, false);
            return Ok(());
        }
        let queues = self.route(&message.exchange, &message);
        let published = self.deliver(Arc::new(message), queues, channel, at);
        // RabbitMQ sends the return before the confirm of the same publish.
        if published == Published::Unroutable && outgoing.mandatory {
            let returned = Returned {
                exchange: outgoing.exchange.clone(),
                routing_key: outgoing.routing_key.clone(),
                message_id: outgoing.properties.message_id.clone(),
                text: "312 NO_ROUTE".to_owned(),
            };
            self.effects.push(Effect::Return { channel, returned });
        }
        if tag.is_some() && self.faults.lose > 0 {
            self.faults.lose -= 1;
        } else {
            self.confirm(channel, tag, published != Published::Rejected);
        }
        self.run_to_quiescence(at);
        Ok(())
    }

    /// Publishes as another client, which has no channel here.
    pub(crate) fn publish_raw(
        &mut self,
        outgoing: &Outgoing,
        at: Moment,
    ) -> Result<Published, Refusal> {
        self.check_publishable(&outgoing.exchange)?;
        let message = Message::published(outgoing, self.profile)?;
        // A publisher that is new to every queue, so a full quorum queue rejects the message.
        let channel = ChannelId(self.next_id());
        let queues = self.route(&message.exchange, &message);
        let published = self.deliver(Arc::new(message), queues, channel, at);
        self.forget_publisher(channel);
        self.run_to_quiescence(at);
        Ok(published)
    }

    fn check_publishable(&self, exchange: &str) -> Result<(), Refusal> {
        if self.exchange(exchange)?.internal {
            return Err(Refusal::access_refused(format!(
                "cannot publish to internal {}",
                refusal::exchange(exchange)
            )));
        }
        Ok(())
    }

    fn confirm(&mut self, channel: ChannelId, tag: Option<u64>, ack: bool) {
        if let Some(tag) = tag {
            let confirm = Confirm {
                tag,
                multiple: false,
                ack,
            };
            self.effects.push(Effect::Confirm { channel, confirm });
        }
    }

    /// Offers a message to each queue.
    ///
    /// A channel registers with a quorum queue and waits for the answer before it sends the first
    /// message. The other queues have the message by then, and may have dead-lettered something.
    fn deliver(
        &mut self,
        message: Arc<Message>,
        queues: BTreeSet<String>,
        publisher: ChannelId,
        at: Moment,
    ) -> Published {
        let mut published = if queues.is_empty() {
            Published::Unroutable
        } else {
            Published::Confirmed
        };
        let mut late = Vec::new();
        for name in queues {
            let Some(queue) = self.queues.get_mut(&name) else {
                continue;
            };
            let is_unregistered = queue.is_unregistered(publisher);
            // The queue decides at registration: dead letters that arrive in between change
            // nothing.
            let admission = queue.admit(&message, Some(publisher));
            if is_unregistered {
                late.push((name, admission));
            } else if !self.apply_admission(&name, &message, admission, at) {
                published = Published::Rejected;
            }
        }
        if !late.is_empty() {
            self.run_classic_to_quiescence(at);
        }
        for (queue, admission) in late {
            if !self.apply_admission(&queue, &message, admission, at) {
                published = Published::Rejected;
            }
        }
        published
    }

    /// The queues that a message is routed to. Alternate exchanges are followed, each at most once.
    fn route(&self, exchange: &str, message: &Message) -> BTreeSet<String> {
        let keys = &message.routing_keys;
        if exchange.is_empty() {
            // The default exchange binds every queue by its name.
            let queues = keys.iter().filter(|key| self.queues.contains_key(*key));
            return queues.cloned().collect();
        }
        let mut queues = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut next = Some(exchange);
        while let Some(exchange) = next.and_then(|name| self.exchanges.get(name)) {
            if !seen.insert(&exchange.name) {
                break;
            }
            exchange.route(keys, &message.headers, self.profile, &mut queues);
            next = exchange.alternate().filter(|_| queues.is_empty());
        }
        // A lost queue keeps its bindings for its return.
        queues.retain(|queue| self.queues.contains_key(queue));
        queues
    }

    /// Carries out the decision of a queue, and returns whether the queue has the message.
    fn apply_admission(
        &mut self,
        name: &str,
        message: &Arc<Message>,
        admission: Admission,
        at: Moment,
    ) -> bool {
        match admission {
            Admission::Accepted => {
                let Some(queue) = self.queues.get_mut(name) else {
                    return false;
                };
                let queued = queue.queued(message.clone(), at.now);
                self.enqueue(name, queued);
                true
            }
            Admission::Rejected => false,
            Admission::RejectedDeadLettered => {
                self.dead_letter_message(name, message.clone(), DeathReason::MaxLength);
                false
            }
        }
    }

    /// Drops a message from its queue, to the dead-letter exchange if the queue has one.
    pub(crate) fn dead_letter(&mut self, queue: &str, queued: QueuedMessage, reason: DeathReason) {
        let mut message = queued.message;
        // 4.x passes the count of failed deliveries on to the next quorum queue.
        let carries_failures = self.profile == Profile::V4_0;
        if carries_failures && message.failed_deliveries < queued.failed {
            Arc::make_mut(&mut message).failed_deliveries = queued.failed;
        }
        self.dead_letter_message(queue, message, reason);
    }

    fn dead_letter_message(&mut self, name: &str, message: Arc<Message>, reason: DeathReason) {
        let Some(queue) = self.queues.get(name) else {
            return;
        };
        let settings = &queue.settings;
        if let Some(exchange) = &settings.dead_letter_exchange {
            self.dead_letters.push_back(DeadLetter {
                message,
                reason,
                queue: name.to_owned(),
                exchange: exchange.clone(),
                routing_key: settings.dead_letter_routing_key.clone(),
            });
        }
    }

    /// Serves the dirty queues and routes the dead letters until there are none.
    ///
    /// Queues are served first: a queue that dead-letters to itself delivers what it can before the
    /// dead letter returns.
    pub(crate) fn run_to_quiescence(&mut self, at: Moment) {
        loop {
            if let Some(queue) = self.dirty.pop_first() {
                self.serve(&queue, at);
            } else if let Some(dead_letter) = self.dead_letters.pop_front() {
                self.route_dead_letter(&dead_letter, at);
            } else {
                return;
            }
        }
    }

    /// Runs what happens before a quorum queue has written anything.
    fn run_classic_to_quiescence(&mut self, at: Moment) {
        let queues = &self.queues;
        let is_quorum = |name: &String| {
            let queue = queues.get(name);
            queue.is_some_and(|queue| queue.kind == QueueKind::Quorum)
        };
        let quorum: Vec<String> = self.dirty.extract_if(.., is_quorum).collect();
        self.run_to_quiescence(at);
        self.dirty.extend(quorum);
    }

    fn route_dead_letter(&mut self, dead_letter: &DeadLetter, at: Moment) {
        // RabbitMQ drops a dead letter whose exchange is missing at this moment.
        if !self.exchanges.contains_key(&dead_letter.exchange) {
            return;
        }
        let dead_lettering = DeadLettering {
            reason: dead_letter.reason,
            queue: &dead_letter.queue,
            exchange: &dead_letter.exchange,
            routing_key: dead_letter.routing_key.as_deref(),
            epoch_millis: at.epoch_millis,
        };
        let message = Arc::new(dead_lettering.apply(&dead_letter.message, self.profile));
        for name in self.route(&dead_letter.exchange, &message) {
            if !is_cycle(&message, &name, dead_letter.reason, self.profile)
                && let Some(queue) = self.queues.get_mut(&name)
                && !(self.is_leaderless && queue.kind == QueueKind::Quorum)
            {
                let admission = queue.admit(&message, None);
                self.apply_admission(&name, &message, admission, at);
            }
        }
    }
}
