//! The record of its deaths that a dead letter carries, and the detection of cycles by it.

use super::message::{Death, Message, keys};
use super::profile::Profile;
use crate::message::headers::{HeaderValue, Headers};

/// The reason for which a message is dead-lettered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeathReason {
    Rejected,
    Expired,
    MaxLength,
    DeliveryLimit,
}

impl DeathReason {
    /// The name of the reason in `x-death`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::MaxLength => "maxlen",
            Self::DeliveryLimit => "delivery_limit",
        }
    }
}

/// The circumstances under which a message is dead-lettered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadLettering<'a> {
    pub(crate) reason: DeathReason,
    pub(crate) queue: &'a str,
    /// The dead-letter exchange.
    pub(crate) exchange: &'a str,
    pub(crate) routing_key: Option<&'a str>,
    pub(crate) epoch_millis: i64,
}

impl DeadLettering<'_> {
    /// The dead letter of a message, as it is published to the dead-letter exchange.
    pub(crate) fn apply(&self, message: &Message, profile: Profile) -> Message {
        let mut dead_letter = message.clone();
        match profile {
            Profile::V3_10 => self.record_in_headers(message, &mut dead_letter),
            Profile::V4_0 => self.record(message, &mut dead_letter),
        }
        dead_letter.exchange = self.exchange.to_owned();
        if let Some(key) = self.routing_key {
            dead_letter.routing_keys = vec![key.to_owned()];
        }
        // The next queue must not apply the old time to live again.
        dead_letter.properties.expiration = None;
        dead_letter
    }

    /// Records the death as 3.x does: in the headers only, where an entry of a client counts.
    fn record_in_headers(&self, message: &Message, dead_letter: &mut Message) {
        let mut routing_keys = vec![message.routing_key().to_owned()];
        routing_keys.extend(keys(&message.headers, "CC").unwrap_or_default());
        let entry = self.entry(
            message,
            routing_keys,
            message.properties.expiration.as_deref(),
        );
        let headers = &mut dead_letter.headers;
        let (queue, reason) = (self.queue, self.reason.as_str());
        let deaths = match headers.get("x-death") {
            None => {
                // Only the first death sets these headers.
                self.write_ends(headers, "first", message);
                vec![entry]
            }
            Some(HeaderValue::Array(deaths)) => {
                let mut others = grouped(deaths);
                let same = |death: &Headers| is_of(death, queue, reason);
                let entry = match others.iter().position(same) {
                    Some(place) => counted_up(others.remove(place)),
                    None => entry,
                };
                let mut deaths = vec![entry];
                deaths.extend(others);
                deaths
            }
            Some(_) => vec![entry],
        };
        headers.insert("x-death", array(deaths));
        if self.routing_key.is_some() {
            headers.remove("CC");
        }
    }

    /// Records the death as 4.x does: beside the message, with a copy in the headers.
    fn record(&self, message: &Message, dead_letter: &mut Message) {
        let mut routing_keys = message.routing_keys.clone();
        // One occurrence for each blind key: the same key can be a public one, too.
        for blind in &message.blind_keys {
            if let Some(place) = routing_keys.iter().position(|key| key == blind) {
                routing_keys.remove(place);
            }
        }
        let (queue, reason) = (self.queue, self.reason.as_str());
        let deaths = &mut dead_letter.deaths;
        let is_first = deaths.is_empty();
        let known = deaths
            .iter()
            .position(|death| death.queue == queue && death.reason == reason);
        let death = match known {
            Some(place) => {
                let death = deaths.remove(place);
                Death {
                    entry: counted_up(death.entry),
                    ..death
                }
            }
            None => Death {
                queue: queue.to_owned(),
                reason,
                entry: self.entry(
                    message,
                    routing_keys,
                    message.ttl().map(|ttl| ttl.to_string()).as_deref(),
                ),
            },
        };
        deaths.insert(0, death);
        let shown = deaths.iter().map(|death| death.entry.clone()).collect();
        dead_letter.headers.insert("x-death", array(shown));
        if is_first {
            self.write_ends(&mut dead_letter.headers, "first", message);
        }
        self.write_ends(&mut dead_letter.headers, "last", message);
    }

    fn write_ends(&self, headers: &mut Headers, end: &str, message: &Message) {
        headers.insert(format!("x-{end}-death-reason"), self.reason.as_str());
        headers.insert(format!("x-{end}-death-queue"), self.queue);
        headers.insert(format!("x-{end}-death-exchange"), message.exchange.as_str());
    }

    fn entry(
        &self,
        message: &Message,
        routing_keys: Vec<String>,
        expiration: Option<&str>,
    ) -> Headers {
        let seconds = u64::try_from(self.epoch_millis / 1000).unwrap_or(0);
        let routing_keys: Vec<HeaderValue> =
            routing_keys.into_iter().map(HeaderValue::Text).collect();
        let mut entry: Headers = [
            ("count", HeaderValue::I64(1)),
            ("reason", self.reason.as_str().into()),
            ("queue", self.queue.into()),
            ("time", HeaderValue::Timestamp(seconds)),
            ("exchange", message.exchange.as_str().into()),
            ("routing-keys", HeaderValue::Array(routing_keys)),
        ]
        .into_iter()
        .collect();
        if let Some(expiration) = expiration {
            entry.insert("original-expiration", expiration);
        }
        entry
    }
}

