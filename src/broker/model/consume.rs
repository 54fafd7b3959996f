//! Consuming and fetching: the ways out of a queue.

use super::arguments::QueueKind;
use super::channel::{Channel, Consumer, Unacked};
use super::dead_letter::Reason;
use super::profile::Profile;
use super::queue::Queue;
use super::queue_cache::Use;
use super::ready::Entry;
use super::refusal::Refusal;
use super::settle::Verdict;
use super::{ChannelId, ConsumerId, Effect, LinkId, Moment, State, refusal};
use crate::message::delivery::Delivery;
use std::collections::{BTreeMap, BTreeSet};

impl State {
    pub(crate) fn consume(
        &mut self,
        channel: ChannelId,
        name: &str,
    ) -> Result<ConsumerId, Refusal> {
        let link = self.link_of(channel);
        let id = ConsumerId(self.id());
        self.open_queue(name, link)?;
        self.note_use(channel, name, Use::Consume)?;
        let queue = self.open_queue(name, link)?;
        if queue.is_occupied && queue.kind == QueueKind::Classic && !queue.consumers.is_empty() {
            return Err(in_exclusive_use(name));
        }
        queue.had_consumers = true;
        queue.is_occupied = false;
        let channel_of = self.channel(channel)?;
        let consumer = Consumer {
            queue: name.to_owned(),
            prefetch: channel_of.prefetch,
            unacked: 0,
        };
        channel_of.consumers.insert(id, consumer);
        self.line_up(name, channel, id);
        self.stir(name);
        Ok(id)
    }

    /// The last come stands last; but in 4.x those that wait to be a quorum queue's single active consumer stand in the order
    /// of their credit.
    fn line_up(&mut self, name: &str, channel: ChannelId, id: ConsumerId) {
        let Self {
            queues, channels, ..
        } = self;
        let Some(queue) = queues.get_mut(name) else {
            return;
        };
        let credit = |(channel, id): &(ChannelId, ConsumerId)| {
            let consumer = channels.get(channel)?.consumers.get(id)?;
            Some(consumer.quorum_credit())
        };
        let by_credit = queue.kind == QueueKind::Quorum
            && queue.settings.single_active
            && queue.profile == Profile::V4_0;
        let newcomer = (channel, id);
        // The first is active, and stays so.
        let mut waiting = queue.consumers.iter().skip(1);
        let place = waiting
            .position(|waiting| by_credit && credit(waiting) < credit(&newcomer))
            .map_or(queue.consumers.len(), |place| place + 1);
        queue.consumers.insert(place, newcomer);
    }

    /// Ends a consumer. What it was handed stays with its channel.
    pub(crate) fn cancel(
        &mut self,
        channel: ChannelId,
        consumer: ConsumerId,
        at: Moment,
    ) -> Result<(), Refusal> {
        let removed = self.channel(channel)?.consumers.remove(&consumer);
        if let Some(consumer_was) = removed {
            self.leave(&consumer_was.queue, |(_, id)| *id == consumer, at);
            let queue = self.queues.get(&consumer_was.queue);
            if !queue.is_some_and(Queue::is_slow_after_cancel) {
                self.stir(&consumer_was.queue);
            }
        }
        self.settle_down(at);
        Ok(())
    }

    pub(crate) fn fetch(
        &mut self,
        channel: ChannelId,
        name: &str,
        at: Moment,
    ) -> Result<Option<Delivery>, Refusal> {
        let link = self.link_of(channel);
        self.open_queue(name, link)?;
        self.note_use(channel, name, Use::Fetch)?;
        let queue = self.open_queue(name, link)?;
        if queue.settings.single_active && queue.kind == QueueKind::Quorum {
            return Err(Refusal::resource_locked(format!(
                "cannot obtain access to locked {}. basic.get operations are not supported by quorum queues with \
                 single active consumer",
                refusal::queue(name)
            )));
        }
        queue.last_used = at.now;
        if queue.kind == QueueKind::Quorum {
            self.drop_expired(name, at);
        }
        let fetched = self.take_head(name);
        self.stir(name);
        let delivery = fetched.and_then(|entry| self.hand_out(name, channel, None, entry));
        self.settle_down(at);
        Ok(delivery)
    }

    /// Consumes exclusively, on a link of its own.
    pub(crate) fn occupy(&mut self, name: &str, at: Moment) -> Result<LinkId, Refusal> {
        if !self.queue(name)?.consumers.is_empty() {
            return Err(in_exclusive_use(name));
        }
        let link = self.open_link();
        let channel = self.open_channel(link);
        let occupied = self.consume(channel, name);
        if let Some(queue) = self.queues.get_mut(name) {
            queue.is_occupied = occupied.is_ok();
        }
        self.settle_down(at);
        occupied
            .map(|_| link)
            .inspect_err(|_| self.end_link(link, at))
    }

    /// Takes the head of a queue and settles it at once.
    pub(crate) fn take(&mut self, name: &str, at: Moment) -> Result<Option<Delivery>, Refusal> {
        let link = self.open_link();
        let channel = self.open_channel(link);
        let fetched = self.fetch(channel, name, at);
        if let Ok(Some(delivery)) = &fetched {
            self.settle(channel, delivery.tag, false, Verdict::Ack, at)?;
        }
        self.end_link(link, at);
        fetched
    }

