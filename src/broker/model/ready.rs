//! The messages of a queue that are ready, in the order in which it hands them out.

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
    /// Where in the queue it belongs.
    pub(crate) place: u64,
    pub(crate) expires: Option<Instant>,
    pub(crate) redelivered: bool,
    /// How often it came back to a quorum queue.
    pub(crate) returned: u64,
    /// How often of these its consumer failed (4.x).
    pub(crate) failed: u64,
}

/// Ready messages.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    order: Order,
    bytes: u64,
}

#[derive(Clone, Debug)]
enum Order {
    /// By priority, highest first, then by place: what comes back takes its old place.
    Classic(BTreeMap<(Reverse<u8>, u64), QueuedMessage>),
    Quorum(Quorum),
}

/// What came back goes before everything else, in the order in which it came back.
#[derive(Clone, Debug, Default)]
struct Quorum {
    returned: VecDeque<QueuedMessage>,
    high: VecDeque<QueuedMessage>,
    normal: VecDeque<QueuedMessage>,
    /// Counts what was taken of `high` and `normal`: of three at least one is the oldest.
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

    /// The size of all bodies.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// In the order in which they would be handed out, but for the exact mixture of priorities in a quorum queue.
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

    /// Adds a message at its place; `priority` counts in a classic queue, and `high` in a quorum queue.
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

    /// Takes back what was handed out by a quorum queue.
    pub(crate) fn put_back(&mut self, entry: QueuedMessage) {
        match &mut self.order {
            Order::Classic(_) => self.insert(entry, 0, false),
            Order::Quorum(quorum) => {
                self.bytes += entry.size();
                quorum.returned.push_back(entry);
            }
        }
    }

    /// Throws everything away. A quorum queue begins to count anew, whether or not there was anything.
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
        self.bytes = self.iter().map(QueuedMessage::size).sum();
    }
}

impl QueuedMessage {
    fn size(&self) -> u64 {
        self.message.body.len() as u64
    }
}

impl Quorum {
    /// Which of the two priorities is served next.
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
        let from_high = std::ptr::eq(self.next(), &self.high);
        let part = if from_high {
            &mut self.high
        } else {
            &mut self.normal
        };
        let entry = part.pop_front()?;
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
    fn a_classic_queue_goes_by_priority_and_then_by_place() {
        let mut ready = Ready::new(QueueKind::Classic);
        for (place, priority) in [(3, 0), (1, 0), (2, 5), (4, 5)] {
            ready.insert(entry(place), priority, true);
        }
        assert_eq!(drain(&mut ready), [2, 4, 1, 3]);
    }

    #[test]
    fn a_quorum_queue_serves_the_oldest_every_third_time() {
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
    fn what_came_back_to_a_quorum_queue_goes_first_in_the_order_of_its_return() {
        let mut ready = Ready::new(QueueKind::Quorum);
        ready.insert(entry(3), 0, true);
        ready.put_back(entry(2));
        ready.put_back(entry(1));
        assert_eq!(drain(&mut ready), [2, 1, 3]);
    }

    #[test]
    fn a_quorum_queue_that_was_cleared_counts_anew_to_the_oldest() {
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
    fn nothing_is_left_of_what_was_cleared() {
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
        fn bytes_and_length_are_those_of_what_is_there(
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
