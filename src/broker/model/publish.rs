//! Publishing and dead-lettering: the ways into a queue.

use super::arguments::QueueKind;
use super::dead_letter::{Passing, Reason, is_cycle};
use super::message::Message;
use super::profile::Profile;
use super::queue::Admission;
use super::queue_cache::Use;
use super::ready::Entry;
use super::refusal::Refusal;
use super::{ChannelId, Effect, Moment, State, refusal};
use crate::message::delivery::{Outgoing, Returned};
use crate::transport::Confirm;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A message that has left a queue and goes to its dead-letter exchange.
#[derive(Debug)]
pub(crate) struct Letter {
    message: Arc<Message>,
    reason: Reason,
    queue: String,
    exchange: String,
    routing_key: Option<String>,
}

/// What became of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Published {
    /// Every queue that it was routed to has it.
    Confirmed,
    /// No queue took it.
    Unroutable,
    /// A queue rejected it.
    Rejected,
}

impl State {
    pub(crate) fn publish(
        &mut self,
        channel: ChannelId,
        outgoing: &Outgoing,
        at: Moment,
    ) -> Result<(), Refusal> {
        let exchange = self.exchange(&outgoing.exchange)?;
        if exchange.internal {
            return Err(Refusal::access_refused(format!(
                "cannot publish to internal {}",
                refusal::exchange(&outgoing.exchange)
            )));
        }
        let message = Message::published(outgoing, self.profile)?;
        let tag = self.channel(channel)?.next_publish();
        if tag.is_some() && self.faults.nack > 0 {
            self.faults.nack -= 1;
            self.confirm(channel, tag, false);
            return Ok(());
        }
        let queues = self.route(&message.exchange, &message);
        for queue in &queues {
            self.note_use(channel, queue, Use::Publish)?;
        }
        let published = self.deliver(Arc::new(message), queues, channel, at);
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
        self.settle_down(at);
        Ok(())
    }

    /// Publishes without a channel, as somebody else's client would.
    pub(crate) fn publish_raw(
        &mut self,
        outgoing: &Outgoing,
        at: Moment,
    ) -> Result<Published, Refusal> {
        let exchange = self.exchange(&outgoing.exchange)?;
        if exchange.internal {
            return Err(Refusal::access_refused(format!(
                "cannot publish to internal {}",
                refusal::exchange(&outgoing.exchange)
            )));
        }
        let message = Message::published(outgoing, self.profile)?;
        // A client of its own for each message: it asks a full queue first.
        let channel = ChannelId(self.id());
        let queues = self.route(&message.exchange, &message);
        let published = self.deliver(Arc::new(message), queues, channel, at);
        self.forget_publisher(channel);
        self.settle_down(at);
        Ok(published)
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

    /// Offers a message to each queue. A channel makes itself known to a quorum queue and waits for the answer before it sends
    /// the first message: meanwhile the other queues have the message, and may have dead-lettered something.
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
            let is_stranger = queue.is_stranger(publisher);
            let admission = queue.admit(&message, Some(publisher));
            if is_stranger {
                late.push((name, admission));
            } else if !self.take_in(&name, &message, admission, at) {
                published = Published::Rejected;
            }
        }
        if !late.is_empty() {
            self.settle_down_but_for_quorum_queues(at);
        }
        for (queue, admission) in late {
            if !self.take_in(&queue, &message, admission, at) {
                published = Published::Rejected;
            }
        }
        published
    }

    /// The queues that a message goes to, each once. Alternate exchanges are followed, round in a circle if need be.
    fn route(&self, exchange: &str, message: &Message) -> BTreeSet<String> {
        let keys = &message.routing_keys;
        if exchange.is_empty() {
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
        queues.retain(|queue| self.queues.contains_key(queue));
        queues
    }

    /// Does what the queue has decided. Whether it has the message then.
    fn take_in(
        &mut self,
        name: &str,
        message: &Arc<Message>,
        admission: Admission,
        at: Moment,
    ) -> bool {
        match admission {
            Admission::Taken => {
                let Some(queue) = self.queues.get_mut(name) else {
                    return false;
                };
                let entry = queue.entry(message.clone(), at.now);
                self.enqueue(name, entry);
                true
            }
            Admission::Rejected => false,
            Admission::RejectedDead => {
                self.bury_message(name, message.clone(), Reason::MaxLength);
                false
            }
        }
    }

    /// Lets a message go: to the dead-letter exchange, if the queue has one.
    pub(crate) fn bury(&mut self, queue: &str, entry: Entry, reason: Reason) {
        let mut message = entry.message;
        let carries_failures = self.profile == Profile::V4_0;
        if carries_failures && message.failed_deliveries < entry.failed {
            Arc::make_mut(&mut message).failed_deliveries = entry.failed;
        }
        self.bury_message(queue, message, reason);
    }

    fn bury_message(&mut self, name: &str, message: Arc<Message>, reason: Reason) {
        let Some(queue) = self.queues.get(name) else {
            return;
        };
        let settings = &queue.settings;
        if let Some(exchange) = &settings.dead_letter_exchange {
            self.letters.push_back(Letter {
                message,
                reason,
                queue: name.to_owned(),
                exchange: exchange.clone(),
                routing_key: settings.dead_letter_routing_key.clone(),
            });
        }
    }

    /// Serves the queues and publishes the dead letters until nothing moves any more. A dead letter comes to a queue like any
    /// other message, even to the one that it has just left: that one hands out what it can before it is back.
    pub(crate) fn settle_down(&mut self, at: Moment) {
        loop {
            if let Some(queue) = self.stirred.pop_first() {
                self.serve(&queue, at);
            } else if let Some(letter) = self.letters.pop_front() {
                self.send_letter(&letter, at);
            } else {
                return;
            }
        }
    }

    /// What happens before a quorum queue has written anything.
    fn settle_down_but_for_quorum_queues(&mut self, at: Moment) {
        let queues = &self.queues;
        let is_quorum = |name: &String| {
            let queue = queues.get(name);
            queue.is_some_and(|queue| queue.kind == QueueKind::Quorum)
        };
        let writing: Vec<String> = self.stirred.extract_if(.., is_quorum).collect();
        self.settle_down(at);
        self.stirred.extend(writing);
    }

    fn send_letter(&mut self, letter: &Letter, at: Moment) {
        if !self.exchanges.contains_key(&letter.exchange) {
            return;
        }
        let passing = Passing {
            reason: letter.reason,
            queue: &letter.queue,
            exchange: &letter.exchange,
            routing_key: letter.routing_key.as_deref(),
            epoch_millis: at.epoch_millis,
        };
        let message = Arc::new(passing.letter(&letter.message, self.profile));
        for name in self.route(&letter.exchange, &message) {
            if !is_cycle(&message, &name, letter.reason, self.profile)
                && let Some(queue) = self.queues.get_mut(&name)
                && !(self.is_leaderless && queue.kind == QueueKind::Quorum)
            {
                let admission = queue.admit(&message, None);
                self.take_in(&name, &message, admission, at);
            }
        }
    }
}