    /// Takes consumers off a queue, which may end it.
    pub(crate) fn leave(
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

    /// The queues that have something ready which their active consumer has room for, see [`Queue::is_slow_after_cancel`].
    pub(crate) fn stalled(&self) -> BTreeSet<String> {
        let has_room = |consumer: &_| has_room(&self.channels, consumer);
        let queues = self.queues.iter().filter(|(_, queue)| {
            queue.is_slow_after_cancel()
                && !queue.ready.is_empty()
                && queue.consumers.front().is_some_and(has_room)
        });
        queues.map(|(name, _)| name.clone()).collect()
    }

    /// Removes a queue with its messages, its bindings and its consumers.
    pub(crate) fn remove_queue(&mut self, name: &str) {
        let Some(queue) = self.queues.remove(name) else {
            return;
        };
        for exchange in self.exchanges.values_mut() {
            exchange.bindings.retain(|binding| binding.queue != name);
        }
        self.tell_of_end(&queue);
        for (channel, consumer) in queue.consumers {
            if let Some(channel) = self.channels.get_mut(&channel) {
                channel.consumers.remove(&consumer);
            }
            self.effects.push(Effect::Cancel { channel, consumer });
        }
    }

    /// Has the queue served before the operation ends.
    pub(crate) fn stir(&mut self, queue: &str) {
        self.stirred.insert(queue.to_owned());
    }

    /// Puts a message into a queue. A classic queue hands it out first and looks at limits and times afterwards.
    pub(crate) fn enqueue(&mut self, name: &str, entry: Entry) {
        let Some(queue) = self.queues.get(name) else {
            return;
        };
        if queue.kind == QueueKind::Classic
            && queue.ready.is_empty()
            && let Some((channel, consumer)) = self.next_consumer(name)
        {
            self.deliver_to(name, channel, consumer, entry);
            return;
        }
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        queue.insert(entry);
        if queue.kind == QueueKind::Classic {
            let is_only = queue.ready.len() == 1;
            let dropped = self.drop_over_limit(name);
            if is_only || dropped {
                self.look_at_head(name);
            }
        }
        self.stir(name);
    }

    /// Has a classic queue look whether its head has expired.
    pub(crate) fn look_at_head(&mut self, name: &str) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.looks_at_head = true;
        }
    }

    /// Takes the head, after which the next one is looked at.
    fn take_head(&mut self, name: &str) -> Option<Entry> {
        let queue = self.queues.get_mut(name)?;
        queue.looks_at_head = true;
        queue.ready.pop()
    }

    /// Drops what has expired or is too much, and hands out the rest.
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
            if let Some(entry) = self.take_head(name) {
                self.deliver_to(name, channel, consumer, entry);
            }
        }
        self.drop_over_limit(name);
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        queue.tell_publishers();
        // A quorum queue sends what it drops on its way before what came back too often.
        for entry in std::mem::take(&mut queue.spent) {
            self.bury(name, entry, Reason::DeliveryLimit);
        }
    }

    /// Drops heads whose time is over, where the queue looks.
    fn drop_expired(&mut self, name: &str, at: Moment) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        let looks = std::mem::take(&mut queue.looks_at_head) || queue.kind == QueueKind::Quorum;
        while looks
            && let Some(entry) = self
                .queues
                .get_mut(name)
                .and_then(|queue| queue.pop_expired(at.now))
        {
            self.bury(name, entry, Reason::Expired);
        }
    }

    /// Whether there was too much. What a quorum queue drops at once is dead-lettered last first.
    pub(crate) fn drop_over_limit(&mut self, name: &str) -> bool {
        let Some(queue) = self.queues.get_mut(name) else {
            return false;
        };
        let mut dropped: Vec<Entry> = std::iter::from_fn(|| queue.pop_over_limit()).collect();
        if queue.kind == QueueKind::Quorum {
            dropped.reverse();
        }
        let was_too_much = !dropped.is_empty();
        for entry in dropped {
            self.bury(name, entry, Reason::MaxLength);
        }
        was_too_much
    }

    /// The consumer whose turn it is, of those that may be handed one more; it goes to the end of the line.
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
        let passed = queue.consumers.iter().take(place.unwrap_or(usize::MAX));
        queue
            .passed_over
            .extend(passed.map(|(_, consumer)| *consumer));
        let place = place?;
        let next = queue.consumers.remove(place)?;
        queue.consumers.push_back(next);
        Some(next)
    }

    fn deliver_to(&mut self, name: &str, channel: ChannelId, consumer: ConsumerId, entry: Entry) {
        if let Some(delivery) = self.hand_out(name, channel, Some(consumer), entry) {
            self.effects.push(Effect::Deliver {
                channel,
                consumer,
                delivery: Box::new(delivery),
            });
        }
    }

    /// Notes that a channel has the message now.
    fn hand_out(
        &mut self,
        name: &str,
        channel: ChannelId,
        consumer: Option<ConsumerId>,
        entry: Entry,
    ) -> Option<Delivery> {
        let queue = self.queues.get_mut(name)?;
        queue.unacked += 1;
        let (queue_id, kind, profile) = (queue.id, queue.kind, queue.profile);
        let message = entry.message.clone();
        // The broker counts what came back, and before that what another quorum queue has counted.
        let count = match (kind, entry.returned) {
            (QueueKind::Classic, _) => 0,
            (QueueKind::Quorum, 0) => entry.failed,
            (QueueKind::Quorum, returned) => returned,
        };
        let redelivered = entry.redelivered || count > 0;
        let mut headers = message.headers.clone();
        // What is fetched from 3.x shows a count of zero as well.
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
            entry,
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

/// Whether the consumer may be handed one more.
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
