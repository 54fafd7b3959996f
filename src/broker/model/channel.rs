//! A channel: its consumers, its unsettled messages, and the numbers of its publishes.

use super::ids::{ConsumerId, LinkId, QueueId};
use super::profile::Profile;
use super::ready::QueuedMessage;
use super::refusal::Refusal;
use std::collections::BTreeMap;

/// A channel.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) link: LinkId,
    /// The prefetch of consumers that subscribe from now on; zero is no limit.
    pub(crate) prefetch: u16,
    pub(crate) consumers: BTreeMap<ConsumerId, Consumer>,
    /// By delivery tag, so oldest first.
    unacked: BTreeMap<u64, Unacked>,
    last_tag: u64,
    /// The tag of the last publish, once the channel is in confirm mode.
    confirms: Option<u64>,
}

/// A consumer as its channel knows it.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) queue: String,
    pub(crate) prefetch: u16,
    pub(crate) unacked: usize,
}

/// A delivered message that is not settled.
#[derive(Clone, Debug)]
pub(crate) struct Unacked {
    pub(crate) queue: QueueId,
    pub(crate) queue_name: String,
    /// None for a fetched message.
    pub(crate) consumer: Option<ConsumerId>,
    pub(crate) queued: QueuedMessage,
}

impl Channel {
    pub(crate) fn new(link: LinkId) -> Self {
        Self {
            link,
            prefetch: 0,
            consumers: BTreeMap::new(),
            unacked: BTreeMap::new(),
            last_tag: 0,
            confirms: None,
        }
    }

    /// The number of unsettled messages.
    pub(crate) fn unacked(&self) -> usize {
        self.unacked.len()
    }

    /// The unsettled messages of a queue.
    pub(crate) fn held_of(&self, queue: QueueId) -> impl Iterator<Item = &QueuedMessage> {
        let unacked = self.unacked.values();
        let of_queue = unacked.filter(move |unacked| unacked.queue == queue);
        of_queue.map(|unacked| &unacked.queued)
    }

    /// Whether the consumer's prefetch admits one more message.
    pub(crate) fn has_room(&self, consumer: ConsumerId) -> bool {
        self.consumers.get(&consumer).is_some_and(|consumer| {
            consumer.prefetch == 0 || consumer.unacked < usize::from(consumer.prefetch)
        })
    }

    /// The consumers whose prefetch is used up.
    pub(crate) fn full_consumers(&self) -> Vec<ConsumerId> {
        let ids = self.consumers.keys().copied();
        ids.filter(|id| !self.has_room(*id)).collect()
    }

    /// Adds an unsettled message, and returns its delivery tag.
    pub(crate) fn hand_out(&mut self, unacked: Unacked) -> u64 {
        // A fetched message has no consumer and uses no prefetch.
        if let Some(consumer) = unacked.consumer
            && let Some(consumer) = self.consumers.get_mut(&consumer)
        {
            consumer.unacked += 1;
        }
        self.last_tag += 1;
        self.unacked.insert(self.last_tag, unacked);
        self.last_tag
    }

    /// Removes the messages that `tag` settles, oldest first.
    pub(crate) fn settle(&mut self, tag: u64, multiple: bool) -> Result<Vec<Unacked>, Refusal> {
        // In AMQP the tag zero stands for all unsettled deliveries, even if there are none.
        let settled = if multiple && tag == 0 {
            std::mem::take(&mut self.unacked)
        } else if !self.unacked.contains_key(&tag) {
            return Err(Refusal::precondition_failed(format!(
                "unknown delivery tag {tag}"
            )));
        } else if multiple {
            let rest = self.unacked.split_off(&(tag + 1));
            std::mem::replace(&mut self.unacked, rest)
        } else {
            self.unacked.remove_entry(&tag).into_iter().collect()
        };
        let settled: Vec<Unacked> = settled.into_values().collect();
        for unacked in &settled {
            // A cancelled consumer is gone, while its deliveries are still to be settled.
            if let Some(consumer) = unacked.consumer
                && let Some(consumer) = self.consumers.get_mut(&consumer)
            {
                consumer.unacked = consumer.unacked.saturating_sub(1);
            }
        }
        Ok(settled)
    }

