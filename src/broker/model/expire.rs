//! What happens by itself: times run out, and a broker that stops and starts again has forgotten things.

use super::arguments::QueueKind;
use super::queue::Queue;
use super::{Moment, State};
use std::time::Instant;

impl State {
    /// When [`expire`](Self::expire) has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.queues.values().filter_map(|queue| queue.due()).min()
    }

    /// Lets go of what is over.
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
                queue.look_now(at.now);
            }
            self.stir(&name);
        }
        self.settle_down(at);
    }

    /// Forgets what does not survive a stop; every link has ended before.
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
        for queue in self.queues.values_mut() {
            if queue.kind == QueueKind::Classic {
                queue.ready.retain(|entry| entry.message.is_persistent());
            }
        }
        self.is_leaderless = true;
    }

    /// Lets go of what was over while the broker was down, as a node does that is alone: classic queues at once, quorum queues when
    /// they have leaders.
    pub(crate) fn start(&mut self, at: Moment) {
        let is_classic = |queue: &Queue| queue.kind == QueueKind::Classic;
        // A quorum queue has written down when it was used.
        for queue in self.queues.values_mut().filter(|queue| is_classic(queue)) {
            queue.last_used = at.now;
        }
        self.expire_messages(at, is_classic);
        self.is_leaderless = false;
        self.expire(at);
    }
}
