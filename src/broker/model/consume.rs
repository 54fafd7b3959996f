//! Consuming and fetching: the ways out of a queue.

use super::arguments::QueueKind;
use super::channel::{Channel, Consumer, Unacked};
use super::dead_letter::DeathReason;
use super::ids::{ChannelId, ConsumerId, LinkId, Moment};
use super::profile::Profile;
use super::ready::QueuedMessage;
use super::refusal::{self, Refusal};
use super::settle::Settlement;
use super::{BrokerState, Effect};
use crate::message::delivery::Delivery;
use std::collections::BTreeMap;

impl BrokerState {
    /// Adds a consumer with the channel's prefetch at the end of the queue's line.
    pub(crate) fn consume(
        &mut self,
        channel: ChannelId,
        name: &str,
    ) -> Result<ConsumerId, Refusal> {
        let link = self.link_of(channel);
        let id = ConsumerId(self.next_id());
        let prefetch = self.channel(channel)?.prefetch;
        let queue = self.open_queue(name, link)?;
        // A quorum queue of RabbitMQ does not enforce the exclusiveness of its consumer.
        if queue.has_exclusive_consumer
            && queue.kind == QueueKind::Classic
            && !queue.consumers.is_empty()
        {
            return Err(in_exclusive_use(name));
        }
        queue.had_consumers = true;
        queue.has_exclusive_consumer = false;
        queue.consumers.push_back((channel, id));
        let consumer = Consumer {
            queue: name.to_owned(),
            prefetch,
            unacked: 0,
        };
        self.channel(channel)?.consumers.insert(id, consumer);
        self.mark_dirty(name);
        Ok(id)
    }

    /// Ends a consumer. Its unsettled messages stay with its channel.
    pub(crate) fn cancel(
        &mut self,
        channel: ChannelId,
        consumer: ConsumerId,
        at: Moment,
    ) -> Result<(), Refusal> {
        let removed = self.channel(channel)?.consumers.remove(&consumer);
        if let Some(Consumer { queue, .. }) = removed {
            self.remove_consumers(&queue, |(_, id)| *id == consumer, at);
            // A single active consumer leaves its turn to the next one.
            self.mark_dirty(&queue);
        }
        self.run_to_quiescence(at);
        Ok(())
    }

    /// Takes the head of a queue for the channel to settle.
    pub(crate) fn fetch(
        &mut self,
        channel: ChannelId,
        name: &str,
        at: Moment,
    ) -> Result<Option<Delivery>, Refusal> {
        let link = self.link_of(channel);
        let queue = self.open_queue(name, link)?;
        if queue.settings.single_active && queue.kind == QueueKind::Quorum {
            return Err(Refusal::resource_locked(format!(
                "cannot obtain access to locked {}. basic.get operations are not supported by \
                 quorum queues with single active consumer",
                refusal::queue(name)
            )));
        }
        queue.last_used = at.now;
        // A classic queue checks its head only after a change, so it can return an expired one.
        if queue.kind == QueueKind::Quorum {
            self.drop_expired(name, at);
        }
        let fetched = self.take_head(name);
        self.mark_dirty(name);
        let delivery = fetched.and_then(|queued| self.hand_out(name, channel, None, queued));
        self.run_to_quiescence(at);
        Ok(delivery)
    }

    /// Consumes exclusively, on a connection that is opened for it.
    pub(crate) fn consume_exclusively(
        &mut self,
        name: &str,
        at: Moment,
    ) -> Result<LinkId, Refusal> {
        if !self.queue(name)?.consumers.is_empty() {
            return Err(in_exclusive_use(name));
        }
        let link = self.open_link();
        let channel = self.open_channel(link);
        let consuming = self.consume(channel, name);
        if let Some(queue) = self.queues.get_mut(name) {
            queue.has_exclusive_consumer = consuming.is_ok();
        }
        self.run_to_quiescence(at);
        consuming
            .map(|_| link)
            .inspect_err(|_| self.end_link(link, at))
    }

