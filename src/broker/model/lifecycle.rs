//! Expiry, stopping and starting, and queues whose node is down.

use super::arguments::QueueKind;
use super::ids::{Moment, QueueId};
use super::queue::{PutBack, Queue};
use super::refusal::{self, Refusal};
use super::{BrokerState, Effect};
use std::time::Instant;

impl BrokerState {
    /// When [`expire`](Self::expire) has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.queues.values().filter_map(Queue::due).min()
    }

    /// Removes unused queues and dead-letters messages whose time is over.
    pub(crate) fn expire(&mut self, at: Moment) {
        let is_over = |due: Option<Instant>| due.is_some_and(|due| due <= at.now);
        let unused: Vec<String> = self
            .queues
            .values()
            .filter(|queue| is_over(queue.unused_until()))
            .map(|queue| queue.name.clone())
            .collect();
        for queue in unused {
            self.remove_queue(&queue);
        }
        self.expire_messages(at, |_| true);
    }

    fn expire_messages(&mut self, at: Moment, of: impl Fn(&Queue) -> bool) {
        let due: Vec<String> = self
            .queues
            .values()
            .filter(|queue| of(queue) && queue.due().is_some_and(|due| due <= at.now))
            .map(|queue| queue.name.clone())
            .collect();
        for name in due {
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.fire_head_timer(at.now);
            }
            self.mark_dirty(&name);
        }
        self.run_to_quiescence(at);
    }

    /// Removes what does not survive a stop. Every connection has ended before.
    pub(crate) fn stop(&mut self) {
        let transient: Vec<String> = self
            .queues
            .values()
            .filter(|queue| !queue.durable)
            .map(|queue| queue.name.clone())
            .collect();
        for queue in transient {
            self.remove_queue(&queue);
        }
        self.exchanges.retain(|_, exchange| exchange.durable);
        // Quorum queues write every message to disk, persistent or not.
        for queue in self.queues.values_mut() {
            if queue.kind == QueueKind::Classic {
                queue.ready.retain(|queued| queued.message.is_persistent());
            }
        }
        self.is_leaderless = true;
    }

    /// Expires what was due while the broker was down, as a single node does: classic queues first,
    /// quorum queues when they have leaders.
    pub(crate) fn start(&mut self, at: Moment) {
        let is_classic = |queue: &Queue| queue.kind == QueueKind::Classic;
        // Only a quorum queue persists the time of its last use.
        for queue in self.queues.values_mut().filter(|queue| is_classic(queue)) {
            queue.last_used = at.now;
        }
        self.expire_messages(at, is_classic);
        self.is_leaderless = false;
        self.expire(at);
    }

    /// Takes a queue down with its messages. Its unsettled messages are ready when it returns: the
    /// node of a lost queue receives no settlement, then or later.
    pub(crate) fn lose_queue(&mut self, name: &str, at: Moment) {
        let Some(mut queue) = self.queues.remove(name) else {
            return;
        };
        for (id, consumer) in queue.consumers.drain(..) {
            if let Some(channel) = self.channels.get_mut(&id) {
                channel.consumers.remove(&consumer);
            }
            self.effects.push(Effect::Cancel {
                channel: id,
                consumer,
            });
        }
        for channel in self.channels.values() {
            for queued in channel.held_of(queue.id) {
                if let PutBack::OverDeliveryLimit(queued) = queue.put_back(queued.clone(), true) {
                    queue.over_delivery_limit.push(queued);
                }
            }
        }
        // A new id makes later settlements of the old deliveries miss the queue.
        queue.id = QueueId(self.next_id());
        self.lost_queues.insert(name.to_owned(), queue);
        self.run_to_quiescence(at);
    }

    /// Brings a lost queue back.
    pub(crate) fn restore_queue(&mut self, name: &str, at: Moment) {
        if let Some(mut queue) = self.lost_queues.remove(name) {
            queue.last_used = at.now;
            self.queues.insert(name.to_owned(), queue);
            // Policies may have changed while the queue was lost.
            self.apply_policy(name, at);
            self.mark_dirty(name);
            self.run_to_quiescence(at);
        }
    }

    /// Refuses the declaration of a lost queue.
    pub(crate) fn check_not_lost(&self, name: &str) -> Result<(), Refusal> {
        if self.lost_queues.contains_key(name) {
            return Err(Refusal::not_found(format!(
                "home node of durable {} is down or inaccessible",
                refusal::queue(name)
            )));
        }
        Ok(())
    }
}
