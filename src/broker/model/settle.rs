//! Settling what was handed out, and taking back what a channel leaves behind.

use super::arguments::QueueKind;
use super::channel::Unacked;
use super::dead_letter::Reason;
use super::profile::Profile;
use super::queue::PutBack;
use super::refusal::Refusal;
use super::{ChannelId, ConsumerId, Moment, State};
use std::collections::BTreeSet;

/// What a client says about a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ack,
    Requeue,
    Discard,
}

impl State {
    pub(crate) fn settle(
        &mut self,
        channel: ChannelId,
        tag: u64,
        multiple: bool,
        verdict: Verdict,
        at: Moment,
    ) -> Result<(), Refusal> {
        let stalled = self.stalled();
        let full = self.channel(channel)?.full_consumers();
        let settled = self.channel(channel)?.settle(tag, multiple)?;
        for consumer in full {
            self.rejoin(channel, consumer);
        }
        match verdict {
            Verdict::Requeue => self.take_back(channel, settled, false),
            Verdict::Ack | Verdict::Discard => {
                for unacked in settled {
                    let queue = unacked.queue_name.clone();
                    self.let_go(unacked, verdict == Verdict::Discard);
                    // A queue that is told of a settled message only looks whether a consumer has room again.
                    if !stalled.contains(&queue) {
                        self.stir(&queue);
                    }
                }
            }
        }
        self.settle_down(at);
        Ok(())
    }

    /// Puts a consumer that was full, and is so no more, at the end of its queue's line.
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

    fn let_go(&mut self, unacked: Unacked, rejected: bool) {
        let Unacked {
            queue: id,
            queue_name: name,
            mut entry,
            ..
        } = unacked;
        let Some(queue) = self.queues.get_mut(&name).filter(|queue| queue.id == id) else {
            return;
        };
        queue.unacked = queue.unacked.saturating_sub(1);
        if rejected {
            if queue.kind == QueueKind::Quorum && queue.profile == Profile::V4_0 {
                entry.failed += 1;
            }
            self.bury(&name, entry, Reason::Rejected);
        }
    }

    /// Puts messages back where they came from, all of them before any is handed out again or dropped by a classic queue.
    fn take_back(&mut self, channel: ChannelId, unacked: Vec<Unacked>, failed: bool) {
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
            if let PutBack::Spent(entry) = queue.put_back(unacked.entry, failed) {
                queue.spent.push(entry);
                self.credit_twice(channel, unacked.consumer);
            }
            self.stir(&name);
        }
        for name in classic {
            self.drop_over_limit(&name);
            self.look_at_head(&name);
        }
    }

    /// Ends channels at once, so that none of them is handed what another one leaves behind. A channel tells the classic queues
    /// that it consumes from, and waits for them; the others see that it is gone, after what those have dead-lettered.
    pub(crate) fn end_channels(&mut self, ids: &[ChannelId], at: Moment) {
        let ended: Vec<_> = ids
            .iter()
            .filter_map(|id| self.channels.remove_entry(id))
            .collect();
        let (told, others): (BTreeSet<String>, BTreeSet<String>) = ended
            .iter()
            .flat_map(|(_, channel)| channel.consumers.values())
            .map(|consumer| consumer.queue.clone())
            .partition(|name| {
                let queue = self.queues.get(name);
                queue.is_some_and(|queue| queue.kind == QueueKind::Classic)
            });
        for id in ids {
            self.forget_publisher(*id);
        }
        self.leave_all(&told, ids, at);
        let mut rest = Vec::new();
        for (id, channel) in ended {
            let unacked = channel.into_unacked(self.profile).into_iter();
            let (first, later) = unacked.partition(|unacked| told.contains(&unacked.queue_name));
            self.take_back(id, first, true);
            rest.push((id, later));
        }
        self.settle_down(at);
        self.leave_all(&others, ids, at);
        for (id, later) in rest {
            self.take_back(id, later, true);
        }
    }

    /// Takes the consumers of these channels off the queues.
    fn leave_all(&mut self, queues: &BTreeSet<String>, ids: &[ChannelId], at: Moment) {
        for queue in queues {
            self.leave(queue, |(channel, _)| ids.contains(channel), at);
            self.stir(queue);
        }
    }

    /// 3.x counts what has come back too often twice, as come back and as dropped: the consumer is handed one more than its
    /// prefetch from then on.
    fn credit_twice(&mut self, channel: ChannelId, consumer: Option<ConsumerId>) {
        let channel = self.channels.get_mut(&channel);
        if self.profile == Profile::V3_10
            && let (Some(channel), Some(consumer)) = (channel, consumer)
        {
            channel.credit(consumer);
        }
    }

    pub(crate) fn forget_publisher(&mut self, channel: ChannelId) {
        for queue in self.queues.values_mut() {
            queue.forget_publisher(channel);
        }
    }
}
