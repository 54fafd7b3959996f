//! Settling deliveries, and requeueing the unsettled messages of a channel that ends.

use super::BrokerState;
use super::arguments::QueueKind;
use super::channel::Unacked;
use super::dead_letter::DeathReason;
use super::ids::{ChannelId, ConsumerId, Moment};
use super::profile::Profile;
use super::queue::PutBack;
use super::refusal::Refusal;
use std::collections::BTreeSet;

/// How a client settles a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settlement {
    Ack,
    Requeue,
    Discard,
}

impl BrokerState {
    /// Settles one delivery, or with `multiple` all up to it.
    pub(crate) fn settle(
        &mut self,
        channel: ChannelId,
        tag: u64,
        multiple: bool,
        settlement: Settlement,
        at: Moment,
    ) -> Result<(), Refusal> {
        // Only consumers that were full before the settlement return to a line.
        let full = self.channel(channel)?.full_consumers();
        let settled = self.channel(channel)?.settle(tag, multiple)?;
        for consumer in full {
            self.rejoin(channel, consumer);
        }
        match settlement {
            Settlement::Requeue => self.requeue(settled, false),
            Settlement::Ack | Settlement::Discard => {
                for unacked in settled {
                    // The consumer has room again, so its queue may have something to deliver.
                    self.mark_dirty(&unacked.queue_name);
                    self.complete(unacked, settlement == Settlement::Discard);
                }
            }
        }
        self.run_to_quiescence(at);
        Ok(())
    }

    /// Moves a consumer that was full, and has room again, to the end of its queue's line.
    fn rejoin(&mut self, channel: ChannelId, consumer: ConsumerId) {
        let Self {
            queues, channels, ..
        } = self;
        if let Some(channel) = channels.get(&channel)
            && channel.has_room(consumer)
            && let Some(queue) = channel.consumers.get(&consumer)
            && let Some(queue) = queues.get_mut(&queue.queue)
        {
            queue.rejoin(consumer);
        }
    }

    /// Ends the stay of a message in its queue. A rejected message is dead-lettered.
    fn complete(&mut self, unacked: Unacked, rejected: bool) {
        let Unacked {
            queue: id,
            queue_name: name,
            mut queued,
            ..
        } = unacked;
        // The queue may have been deleted and declared again since the delivery.
        let Some(queue) = self.queues.get_mut(&name).filter(|queue| queue.id == id) else {
            return;
        };
        queue.unacked = queue.unacked.saturating_sub(1);
        if rejected {
            if queue.kind == QueueKind::Quorum && queue.profile == Profile::V4_0 {
                queued.failed += 1;
            }
            self.dead_letter(&name, queued, DeathReason::Rejected);
        }
    }

    /// Requeues messages. All of them are back before a queue delivers one again, or a classic
    /// queue drops one.
    fn requeue(&mut self, unacked: Vec<Unacked>, failed: bool) {
        let mut classic = BTreeSet::new();
        for unacked in unacked {
            let name = unacked.queue_name;
            let Some(queue) = self
                .queues
                .get_mut(&name)
                .filter(|queue| queue.id == unacked.queue)
            else {
                continue;
            };
            if queue.kind == QueueKind::Classic {
                classic.insert(name.clone());
            }
            if let PutBack::OverDeliveryLimit(queued) = queue.put_back(unacked.queued, failed) {
                queue.over_delivery_limit.push(queued);
            }
            self.mark_dirty(&name);
        }
        for name in classic {
            self.drop_over_limit(&name);
            self.schedule_head_check(&name);
        }
    }

    /// Ends channels together, so that none of them receives what another one requeues.
    ///
    /// A channel of RabbitMQ cancels its consumers of classic queues and waits for it; quorum
    /// queues notice that the channel is gone. So the former requeue and dead-letter before the
    /// latter.
    pub(crate) fn end_channels(&mut self, ids: &[ChannelId], at: Moment) {
        let ended: Vec<_> = ids
            .iter()
            .filter_map(|id| self.channels.remove(id))
            .collect();
        let (classic, others): (BTreeSet<String>, BTreeSet<String>) = ended
            .iter()
            .flat_map(|channel| channel.consumers.values())
            .map(|consumer| consumer.queue.clone())
            .partition(|name| {
                let queue = self.queues.get(name);
                queue.is_some_and(|queue| queue.kind == QueueKind::Classic)
            });
        for id in ids {
            self.forget_publisher(*id);
        }
        self.remove_consumers_of(ids, &classic, at);
        let mut rest = Vec::new();
        for channel in ended {
            let unacked = channel.into_unacked(self.profile).into_iter();
            let (first, later): (Vec<_>, Vec<_>) =
                unacked.partition(|unacked| classic.contains(&unacked.queue_name));
            self.requeue(first, true);
            rest.push(later);
        }
        self.run_to_quiescence(at);
        self.remove_consumers_of(ids, &others, at);
        for later in rest {
            self.requeue(later, true);
        }
    }

    /// Removes the consumers of these channels from the queues.
    fn remove_consumers_of(&mut self, ids: &[ChannelId], queues: &BTreeSet<String>, at: Moment) {
        for queue in queues {
            self.remove_consumers(queue, |(channel, _)| ids.contains(channel), at);
            self.mark_dirty(queue);
        }
    }

    pub(crate) fn forget_publisher(&mut self, channel: ChannelId) {
        for queue in self.queues.values_mut() {
            queue.forget_publisher(channel);
        }
    }
}
