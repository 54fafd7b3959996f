//! The error of a shutdown that reaches its deadline, with the deliveries that it leaves behind.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// A delivery that was unsettled at the deadline of a drain. The broker redelivers it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StrandedDelivery {
    /// The queue, which redelivers it.
    pub queue: String,
    /// The message's id.
    pub message_id: String,
    /// Its attempt, from 1. The redelivery has the same.
    pub attempt: u32,
    /// The time since its handler started.
    pub running_for: Duration,
}

/// A shutdown reached its deadline while handlers were running or their outcome was not settled.
///
/// The handlers keep running in their threads, and their outcome is discarded. No message is lost:
/// each delivery is redelivered with its attempt unchanged. `Display` writes one sentence; `Debug`
/// shows every delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainTimeout {
    timeout: Duration,
    stranded: BTreeMap<String, usize>,
    deliveries: Vec<StrandedDelivery>,
}

impl DrainTimeout {
    /// The error for these deliveries; `None` when there are none.
    pub(crate) fn new(timeout: Duration, deliveries: Vec<StrandedDelivery>) -> Option<Self> {
        let mut stranded = BTreeMap::new();
        for delivery in &deliveries {
            *stranded.entry(delivery.queue.clone()).or_default() += 1;
        }
        (!deliveries.is_empty()).then_some(Self {
            timeout,
            stranded,
            deliveries,
        })
    }

    /// The number of stranded deliveries by queue, without queues that have none.
    #[must_use]
    pub fn stranded(&self) -> &BTreeMap<String, usize> {
        &self.stranded
    }

    /// The timeout of the shutdown.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The stranded deliveries.
    #[must_use]
    pub fn deliveries(&self) -> &[StrandedDelivery] {
        &self.deliveries
    }
}

impl fmt::Display for DrainTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timeout = self.timeout.as_secs_f64();
        write!(f, "the drain did not finish within {timeout}s: ")?;
        match self.deliveries.len() {
            1 => f.write_str("1 delivery was left unsettled and will be redelivered — ")?,
            n => write!(
                f,
                "{n} deliveries were left unsettled and will be redelivered — "
            )?,
        }
        for (index, (queue, count)) in self.stranded.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{queue} ({count})")?;
        }
        Ok(())
    }
}

impl Error for DrainTimeout {}

#[cfg(test)]
mod tests {
    use super::*;

    fn stranded(queues: &[&str]) -> Vec<StrandedDelivery> {
        let delivery = |queue: &&str| StrandedDelivery {
            queue: (*queue).to_owned(),
            message_id: "id".to_owned(),
            attempt: 1,
            running_for: Duration::from_secs(1),
        };
        queues.iter().map(delivery).collect()
    }

    #[test]
    fn display_counts_deliveries_by_queue() {
        let queues = ["orders.shipped", "orders.new", "orders.new"];
        let error = DrainTimeout::new(Duration::from_secs(20), stranded(&queues)).unwrap();
        assert_eq!(
            error.to_string(),
            "the drain did not finish within 20s: 3 deliveries were left unsettled and will be \
             redelivered — orders.new (2), orders.shipped (1)"
        );
        assert_eq!(error.stranded()["orders.new"], 2);
    }

    #[test]
    fn display_has_singular_and_fractions_of_seconds() {
        let error = DrainTimeout::new(Duration::from_millis(500), stranded(&["q"])).unwrap();
        assert_eq!(
            error.to_string(),
            "the drain did not finish within 0.5s: 1 delivery was left unsettled and will be \
             redelivered — q (1)"
        );
        assert_eq!(DrainTimeout::new(Duration::ZERO, Vec::new()), None);
    }
}
