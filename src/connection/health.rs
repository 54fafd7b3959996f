//! Looking at a connection from outside.

use super::Connection;
use super::health_report::{Health, HealthStatus};
use super::state::Phase;
use crate::consumer::Consumer;
use crate::publisher::blocked_text;
use std::time::Duration;

impl Connection {
    /// What state the connection is in. Asks nothing of the broker and never waits.
    #[must_use]
    pub fn health(&self) -> Health {
        let core = &self.0.core;
        let mut consumers = core.status.consumers();
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
        let (status, detail) = match core.status.phase() {
            Phase::Down(reason) | Phase::GaveUp(reason) => (HealthStatus::Down, Some(reason)),
            Phase::Closing | Phase::Closed => (
                HealthStatus::Down,
                Some("the connection was closed".to_owned()),
            ),
            Phase::Up
                if consumers
                    .iter()
                    .any(|consumer| consumer.trouble().is_some()) =>
            {
                (HealthStatus::Degraded, Some(troubles(&consumers)))
            }
            Phase::Up => match &publisher.down {
                Some(reason) => {
                    let detail = format!("the publishing connection is down: {reason}");
                    (HealthStatus::Degraded, Some(detail))
                }
                None => {
                    let blocked = publisher.blocked.as_deref().map(blocked_text);
                    (HealthStatus::Up, blocked)
                }
            },
        };
        let (since, last_error) = core.status.history();
        Health {
            status,
            checked: since_epoch(core.services.clock.epoch_millis()),
            since: since_epoch(since),
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

/// Which consumers do not do all of their work, and why.
fn troubles(consumers: &[Consumer]) -> String {
    let troubled = consumers.iter().filter_map(|consumer| {
        let trouble = consumer.trouble()?;
        Some(format!("{}: {trouble}", consumer.queue()))
    });
    troubled.collect::<Vec<_>>().join("; ")
}

fn since_epoch(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
