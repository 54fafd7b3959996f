//! A queue: its ready messages, its consumers, and what it accepts, requeues and drops.

use super::arguments::{Overflow, QueueKind, Settings};
use super::ids::{ChannelId, ConsumerId, LinkId, QueueId};
use super::message::Message;
use super::profile::Profile;
use super::ready::{QueuedMessage, Ready};
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
    /// The only connection that may use an exclusive queue.
    pub(crate) owner: Option<LinkId>,
    pub(crate) auto_delete: bool,
    pub(crate) arguments: Headers,
    /// The meaning of the arguments under the policy.
    pub(crate) settings: Settings,
    pub(crate) policy: Option<String>,
    pub(crate) profile: Profile,
    pub(crate) ready: Ready,
    /// Messages that exceed the delivery limit; dead-lettered when the queue is served next.
    pub(crate) over_delivery_limit: Vec<QueuedMessage>,
    pub(crate) unacked: usize,
    /// In line for the next message; the first one is the active one of a single-active queue.
    pub(crate) consumers: VecDeque<(ChannelId, ConsumerId)>,
    /// Consumers that were full when their turn came.
    pub(crate) skipped_while_full: BTreeSet<ConsumerId>,
    pub(crate) had_consumers: bool,
    /// Whether its one consumer subscribed exclusively.
    pub(crate) has_exclusive_consumer: bool,
    pub(crate) last_used: Instant,
    /// Whether a classic queue checks its head for expiry when it is served next: after its head
    /// was taken or dropped, but not when a message of a higher priority became its head. A quorum
    /// queue checks every time.
    pub(crate) head_check_pending: bool,
    /// When a classic queue checks its head by itself.
    head_timer: Option<Instant>,
    last_place: u64,
    /// The channels that are registered as publishers of a quorum queue.
    publishers: BTreeSet<ChannelId>,
    /// The publishers that were told to stop.
    refused: BTreeSet<ChannelId>,
}

/// The decision of a queue about a published message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Accepted,
    Rejected,
    /// Rejected by the queue, which dead-letters it.
    RejectedDeadLettered,
}

/// The result of requeueing a message.
#[derive(Debug)]
pub(crate) enum PutBack {
    Ready,
    /// The message exceeds the delivery limit.
    OverDeliveryLimit(QueuedMessage),
}

