//! The ready messages of a queue, in the order of their delivery.

use super::arguments::QueueKind;
use super::message::Message;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// A message in one queue.
#[derive(Clone, Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) message: Arc<Message>,
    /// Its place in the queue: a sequence number of the publish.
    pub(crate) place: u64,
    pub(crate) expires: Option<Instant>,
    pub(crate) redelivered: bool,
    /// The number of times a quorum queue has requeued it.
    pub(crate) returned: u64,
    /// The number of its failed deliveries, which counts for 4.x.
    pub(crate) failed: u64,
}

/// The ready messages of a queue and their size.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    order: Order,
    bytes: u64,
}

#[derive(Clone, Debug)]
enum Order {
    /// By priority, highest first, then by place: a requeued message takes its old place.
    Classic(BTreeMap<(Reverse<u8>, u64), QueuedMessage>),
    Quorum(Quorum),
}

/// Requeued messages come first, in the order in which they were requeued.
#[derive(Clone, Debug, Default)]
struct Quorum {
    returned: VecDeque<QueuedMessage>,
    high: VecDeque<QueuedMessage>,
    normal: VecDeque<QueuedMessage>,
    /// Counts the messages taken from `high` and `normal`, modulo three: every third is the oldest.
    taken: u8,
}

impl Ready {
    pub(crate) fn new(kind: QueueKind) -> Self {
        let order = match kind {
            QueueKind::Classic => Order::Classic(BTreeMap::new()),
            QueueKind::Quorum => Order::Quorum(Quorum::default()),
        };
        Self { order, bytes: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.order {
            Order::Classic(entries) => entries.len(),
            Order::Quorum(quorum) => {
                quorum.returned.len() + quorum.high.len() + quorum.normal.len()
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of all bodies, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Iterates in the order of delivery, except for the interleaving of priorities in a quorum
    /// queue.
    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = &QueuedMessage> + '_> {
        match &self.order {
            Order::Classic(entries) => Box::new(entries.values()),
            Order::Quorum(quorum) => {
                let rest = quorum.high.iter().chain(&quorum.normal);
                Box::new(quorum.returned.iter().chain(rest))
            }
        }
    }

    pub(crate) fn first(&self) -> Option<&QueuedMessage> {
        match &self.order {
            Order::Classic(entries) => entries.values().next(),
            Order::Quorum(quorum) => quorum.returned.front().or_else(|| quorum.next().front()),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<QueuedMessage> {
        let entry = match &mut self.order {
            Order::Classic(entries) => entries.pop_first().map(|(_, entry)| entry),
            Order::Quorum(quorum) => quorum.returned.pop_front().or_else(|| quorum.pop()),
        }?;
        self.bytes -= entry.size();
        Some(entry)
    }

    /// Adds a message. A classic queue uses `priority`, a quorum queue uses `high`.
    pub(crate) fn insert(&mut self, entry: QueuedMessage, priority: u8, high: bool) {
        self.bytes += entry.size();
        match &mut self.order {
            Order::Classic(entries) => {
                entries.insert((Reverse(priority), entry.place), entry);
            }
            Order::Quorum(quorum) if high => quorum.high.push_back(entry),
            Order::Quorum(quorum) => quorum.normal.push_back(entry),
        }
    }

    /// Requeues a message of a quorum queue before all others that were not requeued.
    pub(crate) fn put_back(&mut self, entry: QueuedMessage) {
        match &mut self.order {
            Order::Classic(_) => self.insert(entry, 0, false),
            Order::Quorum(quorum) => {
                self.bytes += entry.size();
                quorum.returned.push_back(entry);
            }
        }
    }

    /// Removes all messages. A quorum queue also resets its count of taken messages, even when it
    /// is empty.
    pub(crate) fn clear(&mut self) {
        self.bytes = 0;
        match &mut self.order {
            Order::Classic(entries) => entries.clear(),
            Order::Quorum(quorum) => *quorum = Quorum::default(),
        }
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&QueuedMessage) -> bool) {
        match &mut self.order {
            Order::Classic(entries) => entries.retain(|_, entry| keep(entry)),
            Order::Quorum(quorum) => {
                for part in [&mut quorum.returned, &mut quorum.high, &mut quorum.normal] {
                    part.retain(&mut keep);
                }
            }
        }
        // The collections do not report what they removed.
        self.bytes = self.iter().map(QueuedMessage::size).sum();
    }
}

impl QueuedMessage {
    fn size(&self) -> u64 {
        self.message.body.len() as u64
    }
}

impl Quorum {
    /// The priority that is served next.
    fn next(&self) -> &VecDeque<QueuedMessage> {
        match (self.high.front(), self.normal.front()) {
            (Some(high), Some(normal)) if self.taken == 2 && normal.place < high.place => {
                &self.normal
            }
            (Some(_), _) => &self.high,
            (None, _) => &self.normal,
        }
    }

    fn pop(&mut self) -> Option<QueuedMessage> {
        // `next` returns one of the two fields, so identity tells which one it chose.
        let from_high = std::ptr::eq(self.next(), &self.high);
        let part = if from_high {
            &mut self.high
        } else {
            &mut self.normal
        };
        let entry = part.pop_front()?;
        // Requeued messages are taken elsewhere and do not count.
        self.taken = (self.taken + 1) % 3;
        Some(entry)
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
    use crate::message::headers::{Headers, Properties};
    use proptest::prelude::*;

    fn entry(place: u64) -> QueuedMessage {
        let message = Message {
            exchange: String::new(),
            routing_keys: Vec::new(),
            blind_keys: Vec::new(),
            properties: Properties::default(),
            headers: Headers::new(),
            body: Arc::new(vec![0; usize::try_from(place).unwrap()]),
            deaths: Vec::new(),
            failed_deliveries: 0,
        };
        QueuedMessage {
            message: Arc::new(message),
            place,
            expires: None,
            redelivered: false,
            returned: 0,
            failed: 0,
        }
    }

    fn drain(ready: &mut Ready) -> Vec<u64> {
        std::iter::from_fn(|| {
            let first = ready.first().map(|entry| entry.place);
            let popped = ready.pop().map(|entry| entry.place);
            assert_eq!(first, popped);
            popped
        })
        .collect()
    }

    #[test]
    fn classic_order_is_priority_then_place() {
        let mut ready = Ready::new(QueueKind::Classic);
        for (place, priority) in [(3, 0), (1, 0), (2, 5), (4, 5)] {
            ready.insert(entry(place), priority, true);
        }
        assert_eq!(drain(&mut ready), [2, 4, 1, 3]);
    }

    #[test]
    fn quorum_order_serves_the_oldest_every_third_time() {
        let mut ready = Ready::new(QueueKind::Quorum);
        for place in 1..=3 {
            ready.insert(entry(place), 0, false);
        }
        for place in 4..=8 {
            ready.insert(entry(place), 0, true);
        }
        assert_eq!(drain(&mut ready), [4, 5, 1, 6, 7, 2, 8, 3]);
    }

    #[test]
    fn quorum_order_serves_requeued_messages_first() {
        let mut ready = Ready::new(QueueKind::Quorum);
        ready.insert(entry(3), 0, true);
        ready.put_back(entry(2));
        ready.put_back(entry(1));
        assert_eq!(drain(&mut ready), [2, 1, 3]);
    }

    #[test]
    fn clear_resets_the_count_of_a_quorum_queue() {
        let mut ready = Ready::new(QueueKind::Quorum);
        for place in 1..=2 {
            ready.insert(entry(place), 0, false);
        }
        assert_eq!(drain(&mut ready), [1, 2]);
        ready.clear();
        ready.insert(entry(3), 0, false);
        ready.insert(entry(4), 0, true);
        assert_eq!(drain(&mut ready), [4, 3]);
    }

    #[test]
    fn clear_removes_messages_and_bytes() {
        for kind in [QueueKind::Classic, QueueKind::Quorum] {
            let mut ready = Ready::new(kind);
            ready.insert(entry(1), 0, false);
            ready.clear();
            assert!(ready.is_empty());
            assert_eq!(ready.bytes(), 0);
        }
    }

    proptest! {
        #[test]
        fn bytes_and_length_match_the_messages(
            places in prop::collection::btree_set(1_u64..50, 0..20),
            kind in prop::sample::select(vec![QueueKind::Classic, QueueKind::Quorum]),
            popped in 0_usize..10,
            kept in 1_u64..50,
        ) {
            let mut ready = Ready::new(kind);
            for place in &places {
                ready.insert(entry(*place), (place % 3) as u8, place % 2 == 0);
            }
            for _ in 0..popped {
                if let Some(entry) = ready.pop()
                    && entry.place % 2 == 0
                {
                    ready.put_back(entry);
                }
            }
            ready.retain(|entry| entry.place <= kept);
            let there: Vec<u64> = ready.iter().map(|entry| entry.place).collect();
            prop_assert!(there.iter().all(|place| *place <= kept));
            prop_assert_eq!(ready.bytes(), there.iter().sum::<u64>());
            prop_assert_eq!(ready.len(), there.len());
            prop_assert_eq!(ready.is_empty(), there.is_empty());
            prop_assert_eq!(drain(&mut ready).len(), there.len());
            prop_assert_eq!(ready.bytes(), 0);
        }
    }
}
