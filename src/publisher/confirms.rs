//! Matches confirms and returns to the messages of one confirm channel. Pure.

use crate::message::delivery::{Outgoing, Returned};
use crate::message::publish::error::PublishResult;
use crate::transport::Confirm;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The messages written to one confirm channel and not answered yet.
///
/// A message whose limit has passed stays here without its waiter, since its delivery tag is taken
/// until the broker answers. Such a message has timed out; a late answer only removes it. Rule 6.
#[derive(Debug)]
pub(super) struct OutstandingConfirms<T> {
    last_tag: u64,
    /// By delivery tag.
    messages: BTreeMap<u64, OutstandingMessage<T>>,
    bytes: usize,
}

/// A message without an answer.
#[derive(Debug)]
struct OutstandingMessage<T> {
    /// `None` once its limit has passed.
    waiter: Option<T>,
    message: Outgoing,
    limit: Instant,
    /// The text of the return that matched it.
    returned: Option<String>,
}

impl<T> OutstandingConfirms<T> {
    pub(super) fn new() -> Self {
        Self {
            last_tag: 0,
            messages: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Adds `message`, the next one written to this channel.
    pub(super) fn written(&mut self, message: Outgoing, limit: Instant, waiter: T) {
        self.last_tag += 1;
        self.bytes += message.body.len();
        self.messages.insert(
            self.last_tag,
            OutstandingMessage {
                waiter: Some(waiter),
                message,
                limit,
                returned: None,
            },
        );
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The size of the outstanding bodies, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many messages have timed out, and the size of their bodies in bytes.
    pub(super) fn timed_out(&self) -> (usize, usize) {
        let timed_out = self.messages.values();
        timed_out
            .filter(|entry| entry.waiter.is_none())
            .fold((0, 0), |(count, bytes), entry| {
                (count + 1, bytes + entry.message.body.len())
            })
    }

    /// The messages whose limit has passed and whose waiter has not been told yet.
    pub(super) fn late(&self, now: Instant) -> impl Iterator<Item = &Outgoing> {
        let entries = self.messages.values();
        entries
            .filter(move |entry| entry.waiter.is_some() && entry.limit <= now)
            .map(|entry| &entry.message)
    }

    /// Marks every message that `returned` may refer to; false when there is none.
    ///
    /// Rule 4: marking too many costs a duplicate, marking too few would lose a message.
    pub(super) fn mark_returned(&mut self, returned: &Returned) -> bool {
        let mut matched = false;
        for entry in self.messages.values_mut() {
            let message = &entry.message;
            if message.mandatory
                && message.properties.message_id == returned.message_id
                && message.exchange == returned.exchange
                && message.routing_key == returned.routing_key
            {
                entry.returned = Some(returned.text.clone());
                matched = true;
            }
        }
        matched
    }

    /// Removes the messages that `confirm` answers. Returns read before it must have been marked.
    pub(super) fn confirm(&mut self, confirm: Confirm) -> Vec<(T, Outgoing, PublishResult)> {
        // Tags below the oldest outstanding one are answered already.
        let first = if confirm.multiple { 0 } else { confirm.tag };
        let tags: Vec<u64> = self
            .messages
            .range(first..=confirm.tag)
            .map(|(tag, _)| *tag)
            .collect();
        let mut answered = Vec::with_capacity(tags.len());
        for tag in tags {
            let Some(entry) = self.remove(tag) else {
                continue;
            };
            let result = match (confirm.ack, entry.returned) {
                (false, _) => PublishResult::Nacked,
                (true, Some(text)) => PublishResult::Unroutable(text),
                (true, None) => PublishResult::Confirmed,
            };
            // It has timed out: the late answer only frees its tag.
            let Some(waiter) = entry.waiter else { continue };
            answered.push((waiter, entry.message, result));
        }
        answered
    }

    /// Takes the waiters whose limit has passed; their messages have timed out.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<T> {
        let late = self
            .messages
            .values_mut()
            .filter(|entry| entry.limit <= now);
        late.filter_map(|entry| entry.waiter.take()).collect()
    }

    /// The next limit that passes.
    pub(super) fn next_limit(&self) -> Option<Instant> {
        self.messages
            .values()
            .filter(|entry| entry.waiter.is_some())
            .map(|entry| entry.limit)
            .min()
    }

    /// Moves every limit by the time the connection was blocked.
    pub(super) fn postpone(&mut self, by: Duration) {
        for entry in self.messages.values_mut() {
            entry.limit = entry.limit.checked_add(by).unwrap_or(entry.limit);
        }
    }

    /// Takes the messages that were awaited, oldest first, and starts over at the first tag: the
    /// channel is gone.
    pub(super) fn take(&mut self) -> Vec<(T, Outgoing)> {
        let taken = std::mem::replace(self, Self::new());
        taken
            .messages
            .into_values()
            .filter_map(|entry| entry.waiter.map(|waiter| (waiter, entry.message)))
            .collect()
    }

    fn remove(&mut self, tag: u64) -> Option<OutstandingMessage<T>> {
        let entry = self.messages.remove(&tag)?;
        self.bytes -= entry.message.body.len();
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::headers::Headers;
    use crate::message::headers::Properties;
    use crate::time::instant::monotonic;
    use std::sync::Arc;

    fn answers(
        outstanding: &mut OutstandingConfirms<String>,
        confirm: Confirm,
    ) -> Vec<(String, PublishResult)> {
        let answered = outstanding.confirm(confirm).into_iter();
        answered
            .map(|(waiter, _, result)| (waiter, result))
            .collect()
    }

    fn message(id: &str, queue: &str) -> Outgoing {
        Outgoing {
            exchange: String::new(),
            routing_key: queue.to_owned(),
            mandatory: true,
            properties: Properties {
                message_id: Some(id.to_owned()),
                ..Properties::default()
            },
            headers: Headers::new(),
            body: Arc::new(vec![0; 10]),
        }
    }

    fn returned(id: &str, queue: &str) -> Returned {
        Returned {
            exchange: String::new(),
            routing_key: queue.to_owned(),
            message_id: Some(id.to_owned()),
            text: "312 NO_ROUTE".to_owned(),
        }
    }

    fn ack(tag: u64, multiple: bool) -> Confirm {
        Confirm {
            tag,
            multiple,
            ack: true,
        }
    }

    fn outstanding(ids: &[&str]) -> OutstandingConfirms<String> {
        let mut outstanding = OutstandingConfirms::new();
        for id in ids {
            outstanding.written(
                message(id, "q"),
                monotonic() + Duration::from_secs(10),
                (*id).to_owned(),
            );
        }
        outstanding
    }

    #[test]
    fn multiple_confirm_answers_all_below_and_keeps_returns() {
        let mut outstanding = outstanding(&["a", "b", "c", "d"]);
        assert!(outstanding.mark_returned(&returned("b", "q")));
        let answers = answers(&mut outstanding, ack(3, true));
        assert_eq!(
            answers,
            [
                ("a".to_owned(), PublishResult::Confirmed),
                (
                    "b".to_owned(),
                    PublishResult::Unroutable("312 NO_ROUTE".to_owned())
                ),
                ("c".to_owned(), PublishResult::Confirmed)
            ]
        );
        assert_eq!((outstanding.len(), outstanding.bytes()), (1, 10));
    }

    #[test]
    fn nack_is_not_an_ack() {
        let mut outstanding = outstanding(&["a", "b"]);
        let answers = answers(
            &mut outstanding,
            Confirm {
                tag: 2,
                multiple: true,
                ack: false,
            },
        );
        assert!(
            answers
                .iter()
                .all(|(_, answer)| *answer == PublishResult::Nacked),
            "{answers:?}"
        );
        assert_eq!(answers.len(), 2);
    }

    #[test]
    fn return_marks_every_possible_message() {
        let mut outstanding = outstanding(&["a", "a", "b"]);
        assert!(outstanding.mark_returned(&returned("a", "q")));
        let returned_count = outstanding
            .confirm(ack(3, true))
            .iter()
            .filter(|(_, _, answer)| matches!(answer, PublishResult::Unroutable(_)))
            .count();
        assert_eq!(returned_count, 2);
    }

    #[test]
    fn return_of_another_queue_or_id_matches_nothing() {
        let mut outstanding = outstanding(&["a"]);
        assert!(!outstanding.mark_returned(&returned("a", "other")));
        assert!(!outstanding.mark_returned(&returned("b", "q")));
        assert_eq!(
            answers(&mut outstanding, ack(1, false)),
            [("a".to_owned(), PublishResult::Confirmed)]
        );
    }

    #[test]
    fn late_answer_only_removes_the_timed_out_message() {
        let mut outstanding = outstanding(&["a", "b"]);
        assert_eq!(
            outstanding.expire(monotonic() + Duration::from_secs(11)),
            ["a", "b"]
        );
        assert_eq!((outstanding.timed_out(), outstanding.len()), ((2, 20), 2));
        assert_eq!(outstanding.next_limit(), None);
        assert_eq!(answers(&mut outstanding, ack(2, true)), []);
        assert!(outstanding.is_empty());
        assert_eq!(outstanding.bytes(), 0);
    }

    #[test]
    fn out_of_order_and_repeated_confirms_answer_once() {
        let mut outstanding = outstanding(&["a", "b", "c"]);
        assert_eq!(
            answers(&mut outstanding, ack(2, false)),
            [("b".to_owned(), PublishResult::Confirmed)]
        );
        assert_eq!(answers(&mut outstanding, ack(2, false)), []);
        assert_eq!(answers(&mut outstanding, ack(3, true)).len(), 2);
        assert_eq!(answers(&mut outstanding, ack(9, true)), []);
    }
}
