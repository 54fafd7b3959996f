//! The health of a connection: a snapshot of its state, as values, one line or JSON.

use super::Connection;
use super::state::Phase;
use crate::consumer::Consumer;
use crate::publisher::{PublisherView, blocked_text};
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

/// How well a connection works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HealthStatus {
    /// Connected, and every consumer has a live subscription. A connection whose publishing the
    /// broker has blocked is up, too.
    Up,
    /// Connected, but a consumer has no live subscription, or the publishing connection is down.
    Degraded,
    /// Not connected.
    Down,
}

impl HealthStatus {
    /// The status as one lower-case word.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Degraded => "degraded",
            Self::Down => "down",
        }
    }
}

impl fmt::Display for HealthStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A snapshot of a connection's health, taken by [`Connection::health`](crate::Connection::health).
///
/// `Display` writes one line; [`to_json`](Self::to_json) makes an object for a health endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// How well the connection works.
    pub status: HealthStatus,
    /// The current problem, if there is one.
    pub detail: Option<String>,
    /// When the snapshot was taken, since the Unix epoch.
    pub checked: Duration,
    /// When the connection went up or down, since the Unix epoch.
    pub since: Duration,
    /// The last problem, which may be over.
    pub last_error: Option<String>,
    /// The number of consumers.
    pub consumers: usize,
    /// The number of consumers with a live subscription.
    pub consumers_running: usize,
    /// The consumed queues, sorted and without duplicates.
    pub queues: Vec<String>,
    /// Whether the broker has blocked publishing.
    pub blocked: bool,
    /// The broker's reason for that, if it gave one.
    pub blocked_reason: Option<String>,
    /// The number of retries and dead letters that wait until publishing is possible again.
    pub waiting_copies: usize,
}

impl Health {
    /// The snapshot as a JSON object: `status`, `checked` (RFC 3339), `detail` if there is any, and
    /// `parts` with `consumers`, `consumers_running`, `queues`, `blocked` and `blocked_reason`
    /// (`null` when there is none).
    ///
    /// The [guide](crate::docs::broker#losing-the-broker) shows one.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let checked = humantime::format_rfc3339_millis(UNIX_EPOCH + self.checked);
        let mut health = serde_json::json!({
            "status": self.status.as_str(),
            "checked": checked.to_string(),
            "parts": {
                "consumers": self.consumers,
                "consumers_running": self.consumers_running,
                "queues": self.queues,
                "blocked": self.blocked,
                "blocked_reason": self.blocked_reason,
            },
        });
        if let Some(detail) = &self.detail {
            health["detail"] = detail.as_str().into();
        }
        health
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            consumers,
            consumers_running,
            ..
        } = self;
        write!(
            f,
            "{}, {consumers_running} of {consumers} consumers running",
            self.status
        )?;
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl Connection {
    /// A snapshot of the connection's health. Does not contact the broker and does not wait.
    #[must_use]
    pub fn health(&self) -> Health {
        let core = &self.0.core;
        let mut consumers = core.state.consumers();
        consumers.retain(|consumer| !consumer.has_ended());
        let running = consumers
            .iter()
            .filter(|consumer| consumer.is_running())
            .count();
        let mut queues: Vec<String> = consumers
            .iter()
            .map(|consumer| consumer.queue().to_owned())
            .collect();
        queues.sort();
        queues.dedup();
        let publisher = core.services.publisher.view();
        let (status, detail) = assess(core.state.phase(), &consumers, &publisher);
        let (since, last_error) = core.state.history();
        Health {
            status,
            checked: since_epoch(core.services.clock.epoch_millis()),
            since: since_epoch(since),
            // A consumer's or the publisher's problem is not part of the connection's history.
            last_error: last_error.or_else(|| detail.clone()),
            detail,
            consumers: consumers.len(),
            consumers_running: running,
            queues,
            blocked: publisher.blocked.is_some(),
            blocked_reason: publisher.blocked.filter(|reason| !reason.is_empty()),
            waiting_copies: publisher.waiting,
        }
    }
}

/// The status, and the most severe problem there is.
fn assess(
    phase: Phase,
    consumers: &[Consumer],
    publisher: &PublisherView,
) -> (HealthStatus, Option<String>) {
    match phase {
        Phase::Down(reason) | Phase::GaveUp(reason) => (HealthStatus::Down, Some(reason)),
        Phase::Closing | Phase::Closed => {
            let detail = "the connection was closed".to_owned();
            (HealthStatus::Down, Some(detail))
        }
        Phase::Up => {
            let troubles = troubles(consumers);
            if !troubles.is_empty() {
                return (HealthStatus::Degraded, Some(troubles.join("; ")));
            }
            if let Some(reason) = &publisher.down {
                let detail = format!("the publishing connection is down: {reason}");
                return (HealthStatus::Degraded, Some(detail));
            }
            // A blocked broker still delivers, so the connection counts as up.
            let blocked = publisher.blocked.as_deref().map(blocked_text);
            (HealthStatus::Up, blocked)
        }
    }
}

/// The consumers that are not fully working, and why.
fn troubles(consumers: &[Consumer]) -> Vec<String> {
    let troubled = consumers.iter().filter_map(|consumer| {
        let trouble = consumer.trouble()?;
        Some(format!("{}: {trouble}", consumer.queue()))
    });
    troubled.collect()
}

fn since_epoch(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> Health {
        Health {
            status: HealthStatus::Degraded,
            detail: Some("orders.new: its queue was deleted".to_owned()),
            checked: Duration::from_millis(1_700_000_000_123),
            since: Duration::ZERO,
            last_error: None,
            consumers: 2,
            consumers_running: 1,
            queues: vec!["orders.new".to_owned()],
            blocked: false,
            blocked_reason: None,
            waiting_copies: 0,
        }
    }

    #[test]
    fn display_is_one_line() {
        let line = "degraded, 1 of 2 consumers running: orders.new: its queue was deleted";
        assert_eq!(health().to_string(), line);
    }

    #[test]
    fn json_has_parts_and_optional_detail() {
        let expected = serde_json::json!({
            "status": "degraded",
            "checked": "2023-11-14T22:13:20.123Z",
            "detail": "orders.new: its queue was deleted",
            "parts": {
                "consumers": 2,
                "consumers_running": 1,
                "queues": ["orders.new"],
                "blocked": false,
                "blocked_reason": null,
            },
        });
        assert_eq!(health().to_json(), expected);
        let up = Health {
            detail: None,
            ..health()
        };
        assert_eq!(up.to_json().get("detail"), None);
    }
}
