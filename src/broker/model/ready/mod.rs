//! The messages of a queue that are ready, in the order in which it hands them out.

use super::arguments::QueueKind;
use super::message::Message;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// A message in one queue.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
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
    Classic(BTreeMap<(Reverse<u8>, u64), Entry>),
    Quorum(Quorum),
}

/// What came back goes before everything else, in the order in which it came back.
#[derive(Clone, Debug, Default)]
struct Quorum {
    returned: VecDeque<Entry>,
    high: VecDeque<Entry>,
    normal: VecDeque<Entry>,
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
    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = &Entry> + '_> {
        match &self.order {
            Order::Classic(entries) => Box::new(entries.values()),
            Order::Quorum(quorum) => {
                let rest = quorum.high.iter().chain(&quorum.normal);
                Box::new(quorum.returned.iter().chain(rest))
            }
        }
    }

    pub(crate) fn first(&self) -> Option<&Entry> {
        match &self.order {
            Order::Classic(entries) => entries.values().next(),
            Order::Quorum(quorum) => quorum.returned.front().or_else(|| quorum.next().front()),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let entry = match &mut self.order {
            Order::Classic(entries) => entries.pop_first().map(|(_, entry)| entry),
            Order::Quorum(quorum) => quorum.returned.pop_front().or_else(|| quorum.pop()),
        }?;
        self.bytes -= entry.size();
        Some(entry)
    }

    /// Adds a message at its place; `priority` counts in a classic queue, and `high` in a quorum queue.
    pub(crate) fn insert(&mut self, entry: Entry, priority: u8, high: bool) {
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
    pub(crate) fn put_back(&mut self, entry: Entry) {
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

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        match &mut self.order {
            Order::Classic(entries) => entries.retain(|_, entry| keep(entry)),
            Order::Quorum(quorum) => {
                for part in [&mut quorum.returned, &mut quorum.high, &mut quorum.normal] {
                    part.retain(&mut keep);
                }
            }
        }
        self.bytes = self.iter().map(Entry::size).sum();
    }
}

impl Entry {
    fn size(&self) -> u64 {
        self.message.body.len() as u64
    }
}

impl Quorum {
    /// Which of the two priorities is served next.
    fn next(&self) -> &VecDeque<Entry> {
        match (self.high.front(), self.normal.front()) {
            (Some(high), Some(normal)) if self.taken == 2 && normal.place < high.place => {
                &self.normal
            }
            (Some(_), _) => &self.high,
            (None, _) => &self.normal,
        }
    }

    fn pop(&mut self) -> Option<Entry> {
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
mod tests;
