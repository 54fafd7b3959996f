//! Settling what was handed out, and taking back what a channel leaves behind.

use super::{ChannelId, Moment, State};
use crate::transport::memory::arguments::QueueKind;
use crate::transport::memory::channel::Unacked;
use crate::transport::memory::dead_letter::Reason;
use crate::transport::memory::profile::Profile;
use crate::transport::memory::queue::PutBack;
use crate::transport::memory::refusal::Refusal;

/// What a client says about a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport::memory) enum Verdict {
    Ack,
    Requeue,
    Discard,
}

impl State {
    pub(in crate::transport::memory) fn settle(
        &mut self,
        channel: ChannelId,
        tag: u64,
        multiple: bool,
        verdict: Verdict,
        at: Moment,
    ) -> Result<(), Refusal> {
        let settled = self.channel(channel)?.settle(tag, multiple)?;
        match verdict {
            Verdict::Requeue => self.take_back(settled, false),
            Verdict::Ack | Verdict::Discard => {
                for unacked in settled {
                    self.let_go(unacked, verdict == Verdict::Discard);
                }
            }
        }
        self.settle_down(at);
        Ok(())
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
        self.stir(&name);
    }

    /// Puts messages back where they came from, all of them before any is handed out again.
    fn take_back(&mut self, unacked: Vec<Unacked>, failed: bool) {
        for unacked in unacked {
            let name = unacked.queue_name;
            let Some(queue) = self
                .queues
                .get_mut(&name)
                .filter(|queue| queue.id == unacked.queue)
            else {
                continue;
            };
            let is_classic = queue.kind == QueueKind::Classic;
            if let PutBack::Spent(entry) = queue.put_back(unacked.entry, failed) {
                self.bury(&name, entry, Reason::DeliveryLimit);
            }
            if is_classic {
                self.drop_over_limit(&name);
                self.look_at_head(&name);
            }
            self.stir(&name);
        }
    }

    /// Ends channels at once, so that none of them is handed what another one leaves behind.
    pub(super) fn end_channels(&mut self, ids: &[ChannelId], at: Moment) {
        let ended: Vec<_> = ids
            .iter()
            .filter_map(|id| self.channels.remove(id))
            .collect();
        let mut queues: Vec<&str> = ended
            .iter()
            .flat_map(|channel| channel.consumers.values())
            .map(|consumer| consumer.queue.as_str())
            .collect();
        queues.sort_unstable();
        queues.dedup();
        for queue in queues {
            self.leave(queue, |(channel, _)| ids.contains(channel), at);
        }
        for id in ids {
            self.forget_publisher(*id);
        }
        for channel in ended {
            self.take_back(channel.into_unacked(self.profile), true);
        }
    }

    pub(super) fn forget_publisher(&mut self, channel: ChannelId) {
        for queue in self.queues.values_mut() {
            queue.forget_publisher(channel);
        }
    }
}
