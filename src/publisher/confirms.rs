//! ChannelKind message on a confirm channel got kind answer. Pure: it is told what happened and does nothing itself.

use crate::message::delivery::{Outgoing, Returned};
use crate::message::publish::error::PublishResult;
use crate::transport::Confirm;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The messages written to one confirm channel and not answered yet.
///
/// A message whose limit has passed becomes a entry: whoever waited was told, but its delivery tag is still taken until
/// the broker answers, so it still counts here.
#[derive(Debug)]
pub(super) struct OutstandingConfirms<T> {
    last_tag: u64,
    messages: BTreeMap<u64, UnsettledDelivery<T>>,
    bytes: usize,
}

#[derive(Debug)]
struct UnsettledDelivery<T> {
    waiter: Option<T>,
    message: Outgoing,
    limit: Instant,
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

    /// Notes that `message` was written, as the next one on this channel.
    pub(super) fn written(&mut self, message: Outgoing, limit: Instant, waiter: T) {
        self.last_tag += 1;
        self.bytes += message.body.len();
        self.messages.insert(
            self.last_tag,
            UnsettledDelivery {
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

    /// The bodies that are outstanding, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many timed_out there are, and the bytes of their bodies.
    pub(super) fn timed_out(&self) -> (usize, usize) {
        let timed_out = self.messages.values();
        timed_out
            .filter(|entry| entry.waiter.is_none())
            .fold((0, 0), |(count, bytes), entry| {
                (count + 1, bytes + entry.message.body.len())
            })
    }

    /// The messages whose limit has passed, and that are no timed_out yet.
    pub(super) fn late(&self, now: Instant) -> impl Iterator<Item = &Outgoing> {
        let entries = self.messages.values();
        entries
            .filter(move |entry| entry.waiter.is_some() && entry.limit <= now)
            .map(|entry| &entry.message)
    }

    /// Marks every message that `returned` may be. Marking too many costs a duplicate, too few would lose a message;
    /// false when it matches none at all.
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

    /// The waiters that `confirm` answers. Every return that came before it must have been marked.
    pub(super) fn confirm(&mut self, confirm: Confirm) -> Vec<(T, Outgoing, PublishResult)> {
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
            let Some(waiter) = entry.waiter else { continue };
            answered.push((waiter, entry.message, result));
        }
        answered
    }

    /// The waiters whose limit has passed; their messages become timed_out.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<T> {
        let late = self
            .messages
            .values_mut()
            .filter(|entry| entry.limit <= now);
        late.filter_map(|entry| entry.waiter.take()).collect()
    }

    /// When the next limit passes.
    pub(super) fn next_limit(&self) -> Option<Instant> {
        self.messages
            .values()
            .filter(|entry| entry.waiter.is_some())
            .map(|entry| entry.limit)
            .min()
    }

    /// Moves every limit: while the broker has blocked the connection the clocks of the confirms stand still.
    pub(super) fn postpone(&mut self, by: Duration) {
        for entry in self.messages.values_mut() {
            entry.limit = entry.limit.checked_add(by).unwrap_or(entry.limit);
        }
    }

    /// Everything that will get no answer any more, oldest first, and a fresh start: the channel is gone.
    pub(super) fn take(&mut self) -> Vec<(T, Outgoing)> {
        let taken = std::mem::replace(self, Self::new());
        taken
            .messages
            .into_values()
            .filter_map(|entry| entry.waiter.map(|waiter| (waiter, entry.message)))
            .collect()
    }

    fn remove(&mut self, tag: u64) -> Option<UnsettledDelivery<T>> {
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
    fn a_multiple_confirm_answers_all_below_it_and_keeps_returns_apart() {
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
    fn a_nack_is_never_taken_for_an_ack() {
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
    fn a_return_marks_every_message_it_may_be() {
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
    fn a_return_of_another_queue_or_id_matches_nothing() {
        let mut outstanding = outstanding(&["a"]);
        assert!(!outstanding.mark_returned(&returned("a", "other")));
        assert!(!outstanding.mark_returned(&returned("b", "q")));
        assert_eq!(
            answers(&mut outstanding, ack(1, false)),
            [("a".to_owned(), PublishResult::Confirmed)]
        );
    }

    #[test]
    fn a_late_answer_only_frees_the_ghost() {
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
    fn confirms_out_of_order_and_repeated_answer_once() {
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