    /// The unsettled messages in the order in which they are requeued when the channel ends.
    ///
    /// The order matters to quorum queues only: a classic queue puts each message in its place. A
    /// quorum queue requeues consumer by consumer; fetched messages count as consumers of their own
    /// that are named by their tag, so they are ordered by its text.
    pub(crate) fn into_unacked(self, profile: Profile) -> Vec<Unacked> {
        let mut unacked: Vec<(u64, Unacked)> = self.unacked.into_iter().collect();
        unacked.sort_by_cached_key(|(tag, unacked)| {
            let fetched = unacked.consumer.is_none();
            // 3.x requeues fetched messages first, 4.x requeues them last.
            let is_late = fetched == (profile == Profile::V4_0);
            let by_text = fetched.then(|| tag.to_string());
            (is_late, unacked.consumer, by_text, *tag)
        });
        unacked.into_iter().map(|(_, unacked)| unacked).collect()
    }

    /// Enters confirm mode; a second time changes nothing.
    pub(crate) fn begin_to_confirm(&mut self) {
        self.confirms.get_or_insert(0);
    }

    /// The tag of the next publish; none unless the channel is in confirm mode.
    pub(crate) fn next_publish(&mut self) -> Option<u64> {
        let tag = self.confirms.as_mut()?;
        *tag += 1;
        Some(*tag)
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests {
    use super::*;
    use crate::broker::model::message::Message;
    use crate::message::headers::{Headers, Properties};
    use std::sync::Arc;

    fn unacked(consumer: Option<u64>) -> Unacked {
        let message = Message {
            exchange: String::new(),
            routing_keys: Vec::new(),
            blind_keys: Vec::new(),
            properties: Properties::default(),
            headers: Headers::new(),
            body: Arc::default(),
            deaths: Vec::new(),
            failed_deliveries: 0,
        };
        Unacked {
            queue: QueueId(1),
            queue_name: "q".to_owned(),
            consumer: consumer.map(ConsumerId),
            queued: QueuedMessage {
                message: Arc::new(message),
                place: 0,
                expires: None,
                redelivered: false,
                returned: 0,
                failed: 0,
            },
        }
    }

    fn channel(prefetch: u16) -> Channel {
        let mut channel = Channel::new(LinkId(1));
        let consumer = Consumer {
            queue: "q".to_owned(),
            prefetch,
            unacked: 0,
        };
        channel.consumers.insert(ConsumerId(1), consumer);
        channel
    }

    #[test]
    fn prefetch_counts_consumed_messages_and_not_fetched_ones() {
        let mut channel = channel(2);
        channel.hand_out(unacked(None));
        for _ in 0..2 {
            assert!(channel.has_room(ConsumerId(1)));
            channel.hand_out(unacked(Some(1)));
        }
        assert!(!channel.has_room(ConsumerId(1)));
        channel.settle(1, false).unwrap();
        assert!(
            !channel.has_room(ConsumerId(1)),
            "the fetched message took no room"
        );
        channel.settle(3, false).unwrap();
        assert!(channel.has_room(ConsumerId(1)));
    }

    #[test]
    fn prefetch_of_zero_is_no_limit() {
        let mut channel = channel(0);
        for _ in 0..1000 {
            channel.hand_out(unacked(Some(1)));
        }
        assert!(channel.has_room(ConsumerId(1)));
    }

    #[test]
    fn each_tag_is_settled_once_singly_or_with_multiple() {
        let mut channel = channel(0);
        for tag in 1..=5 {
            assert_eq!(channel.hand_out(unacked(Some(1))), tag);
        }
        assert_eq!(channel.settle(2, false).unwrap().len(), 1);
        assert_eq!(channel.settle(4, true).unwrap().len(), 3);
        for settled in [2, 4, 9] {
            assert_eq!(channel.settle(settled, false).unwrap_err().code, 406);
            assert_eq!(channel.settle(settled, true).unwrap_err().code, 406);
        }
        assert_eq!(channel.settle(0, true).unwrap().len(), 1);
        assert!(channel.settle(0, true).unwrap().is_empty());
    }

    #[test]
    fn publishes_are_numbered_from_confirm_mode_on() {
        let mut channel = channel(0);
        assert_eq!(channel.next_publish(), None);
        channel.begin_to_confirm();
        assert_eq!(channel.next_publish(), Some(1));
        channel.begin_to_confirm();
        assert_eq!(channel.next_publish(), Some(2));
    }
}
