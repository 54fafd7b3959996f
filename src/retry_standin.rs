//! Stands in for `crate::retry` until the branches are merged; to be deleted then.

use crate::headers::Headers;
use crate::topology::names;
use std::time::Duration;

/// Stand-in.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    delays: Vec<Duration>,
}

impl RetryPolicy {
    /// Stand-in: a policy by its schedule.
    #[must_use]
    pub fn of(delays: impl IntoIterator<Item = Duration>) -> Self {
        Self {
            delays: delays.into_iter().collect(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Rung {
    queue: String,
    source: String,
    delay: Duration,
}

impl Rung {
    pub(crate) fn queue(&self) -> &str {
        &self.queue
    }

    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }

    pub(crate) fn arguments(&self) -> Headers {
        let mut arguments = Headers::new();
        let millis = i64::try_from(self.delay.as_millis()).unwrap_or(i64::MAX);
        arguments.insert("x-message-ttl", millis);
        arguments.insert("x-dead-letter-exchange", names::RETRY_EXCHANGE);
        arguments.insert("x-dead-letter-routing-key", self.source.as_str());
        arguments
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RetryLadder {
    rungs: Vec<Rung>,
}

impl RetryLadder {
    pub(crate) fn new(
        queue: &str,
        policy: &RetryPolicy,
        threshold: Duration,
    ) -> Result<Self, String> {
        let mut rungs: Vec<Rung> = Vec::new();
        for delay in &policy.delays {
            if threshold.is_zero() || *delay < threshold || delay.is_zero() {
                continue;
            }
            if delay.as_millis() > 315_360_000_000 {
                return Err(format!("a delay of {delay:?} is over ten years"));
            }
            let name = names::retry_queue(queue, *delay);
            if rungs.iter().all(|rung| rung.queue != name) {
                rungs.push(Rung {
                    queue: name,
                    source: queue.to_owned(),
                    delay: *delay,
                });
            }
        }
        Ok(Self { rungs })
    }

    pub(crate) fn rungs(&self) -> &[Rung] {
        &self.rungs
    }
}
