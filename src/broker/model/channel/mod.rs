//! A channel: its consumers, what it has not settled yet, and whether it confirms.

use super::arguments::QueueKind;
use super::profile::Profile;
use super::ready::Entry;
use super::refusal::Refusal;
use super::{ConsumerId, LinkId, QueueId};
use std::collections::BTreeMap;

/// The credit that a quorum queue gives a consumer without a limit.
const UNLIMITED_CREDIT: u16 = 2_000;

/// A channel.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) link: LinkId,
    /// For consumers that begin from now on; zero is no limit.
    pub(crate) prefetch: u16,
    pub(crate) consumers: BTreeMap<ConsumerId, Consumer>,
    /// What it takes the queues for that it has used.
    pub(crate) known: BTreeMap<String, QueueKind>,
    unacked: BTreeMap<u64, Unacked>,
    last_tag: u64,
    /// The tag of the last publish, once the channel confirms.
    confirms: Option<u64>,
}

/// A consumer, on the side of its channel.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) queue: String,
    pub(crate) prefetch: u16,
    pub(crate) unacked: usize,
}

/// A message that was handed out.
#[derive(Clone, Debug)]
pub(crate) struct Unacked {
    pub(crate) queue: QueueId,
    pub(crate) queue_name: String,
    /// None for what was fetched.
    pub(crate) consumer: Option<ConsumerId>,
    pub(crate) entry: Entry,
}

impl Consumer {
    /// What a quorum queue takes for its credit.
    pub(crate) fn quorum_credit(&self) -> u16 {
        match self.prefetch {
            0 => UNLIMITED_CREDIT,
            prefetch => prefetch,
        }
    }
}

impl Channel {
    pub(crate) fn new(link: LinkId) -> Self {
        Self {
            link,
            prefetch: 0,
            consumers: BTreeMap::new(),
            known: BTreeMap::new(),
            unacked: BTreeMap::new(),
            last_tag: 0,
            confirms: None,
        }
    }

    /// How much is handed out and not settled.
    pub(crate) fn unacked(&self) -> usize {
        self.unacked.len()
    }

    /// What of that queue is handed out and not settled.
    pub(crate) fn held_of(&self, queue: QueueId) -> impl Iterator<Item = &Entry> {
        let unacked = self.unacked.values();
        let of_queue = unacked.filter(move |unacked| unacked.queue == queue);
        of_queue.map(|unacked| &unacked.entry)
    }

    /// Whether the consumer may be handed one more.
    pub(crate) fn has_room(&self, consumer: ConsumerId) -> bool {
        self.consumers.get(&consumer).is_some_and(|consumer| {
            consumer.prefetch == 0 || consumer.unacked < usize::from(consumer.prefetch)
        })
    }

    /// The consumers that may not be handed anything.
    pub(crate) fn full_consumers(&self) -> Vec<ConsumerId> {
        let ids = self.consumers.keys().copied();
        ids.filter(|id| !self.has_room(*id)).collect()
    }

    /// Lets the consumer be handed one more than before.
    pub(crate) fn credit(&mut self, consumer: ConsumerId) {
        if let Some(consumer) = self.consumers.get_mut(&consumer)
            && consumer.prefetch > 0
        {
            consumer.prefetch = consumer.prefetch.saturating_add(1);
        }
    }

    /// Notes what is handed out, and returns its tag.
    pub(crate) fn hand_out(&mut self, unacked: Unacked) -> u64 {
        if let Some(consumer) = unacked.consumer
            && let Some(consumer) = self.consumers.get_mut(&consumer)
        {
            consumer.unacked += 1;
        }
        self.last_tag += 1;
        self.unacked.insert(self.last_tag, unacked);
        self.last_tag
    }

    /// Takes what is settled by `tag`, oldest first.
    pub(crate) fn settle(&mut self, tag: u64, multiple: bool) -> Result<Vec<Unacked>, Refusal> {
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
            if let Some(consumer) = unacked.consumer
                && let Some(consumer) = self.consumers.get_mut(&consumer)
            {
                consumer.unacked = consumer.unacked.saturating_sub(1);
            }
        }
        Ok(settled)
    }

    /// Everything that is not settled, in the order in which it goes back when the channel ends. A classic queue puts each
    /// message in its place; a quorum queue takes them consumer by consumer, and knows what was fetched by its tag in text.
    pub(crate) fn into_unacked(self, profile: Profile) -> Vec<Unacked> {
        let mut unacked: Vec<(u64, Unacked)> = self.unacked.into_iter().collect();
        unacked.sort_by_cached_key(|(tag, unacked)| {
            let fetched = unacked.consumer.is_none();
            let is_late = fetched == (profile == Profile::V4_0);
            let by_text = fetched.then(|| tag.to_string());
            (is_late, unacked.consumer, by_text, *tag)
        });
        unacked.into_iter().map(|(_, unacked)| unacked).collect()
    }

    pub(crate) fn begin_to_confirm(&mut self) {
        self.confirms.get_or_insert(0);
    }

    /// The tag of the next publish, if the channel confirms.
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
mod tests;
