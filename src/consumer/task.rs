//! One delivery on its way through a worker, seen from outside.

use crate::clock::monotonic;
use crate::message::Opened;
use crate::metrics::{Consumed, Metrics, Received};
use crate::outcome::Outcome;
use crate::shutdown::StrandedDelivery;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What everybody may know about a delivery that was handed to the workers.
#[derive(Debug, Default)]
pub(crate) struct Task(OnceLock<Beginning>);

#[derive(Debug)]
struct Beginning {
    opened: Arc<Opened>,
    at: Instant,
}

impl Task {
    /// A worker has taken it.
    pub(super) fn begin(&self, opened: Arc<Opened>) {
        let _ = self.0.set(Beginning {
            opened,
            at: monotonic(),
        });
    }

    /// The message, once a worker has taken it.
    pub(super) fn opened(&self) -> Option<&Arc<Opened>> {
        self.0.get().map(|beginning| &beginning.opened)
    }

    /// `None` while no worker has taken it.
    pub(super) fn stranded(&self, queue: &str) -> Option<StrandedDelivery> {
        self.0.get().map(|beginning| StrandedDelivery {
            queue: queue.to_owned(),
            message_id: beginning.opened.envelope.id().to_owned(),
            attempt: beginning.opened.envelope.attempt(),
            running_for: beginning.at.elapsed(),
        })
    }
}

/// Counts one started delivery until its fate is known. Dropped without one, its outcome was thrown away.
#[derive(Debug)]
pub(super) struct InFlight {
    queue: Arc<str>,
    metrics: Metrics,
    count: Arc<AtomicUsize>,
    outcome: Outcome,
    pub(super) handler_time: Option<Duration>,
}

impl InFlight {
    pub(super) fn begin(
        queue: &Arc<str>,
        metrics: &Metrics,
        count: &Arc<AtomicUsize>,
        attempt: u32,
    ) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        metrics.received(&Received::new(queue, attempt));
        Self {
            queue: queue.clone(),
            metrics: metrics.clone(),
            count: count.clone(),
            outcome: Outcome::Discarded,
            handler_time: None,
        }
    }

    pub(super) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics
            .consumed(&Consumed::new(&self.queue, self.outcome, self.handler_time));
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}
