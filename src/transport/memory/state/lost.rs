//! Queues on a cluster node that is down: known, and not there.

use super::{Effect, Moment, State};
use crate::transport::memory::refusal::{self, Refusal};

impl State {
    /// Takes a queue away with its messages. What is handed out comes back with it.
    pub(in crate::transport::memory) fn lose_queue(&mut self, name: &str, at: Moment) {
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
        self.lost.insert(name.to_owned(), queue);
        self.settle_down(at);
    }

    /// Brings it back.
    pub(in crate::transport::memory) fn find_queue(&mut self, name: &str, at: Moment) {
        if let Some(mut queue) = self.lost.remove(name) {
            queue.last_used = at.now;
            self.queues.insert(name.to_owned(), queue);
            self.stir(name);
            self.settle_down(at);
        }
    }

    /// The answer to whoever declares a queue that is lost.
    pub(super) fn check_not_lost(&self, name: &str) -> Result<(), Refusal> {
        if self.lost.contains_key(name) {
            return Err(Refusal::not_found(format!(
                "home node of durable {} is down or inaccessible",
                refusal::queue(name)
            )));
        }
        Ok(())
    }
}
