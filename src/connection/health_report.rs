//! What state a connection is in.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

/// Whether a connection does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HealthStatus {
    /// Connected, and every consumer has a live subscription. A connection that the broker has blocked is up, too.
    Up,
    /// Connected, but a consumer has no live subscription, or the publishing connection is down.
    Degraded,
    /// Not connected.
    Down,
}

impl HealthStatus {
    /// In one lower-case word.
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

/// The state of a connection at one moment. Made by [`Connection::health`](crate::Connection::health).
///
/// `Display` is one line, [`to_json`](Self::to_json) an object for a health endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the connection does its work.
    pub status: HealthStatus,
    /// What is wrong, when something is.
    pub detail: Option<String>,
    /// When this was found out, since 1970.
    pub checked: Duration,
    /// Since when the connection has been up, or down, since 1970.
    pub since: Duration,
    /// The last trouble there was, which may be over.
    pub last_error: Option<String>,
    /// How many consumers there are.
    pub consumers: usize,
    /// How many of them have a live subscription.
    pub consumers_running: usize,
    /// The queues that are consumed, each once.
    pub queues: Vec<String>,
    /// Whether the broker has blocked publishing.
    pub blocked: bool,
    /// Why it has, in its own words.
    pub blocked_reason: Option<String>,
    /// How many retries and dead letters wait for publishing to be possible again.
    pub waiting_copies: usize,
}

impl Health {
    /// As a JSON object: `status`, `checked` (RFC 3339), `detail` if there is any, and `parts`: `consumers`,
    /// `consumers_running`, `queues`, `blocked` and `blocked_reason` (`null` when there is none).
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
    fn is_one_line() {
        let line = "degraded, 1 of 2 consumers running: orders.new: its queue was deleted";
        assert_eq!(health().to_string(), line);
    }

    #[test]
    fn is_an_object_for_an_endpoint() {
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