    /// Takes the head of a queue and acknowledges it.
    pub(crate) fn take(&mut self, name: &str, at: Moment) -> Result<Option<Delivery>, Refusal> {
        let link = self.open_link();
        let channel = self.open_channel(link);
        let fetched = self.fetch(channel, name, at);
        if let Ok(Some(delivery)) = &fetched {
            self.settle(channel, delivery.tag, false, Settlement::Ack, at)?;
        }
        // A refused fetch ends the connection as well.
        self.end_link(link, at);
        fetched
    }

    /// Removes consumers from a queue. An auto-delete queue ends with its last consumer.
    pub(crate) fn remove_consumers(
        &mut self,
        name: &str,
        is_leaving: impl Fn(&(ChannelId, ConsumerId)) -> bool,
        at: Moment,
    ) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        queue.consumers.retain(|consumer| !is_leaving(consumer));
        queue.last_used = at.now;
        if queue.auto_delete && queue.had_consumers && queue.consumers.is_empty() {
            self.remove_queue(name);
        }
    }

    /// Removes a queue with its messages, its bindings and its consumers.
    pub(crate) fn remove_queue(&mut self, name: &str) {
        let Some(queue) = self.queues.remove(name) else {
            return;
        };
        for exchange in self.exchanges.values_mut() {
            exchange.bindings.retain(|binding| binding.queue != name);
        }
        for (channel, consumer) in queue.consumers {
            if let Some(channel) = self.channels.get_mut(&channel) {
                channel.consumers.remove(&consumer);
            }
            self.effects.push(Effect::Cancel { channel, consumer });
        }
    }

    /// Has the queue served before the operation ends.
    pub(crate) fn mark_dirty(&mut self, queue: &str) {
        self.dirty.insert(queue.to_owned());
    }

    /// Puts a message into a queue. A classic queue first delivers it if it can, and applies limits
    /// and times to live only to what stays.
    pub(crate) fn enqueue(&mut self, name: &str, queued: QueuedMessage) {
        let Some(queue) = self.queues.get(name) else {
            return;
        };
        if queue.kind == QueueKind::Classic
            && queue.ready.is_empty()
            && let Some((channel, consumer)) = self.next_consumer(name)
        {
            self.deliver_to(name, channel, consumer, queued);
            return;
        }
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        queue.insert(queued);
        if queue.kind == QueueKind::Classic {
            let is_only = queue.ready.len() == 1;
            let dropped = self.drop_over_limit(name);
            if is_only || dropped {
                self.schedule_head_check(name);
            }
        }
        self.mark_dirty(name);
    }

    /// Has a classic queue check whether its head has expired.
    pub(crate) fn schedule_head_check(&mut self, name: &str) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.head_check_pending = true;
        }
    }

    /// Takes the head. The next message becomes the head, so it is checked for expiry.
    fn take_head(&mut self, name: &str) -> Option<QueuedMessage> {
        let queue = self.queues.get_mut(name)?;
        queue.head_check_pending = true;
        queue.ready.pop()
    }

    /// Serves a dirty queue: drops what has expired, delivers, and drops what exceeds the limits.
    pub(crate) fn serve(&mut self, name: &str, at: Moment) {
        loop {
            self.drop_expired(name, at);
            let is_empty = self
                .queues
                .get(name)
                .is_none_or(|queue| queue.ready.is_empty());
            if is_empty {
                break;
            }
            let Some((channel, consumer)) = self.next_consumer(name) else {
                break;
            };
            if let Some(queued) = self.take_head(name) {
                self.deliver_to(name, channel, consumer, queued);
            }
        }
        self.drop_over_limit(name);
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        queue.notify_publishers();
        // A quorum queue dead-letters these after the messages that exceed its length.
        for queued in std::mem::take(&mut queue.over_delivery_limit) {
            self.dead_letter(name, queued, DeathReason::DeliveryLimit);
        }
    }

    /// Drops expired heads, if the queue checks its head now.
    fn drop_expired(&mut self, name: &str, at: Moment) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        let checks_head =
            std::mem::take(&mut queue.head_check_pending) || queue.kind == QueueKind::Quorum;
        while checks_head
            && let Some(queued) = self
                .queues
                .get_mut(name)
                .and_then(|queue| queue.pop_expired(at.now))
        {
            self.dead_letter(name, queued, DeathReason::Expired);
        }
    }

    /// Drops heads that exceed the queue's limits, and returns whether there were any.
    pub(crate) fn drop_over_limit(&mut self, name: &str) -> bool {
        let Some(queue) = self.queues.get_mut(name) else {
            return false;
        };
        let mut dropped: Vec<QueuedMessage> =
            std::iter::from_fn(|| queue.pop_over_limit()).collect();
        if queue.kind == QueueKind::Quorum {
            // A quorum queue dead-letters what it drops together in reverse order.
            dropped.reverse();
        }
        let was_over_limit = !dropped.is_empty();
        for queued in dropped {
            self.dead_letter(name, queued, DeathReason::MaxLength);
        }
        was_over_limit
    }

    /// The first consumer in line that has room; it moves to the end of the line.
    fn next_consumer(&mut self, name: &str) -> Option<(ChannelId, ConsumerId)> {
        let Self {
            queues, channels, ..
        } = self;
        let queue = queues.get_mut(name)?;
        let has_room = |consumer: &_| has_room(channels, consumer);
        if queue.settings.single_active {
            return queue.consumers.front().copied().filter(has_room);
        }
        let place = queue.consumers.iter().position(has_room);
        // If no consumer has room, all of them are skipped.
        let skipped = queue.consumers.iter().take(place.unwrap_or(usize::MAX));
        queue
            .skipped_while_full
            .extend(skipped.map(|(_, consumer)| *consumer));
        let place = place?;
        let next = queue.consumers.remove(place)?;
        queue.consumers.push_back(next);
        Some(next)
    }

    fn deliver_to(
        &mut self,
        name: &str,
        channel: ChannelId,
        consumer: ConsumerId,
        queued: QueuedMessage,
    ) {
        if let Some(delivery) = self.hand_out(name, channel, Some(consumer), queued) {
            self.effects.push(Effect::Deliver {
                channel,
                consumer,
                delivery: Box::new(delivery),
            });
        }
    }

    /// Moves a message from its queue to the unsettled messages of a channel. A fetched message has
    /// no consumer.
    fn hand_out(
        &mut self,
        name: &str,
        channel: ChannelId,
        consumer: Option<ConsumerId>,
        queued: QueuedMessage,
    ) -> Option<Delivery> {
        let queue = self.queues.get_mut(name)?;
        queue.unacked += 1;
        let (queue_id, kind, profile) = (queue.id, queue.kind, queue.profile);
        let message = queued.message.clone();
        // Until the message returns to this queue, the count of the quorum queue before it stands.
        let count = match (kind, queued.returned) {
            (QueueKind::Classic, _) => 0,
            (QueueKind::Quorum, 0) => queued.failed,
            (QueueKind::Quorum, returned) => returned,
        };
        let redelivered = queued.redelivered || count > 0;
        let mut headers = message.headers.clone();
        // 3.x includes a count of zero in fetched messages, and in no others.
        let shows_zero =
            kind == QueueKind::Quorum && profile == Profile::V3_10 && consumer.is_none();
        if count > 0 || shows_zero {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            headers.insert("x-delivery-count", count);
        }
        let tag = self.channels.get_mut(&channel)?.hand_out(Unacked {
            queue: queue_id,
            queue_name: name.to_owned(),
            consumer,
            queued,
        });
        Some(Delivery {
            tag,
            redelivered,
            exchange: message.exchange.clone(),
            routing_key: message.routing_key().to_owned(),
            properties: message.properties.clone(),
            headers,
            body: message.body.clone(),
        })
    }
}

/// Whether the consumer's prefetch admits one more message.
fn has_room(
    channels: &BTreeMap<ChannelId, Channel>,
    (channel, consumer): &(ChannelId, ConsumerId),
) -> bool {
    let channel = channels.get(channel);
    channel.is_some_and(|channel| channel.has_room(*consumer))
}

fn in_exclusive_use(queue: &str) -> Refusal {
    Refusal::access_refused(format!("{} in exclusive use", refusal::queue(queue)))
}
