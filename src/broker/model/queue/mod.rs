//! A queue: what is ready, who consumes, and which messages it lets go.

use super::arguments::{Overflow, QueueKind, Settings};
use super::message::Message;
use super::profile::Profile;
use super::ready::{Entry, Ready};
use super::{ChannelId, ConsumerId, LinkId, QueueId};
use crate::message::headers::Headers;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A queue.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    pub(crate) name: String,
    pub(crate) kind: QueueKind,
    pub(crate) durable: bool,
    /// The only link that may use it.
    pub(crate) owner: Option<LinkId>,
    pub(crate) auto_delete: bool,
    pub(crate) arguments: Headers,
    /// What they mean, under the policy.
    pub(crate) settings: Settings,
    pub(crate) policy: Option<String>,
    pub(crate) profile: Profile,
    pub(crate) ready: Ready,
    /// What came back too often, and is dead-lettered when the queue is served next.
    pub(crate) spent: Vec<Entry>,
    pub(crate) unacked: usize,
    pub(crate) consumers: VecDeque<(ChannelId, ConsumerId)>,
    /// Those that were full when their turn came.
    pub(crate) passed_over: BTreeSet<ConsumerId>,
    pub(crate) had_consumers: bool,
    /// Its one consumer wants no other beside it.
    pub(crate) is_occupied: bool,
    pub(crate) last_used: Instant,
    /// Whether the head is to be looked at for its time. A quorum queue always does; a classic one does when something has
    /// happened to its head, but not when a message of a higher priority has become its head.
    pub(crate) looks_at_head: bool,
    /// When a classic queue will look by itself.
    timer: Option<Instant>,
    pub(crate) next_place: u64,
    /// Who publishes to a quorum queue, and whether it is told to stop.
    publishers: BTreeSet<ChannelId>,
    refused: BTreeSet<ChannelId>,
    /// The channels that are told when it ends, whatever they do until then.
    pub(crate) watchers: BTreeSet<ChannelId>,
}

/// What a queue does with a message that is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Taken,
    Rejected,
    /// Rejected, and dead-lettered.
    RejectedDead,
}

/// What became of a message that came back.
#[derive(Debug)]
pub(crate) enum PutBack {
    Ready,
    /// It has been handed out as often as it may be.
    Spent(Entry),
}

impl Queue {
    /// A durable queue, empty and everybody's.
    pub(crate) fn new(
        id: QueueId,
        name: &str,
        kind: QueueKind,
        settings: Settings,
        profile: Profile,
        now: Instant,
    ) -> Self {
        Self {
            id,
            name: name.to_owned(),
            kind,
            durable: true,
            owner: None,
            auto_delete: false,
            arguments: Headers::new(),
            settings,
            policy: None,
            profile,
            ready: Ready::new(kind),
            spent: Vec::new(),
            unacked: 0,
            consumers: VecDeque::new(),
            passed_over: BTreeSet::new(),
            had_consumers: false,
            is_occupied: false,
            last_used: now,
            looks_at_head: false,
            timer: None,
            next_place: 0,
            publishers: BTreeSet::new(),
            refused: BTreeSet::new(),
            watchers: BTreeSet::new(),
        }
    }

    fn place(&mut self) -> u64 {
        self.next_place += 1;
        self.next_place
    }

    /// Takes note that a consumer is no longer full. A quorum queue has taken it out of the line when it was; a classic queue
    /// only when its turn came.
    pub(crate) fn rejoin(&mut self, consumer: ConsumerId) {
        let was_out = self.passed_over.remove(&consumer) || self.kind == QueueKind::Quorum;
        let place = self.consumers.iter().position(|(_, id)| *id == consumer);
        if was_out
            && !self.settings.single_active
            && let Some(place) = place
            && let Some(consumer) = self.consumers.remove(place)
        {
            self.consumers.push_back(consumer);
        }
    }

    /// In 3.x a classic queue hands nothing to the next single active consumer until something else happens to it.
    pub(crate) fn is_slow_after_cancel(&self) -> bool {
        self.profile == Profile::V3_10
            && self.kind == QueueKind::Classic
            && self.settings.single_active
    }

    /// Whether the channel has yet to make itself known to this queue before it can publish to it.
    pub(crate) fn is_stranger(&self, channel: ChannelId) -> bool {
        self.kind == QueueKind::Quorum && !self.publishers.contains(&channel)
    }

    /// Decides whether a message is taken. What is dead-lettered comes from no channel, and a quorum queue takes it always.
    pub(crate) fn admit(&mut self, message: &Message, publisher: Option<ChannelId>) -> Admission {
        if self.kind == QueueKind::Quorum {
            return match publisher {
                Some(channel) if self.refuses(channel) => Admission::Rejected,
                _ => Admission::Taken,
            };
        }
        match self.settings.overflow {
            Overflow::DropHead => Admission::Taken,
            overflow => {
                let length = self.ready.len() as u64 + 1;
                let bytes = self.ready.bytes() + message.body.len() as u64;
                let fits = self.settings.max_length.is_none_or(|most| length <= most)
                    && self.settings.max_bytes.is_none_or(|most| bytes <= most);
                match overflow {
                    _ if fits => Admission::Taken,
                    Overflow::RejectPublishDlx => Admission::RejectedDead,
                    _ => Admission::Rejected,
                }
            }
        }
    }

