//! What channels remember of the queues that they have used.
//!
//! RabbitMQ's channel keeps, by its name, what it needs to speak to a queue of that kind. It is not always told when the queue
//! ends, and falls over a queue of the other kind that has the name next. Its whole connection goes with it.

use super::arguments::QueueKind;
use super::profile::Profile;
use super::queue::Queue;
use super::refusal::Refusal;
use super::{ChannelId, State};

/// What a channel does with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Publish,
    Consume,
    Fetch,
}

impl State {
    /// Takes note that a channel uses a queue.
    pub(crate) fn note_use(
        &mut self,
        channel_id: ChannelId,
        name: &str,
        how: Use,
    ) -> Result<(), Refusal> {
        let Self {
            queues, channels, ..
        } = self;
        let (Some(queue), Some(channel)) = (queues.get_mut(name), channels.get_mut(&channel_id))
        else {
            return Ok(());
        };
        let known = channel.known.entry(name.to_owned()).or_insert(queue.kind);
        if *known != queue.kind {
            return Err(Refusal::internal_error(format!(
                "the channel takes the {} queue '{name}' for a {} one that had its name",
                queue.kind.as_str(),
                known.as_str()
            )));
        }
        let is_watched = match queue.kind {
            QueueKind::Classic => how != Use::Fetch || queue.profile == Profile::V4_0,
            // Its consumers are told too, but only those that it has when it ends.
            QueueKind::Quorum => how == Use::Publish,
        };
        if is_watched {
            queue.watchers.insert(channel_id);
        }
        Ok(())
    }

    /// Has the channels that are told of the end of a queue forget it.
    pub(crate) fn tell_of_end(&mut self, queue: &Queue) {
        for (id, channel) in &mut self.channels {
            let is_consumer = |(channel, _): &(ChannelId, _)| channel == id;
            let is_told = queue.watchers.contains(id)
                || queue.consumers.iter().any(is_consumer)
                // A quorum queue counts whoever has fetched and not settled among its consumers.
                || queue.kind == QueueKind::Quorum && channel.held_of(queue.id).next().is_some();
            if is_told {
                channel.known.remove(&queue.name);
            }
        }
    }
}