/// Whether a dead letter is dropped instead of entering `queue`: it died there before, and was not
/// rejected since.
pub(crate) fn is_cycle(
    dead_letter: &Message,
    queue: &str,
    reason: DeathReason,
    profile: Profile,
) -> bool {
    if reason == DeathReason::Rejected {
        return false;
    }
    let recorded: Vec<(Option<&str>, Option<&str>)> = match profile {
        Profile::V4_0 => dead_letter
            .deaths
            .iter()
            .map(|death| (Some(death.queue.as_str()), Some(death.reason)))
            .collect(),
        Profile::V3_10 => match dead_letter.headers.get("x-death") {
            Some(HeaderValue::Array(deaths)) => deaths
                .iter()
                .map(|death| match death {
                    HeaderValue::Table(death) => (text(death, "queue"), text(death, "reason")),
                    // 3.x treats an entry that is no table like a rejection.
                    _ => (None, Some("rejected")),
                })
                .collect(),
            _ => Vec::new(),
        },
    };
    match recorded.iter().position(|(of, _)| *of == Some(queue)) {
        Some(place) => recorded[..=place]
            .iter()
            .all(|(_, reason)| *reason != Some("rejected")),
        None => false,
    }
}

/// The entries as 3.x rewrites them at each death: reversed, one for each queue and reason, and
/// with a count where a client wrote none.
fn grouped(deaths: &[HeaderValue]) -> Vec<Headers> {
    let tables = || {
        deaths.iter().filter_map(|death| match death {
            HeaderValue::Table(death) => Some(death),
            _ => None,
        })
    };
    if tables().count() < 2 {
        return tables().cloned().collect();
    }
    let mut grouped: Vec<Headers> = Vec::new();
    for death in tables() {
        let same = |other: &&Headers| {
            other.get("queue") == death.get("queue") && other.get("reason") == death.get("reason")
        };
        if grouped.iter().any(|seen| same(&seen)) {
            continue;
        }
        let mut first = death.clone();
        if !first.contains("count") {
            let count = tables().filter(same).count();
            first.insert("count", i64::try_from(count).unwrap_or(i64::MAX));
        }
        grouped.insert(0, first);
    }
    grouped
}

fn is_of(death: &Headers, queue: &str, reason: &str) -> bool {
    text(death, "queue") == Some(queue) && text(death, "reason") == Some(reason)
}

fn text<'a>(death: &'a Headers, field: &str) -> Option<&'a str> {
    death.get(field)?.as_str()
}

fn counted_up(mut death: Headers) -> Headers {
    let count = death.get("count").and_then(HeaderValue::as_i64);
    death.insert("count", count.map_or(1, |count| count.saturating_add(1)));
    death
}

fn array(deaths: Vec<Headers>) -> HeaderValue {
    HeaderValue::Array(deaths.into_iter().map(HeaderValue::Table).collect())
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests;