impl Queue {
    /// A durable queue that is empty and not exclusive.
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
            over_delivery_limit: Vec::new(),
            unacked: 0,
            consumers: VecDeque::new(),
            skipped_while_full: BTreeSet::new(),
            had_consumers: false,
            has_exclusive_consumer: false,
            last_used: now,
            head_check_pending: false,
            head_timer: None,
            last_place: 0,
            publishers: BTreeSet::new(),
            refused: BTreeSet::new(),
        }
    }

    fn next_place(&mut self) -> u64 {
        self.last_place += 1;
        self.last_place
    }

    /// Notes that a consumer is no longer full. A quorum queue took it out of the line when it
    /// became full, a classic queue only when its turn came; it returns at the end.
    pub(crate) fn rejoin(&mut self, consumer: ConsumerId) {
        let was_out = self.skipped_while_full.remove(&consumer) || self.kind == QueueKind::Quorum;
        let place = self.consumers.iter().position(|(_, id)| *id == consumer);
        // The order of a single-active queue changes only when a consumer ends.
        if was_out
            && !self.settings.single_active
            && let Some(place) = place
            && let Some(consumer) = self.consumers.remove(place)
        {
            self.consumers.push_back(consumer);
        }
    }

    /// Whether the channel has yet to register with this quorum queue before it can publish to it.
    pub(crate) fn is_unregistered(&self, channel: ChannelId) -> bool {
        self.kind == QueueKind::Quorum && !self.publishers.contains(&channel)
    }

    /// Decides about a message. A dead letter has no publisher, and a quorum queue accepts all of
    /// them.
    pub(crate) fn admit(&mut self, message: &Message, publisher: Option<ChannelId>) -> Admission {
        if self.kind == QueueKind::Quorum {
            return match publisher {
                Some(channel) if self.refuses(channel) => Admission::Rejected,
                _ => Admission::Accepted,
            };
        }
        match self.settings.overflow {
            Overflow::DropHead => Admission::Accepted,
            overflow => {
                // Delivered messages that are unsettled do not count towards the limits.
                let length = self.ready.len() as u64 + 1;
                let bytes = self.ready.bytes() + message.body.len() as u64;
                let fits = self.settings.max_length.is_none_or(|most| length <= most)
                    && self.settings.max_bytes.is_none_or(|most| bytes <= most);
                match overflow {
                    _ if fits => Admission::Accepted,
                    Overflow::RejectPublishDlx => Admission::RejectedDeadLettered,
                    _ => Admission::Rejected,
                }
            }
        }
    }

    /// A channel asks when it registers, with its first message; later changes are notified to it.
    fn refuses(&mut self, channel: ChannelId) -> bool {
        let is_first = self.publishers.insert(channel);
        if is_first && self.settings.overflow != Overflow::DropHead && self.is_over_limit() {
            self.refused.insert(channel);
        }
        self.refused.contains(&channel)
    }

    /// Stops the publishers of a quorum queue that is over its limit, and resumes them below four
    /// fifths of it.
    pub(crate) fn notify_publishers(&mut self) {
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
            // The product can exceed a `u64`.
            most.is_none_or(|most| u128::from(number) <= u128::from(most) * 4 / 5)
        };
        is_below(self.settings.max_length, self.ready.len() as u64)
            && is_below(self.settings.max_bytes, self.ready.bytes())
    }

    /// The message with its place and its time to live in this queue.
    pub(crate) fn queued(&mut self, message: Arc<Message>, now: Instant) -> QueuedMessage {
        let ttl = [self.settings.ttl, message.ttl()].into_iter().flatten();
        let ttl = ttl.min().map(|millis| match self.kind {
            // A quorum queue expires nothing within the millisecond of its publish.
            QueueKind::Quorum => millis.max(1),
            QueueKind::Classic => millis,
        });
        let failed = match self.kind {
            // Only quorum queues continue the count of the queue before them.
            QueueKind::Quorum => message.failed_deliveries,
            QueueKind::Classic => 0,
        };
        QueuedMessage {
            place: self.next_place(),
            expires: ttl.and_then(|millis| now.checked_add(Duration::from_millis(millis))),
            redelivered: false,
            returned: 0,
            failed,
            message,
        }
    }

    pub(crate) fn insert(&mut self, queued: QueuedMessage) {
        let asked = queued.message.properties.priority.unwrap_or(0);
        // A priority above the maximum counts as the maximum; without one, priorities are ignored.
        let priority = self.settings.max_priority.map_or(0, |most| asked.min(most));
        // Quorum queues of 4.x have two priorities, and 4 is the highest of the normal ones.
        let high = self.profile == Profile::V4_0 && asked > 4;
        self.ready.insert(queued, priority, high);
    }

    /// Requeues a delivered message. `failed` when its channel ended with it unsettled.
    pub(crate) fn put_back(&mut self, mut queued: QueuedMessage, failed: bool) -> PutBack {
        self.unacked = self.unacked.saturating_sub(1);
        queued.redelivered = true;
        if self.kind == QueueKind::Classic {
            self.insert(queued);
            return PutBack::Ready;
        }
        queued.returned += 1;
        if failed {
            queued.failed += 1;
        }
        match self.settings.delivery_limit {
            Some(limit) if queued.returned > limit => PutBack::OverDeliveryLimit(queued),
            // Without a limit the queue appends it like a new message.
            None if !failed => {
                queued.place = self.next_place();
                self.ready.insert(queued, 0, false);
                PutBack::Ready
            }
            _ => {
                self.ready.put_back(queued);
                PutBack::Ready
            }
        }
    }

    /// Takes the head if it has expired; otherwise sets the timer to its expiry.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<QueuedMessage> {
        let head = self.ready.first().map(|head| head.expires);
        match head {
            Some(Some(expires)) if expires <= now => self.ready.pop(),
            head => {
                let expires = head.flatten();
                // A timer that is set stays set when its message leaves: it then fires without
                // effect.
                self.head_timer = match (self.head_timer, expires) {
                    (Some(timer), Some(expires)) => Some(timer.min(expires)),
                    (None, expires) => expires,
                    (timer, None) => timer,
                };
                None
            }
        }
    }

    /// Schedules a check of the head if the timer is due.
    pub(crate) fn fire_head_timer(&mut self, now: Instant) {
        if self.head_timer.is_some_and(|timer| timer <= now) {
            self.head_timer = None;
            self.head_check_pending = true;
        }
    }

    /// Takes the head if the queue is over its limit and drops from its head.
    pub(crate) fn pop_over_limit(&mut self) -> Option<QueuedMessage> {
        if self.settings.overflow == Overflow::DropHead && self.is_over_limit() {
            self.ready.pop()
        } else {
            None
        }
    }

    /// When its head or the queue itself expires.
    pub(crate) fn due(&self) -> Option<Instant> {
        let head = match self.kind {
            QueueKind::Classic => self.head_timer,
            QueueKind::Quorum => self.ready.first().and_then(|head| head.expires),
        };
        head.into_iter().chain(self.unused_until()).min()
    }

    /// When the queue is deleted if it stays unused.
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