    /// A channel asks once, with its first message; from then on it is told.
    fn refuses(&mut self, channel: ChannelId) -> bool {
        let is_first = self.publishers.insert(channel);
        if is_first && self.settings.overflow != Overflow::DropHead && self.is_over_limit() {
            self.refused.insert(channel);
        }
        self.refused.contains(&channel)
    }

    /// Tells the publishers of a quorum queue to stop when it is over its limit, and to go on below four fifths of it.
    pub(crate) fn tell_publishers(&mut self) {
        if self.kind == QueueKind::Classic {
            return;
        }
        if self.settings.overflow == Overflow::DropHead {
            self.refused.clear();
        } else if self.is_over_limit() {
            self.refused = self.publishers.clone();
        } else if !self.refused.is_empty() && self.is_below_soft_limit() {
            self.refused.clear();
        }
    }

    pub(crate) fn forget_publisher(&mut self, channel: ChannelId) {
        self.publishers.remove(&channel);
        self.refused.remove(&channel);
        self.watchers.remove(&channel);
    }

    fn is_over_limit(&self) -> bool {
        let Settings {
            max_length,
            max_bytes,
            ..
        } = self.settings;
        max_length.is_some_and(|most| self.ready.len() as u64 > most)
            || max_bytes.is_some_and(|most| self.ready.bytes() > most)
    }

    fn is_below_soft_limit(&self) -> bool {
        let is_below = |most: Option<u64>, number: u64| {
            most.is_none_or(|most| u128::from(number) <= u128::from(most) * 4 / 5)
        };
        is_below(self.settings.max_length, self.ready.len() as u64)
            && is_below(self.settings.max_bytes, self.ready.bytes())
    }

    /// The message as this queue will keep it.
    pub(crate) fn entry(&mut self, message: Arc<Message>, now: Instant) -> Entry {
        let ttl = [self.settings.ttl, message.ttl()].into_iter().flatten();
        let ttl = ttl.min().map(|millis| match self.kind {
            // Its clock ticks once before anything can expire.
            QueueKind::Quorum => millis.max(1),
            QueueKind::Classic => millis,
        });
        let failed = match self.kind {
            QueueKind::Quorum => message.failed_deliveries,
            QueueKind::Classic => 0,
        };
        Entry {
            place: self.place(),
            expires: ttl.and_then(|millis| now.checked_add(Duration::from_millis(millis))),
            redelivered: false,
            returned: 0,
            failed,
            message,
        }
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        let asked = entry.message.properties.priority.unwrap_or(0);
        let priority = self.settings.max_priority.map_or(0, |most| asked.min(most));
        let high = self.profile == Profile::V4_0 && asked > 4;
        self.ready.insert(entry, priority, high);
    }

    /// Takes back a message that was handed out. `failed` when its consumer or channel went away with it.
    pub(crate) fn put_back(&mut self, mut entry: Entry, failed: bool) -> PutBack {
        self.unacked = self.unacked.saturating_sub(1);
        entry.redelivered = true;
        if self.kind == QueueKind::Classic {
            self.insert(entry);
            return PutBack::Ready;
        }
        entry.returned += 1;
        if failed {
            entry.failed += 1;
        }
        match self.settings.delivery_limit {
            Some(limit) if entry.returned > limit => PutBack::Spent(entry),
            // Without a limit it is written anew.
            None if !failed => {
                entry.place = self.place();
                self.ready.insert(entry, 0, false);
                PutBack::Ready
            }
            _ => {
                self.ready.put_back(entry);
                PutBack::Ready
            }
        }
    }

    /// The head, if its time is over. When it is not, the next look will be when it is.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<Entry> {
        let head = self.ready.first().map(|head| head.expires);
        match head {
            Some(Some(expires)) if expires <= now => self.ready.pop(),
            head => {
                let expires = head.flatten();
                self.timer = match (self.timer, expires) {
                    (Some(timer), Some(expires)) => Some(timer.min(expires)),
                    (None, expires) => expires,
                    (timer, None) => timer,
                };
                None
            }
        }
    }

    /// Notes that the timer has run out.
    pub(crate) fn look_now(&mut self, now: Instant) {
        if self.timer.is_some_and(|timer| timer <= now) {
            self.timer = None;
            self.looks_at_head = true;
        }
    }

    /// The head, if there are more than there may be.
    pub(crate) fn pop_over_limit(&mut self) -> Option<Entry> {
        if self.settings.overflow == Overflow::DropHead && self.is_over_limit() {
            self.ready.pop()
        } else {
            None
        }
    }

    /// When it wants to be looked at again: its head expires, or the queue itself.
    pub(crate) fn due(&self) -> Option<Instant> {
        let head = match self.kind {
            QueueKind::Classic => self.timer,
            QueueKind::Quorum => self.ready.first().and_then(|entry| entry.expires),
        };
        head.into_iter().chain(self.unused_until()).min()
    }

    /// When it will be deleted, if nobody uses it.
    pub(crate) fn unused_until(&self) -> Option<Instant> {
        if !self.consumers.is_empty() {
            return None;
        }
        self.last_used.checked_add(self.settings.expires?)
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests;
