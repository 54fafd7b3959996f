//! Queues on a cluster node that is down: known, and not there.

use super::queue::PutBack;
use super::refusal::Refusal;
use super::{Effect, Moment, QueueId, State, refusal};

impl State {
    /// Takes a queue away with its messages. What is handed out is ready when it comes back: what clients say about it meanwhile,
    /// or afterwards, its node does not hear.
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
            for entry in channel.held_of(queue.id) {
                if let PutBack::Spent(entry) = queue.put_back(entry.clone(), true) {
                    queue.spent.push(entry);
                }
            }
        }
        queue.id = QueueId(self.id());
        self.lost.insert(name.to_owned(), queue);
        self.settle_down(at);
    }

    /// Brings it back.
    pub(crate) fn find_queue(&mut self, name: &str, at: Moment) {
        if let Some(mut queue) = self.lost.remove(name) {
            queue.last_used = at.now;
            self.queues.insert(name.to_owned(), queue);
            self.apply_policy(name, at);
            self.stir(name);
            self.settle_down(at);
        }
    }

    /// The answer to whoever declares a queue that is lost.
    pub(crate) fn check_not_lost(&self, name: &str) -> Result<(), Refusal> {
        if self.lost.contains_key(name) {
            return Err(Refusal::not_found(format!(
                "home node of durable {} is down or inaccessible",
                refusal::queue(name)
            )));
        }
        Ok(())
    }
}
