//! The messages of a queue that are ready, in the order in which it hands them out.

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
    pub(super) place: u64,
    pub(super) expires: Option<Instant>,
    pub(crate) redelivered: bool,
    /// How often it came back to a quorum queue.
    pub(crate) returned: u64,
    /// How often of these its consumer failed (4.x).
    pub(super) failed: u64,
}

/// Ready messages.
#[derive(Clone, Debug)]
pub(super) enum Ready {
    /// By priority, highest first, then by place: what comes back takes its old place.
    Classic(BTreeMap<(Reverse<u8>, u64), Entry>),
    Quorum(Quorum),
}

/// What came back goes before everything else, in the order in which it came back.
#[derive(Clone, Debug, Default)]
pub(super) struct Quorum {
    returned: VecDeque<Entry>,
    high: VecDeque<Entry>,
    normal: VecDeque<Entry>,
    /// Counts what was taken of `high` and `normal`: of three at least one is the oldest.
    taken: u8,
}

impl Ready {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Classic(entries) => entries.len(),
            Self::Quorum(quorum) => quorum.returned.len() + quorum.high.len() + quorum.normal.len(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.iter()
            .map(|entry| entry.message.body.len() as u64)
            .sum()
    }

    /// In the order in which they would be handed out, but for the exact mixture of priorities.
    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = &Entry> + '_> {
        match self {
            Self::Classic(entries) => Box::new(entries.values()),
            Self::Quorum(quorum) => Box::new(
                quorum
                    .returned
                    .iter()
                    .chain(&quorum.high)
                    .chain(&quorum.normal),
            ),
        }
    }

    pub(super) fn first(&self) -> Option<&Entry> {
        match self {
            Self::Classic(entries) => entries.values().next(),
            Self::Quorum(quorum) => quorum.returned.front().or_else(|| quorum.next().front()),
        }
    }

    pub(super) fn pop(&mut self) -> Option<Entry> {
        match self {
            Self::Classic(entries) => entries.pop_first().map(|(_, entry)| entry),
            Self::Quorum(quorum) => quorum.returned.pop_front().or_else(|| quorum.pop()),
        }
    }

    /// Adds a message at its place; `priority` counts in a classic queue, and `high` in a quorum queue.
    pub(super) fn insert(&mut self, entry: Entry, priority: u8, high: bool) {
        match self {
            Self::Classic(entries) => {
                entries.insert((Reverse(priority), entry.place), entry);
            }
            Self::Quorum(quorum) if high => quorum.high.push_back(entry),
            Self::Quorum(quorum) => quorum.normal.push_back(entry),
        }
    }

    /// Takes back what was handed out by a quorum queue.
    pub(super) fn put_back(&mut self, entry: Entry) {
        match self {
            Self::Classic(_) => self.insert(entry, 0, false),
            Self::Quorum(quorum) => quorum.returned.push_back(entry),
        }
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        match self {
            Self::Classic(entries) => entries.retain(|_, entry| keep(entry)),
            Self::Quorum(quorum) => {
                for part in [&mut quorum.returned, &mut quorum.high, &mut quorum.normal] {
                    part.retain(&mut keep);
                }
            }
        }
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
