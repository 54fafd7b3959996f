//! The observer that aggregates in memory.

use super::events::{
    Consumed, CopyLanded, HandedBack, Published, Received, Recovered, RungMissing, SetAsideFailed,
};
use super::families::{FAMILIES, Family, Metric, MetricKind};
use super::snapshot::{Histogram, Sample, Snapshot, Value};
use super::{Observer, Outcome, prometheus};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// An [`Observer`] that aggregates in memory, for a scrape endpoint or a test.
///
/// Clones are cheap and share their counts.
///
/// ```
/// use rungmq::metrics::Registry;
///
/// let registry = Registry::new();
/// // Pass a clone to the builder of the connection. Later:
/// let snapshot = registry.snapshot();
/// let labels = [("queue", "orders"), ("outcome", "acked")];
/// let acked = snapshot.counter("acemq.consume.total", &labels);
/// assert_eq!(acked, 0);
/// assert_eq!(registry.prometheus(), "");
/// ```
#[derive(Clone)]
pub struct Registry {
    /// One table for each of [`FAMILIES`], in the same order. The lock is held for one update or
    /// one clone, never while calling out.
    tables: Arc<Mutex<Vec<SeriesTable>>>,
}

/// The series of one metric by its first and second label; a missing label is empty. The maps are
/// nested so that a lookup by `&str` does not allocate.
type SeriesTable = BTreeMap<String, BTreeMap<String, Value>>;

impl Registry {
    /// Creates an empty registry.
    #[must_use]
    pub fn new() -> Self {
        let tables = FAMILIES.iter().map(|_| SeriesTable::new()).collect();
        Self {
            tables: Arc::new(Mutex::new(tables)),
        }
    }

    /// Returns a consistent snapshot of all values.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        // Cloned under the lock, so that all values belong to one moment.
        let tables = self.tables.lock().clone();
        let mut samples = Vec::new();
        for (family, table) in FAMILIES.iter().zip(tables) {
            for (first, seconds) in table {
                for (second, value) in seconds {
                    let labels = [first.clone(), second];
                    samples.push(Sample::new(family, labels, value));
                }
            }
        }
        Snapshot::new(samples)
    }

    /// Renders all values in Prometheus' text format 0.0.4
    /// (`Content-Type: text/plain; version=0.0.4; charset=utf-8`).
    #[must_use]
    pub fn prometheus(&self) -> String {
        prometheus::render(&self.snapshot())
    }

    fn count(&self, metric: Metric, labels: [&str; 2]) {
        self.update(metric, labels, |value| {
            if let Value::Counter(count) = value {
                *count = count.saturating_add(1);
            }
        });
    }

    fn add(&self, metric: Metric, labels: [&str; 2], change: i64) {
        self.update(metric, labels, |value| {
            if let Value::Gauge(level) = value {
                *level = level.saturating_add(change);
            }
        });
    }

    fn record(&self, metric: Metric, labels: [&str; 2], observed: f64) {
        self.update(metric, labels, |value| {
            if let Value::Histogram(histogram) = value {
                histogram.record(observed);
            }
        });
    }

    fn update(&self, metric: Metric, [first, second]: [&str; 2], change: impl FnOnce(&mut Value)) {
        let index = metric as usize;
        let mut tables = self.tables.lock();
        // Both tables have an entry for every metric; the `else` is unreachable.
        let Some((table, family)) = tables.get_mut(index).zip(FAMILIES.get(index)) else {
            return;
        };
        // Fast path without allocation: the series exists after its first event.
        if let Some(value) = table.get_mut(first).and_then(|row| row.get_mut(second)) {
            return change(value);
        }
        let row = table.entry(first.to_owned()).or_default();
        change(row.entry(second.to_owned()).or_insert_with(|| zero(family)));
    }
}

fn zero(family: &Family) -> Value {
    match family.kind {
        MetricKind::Counter => Value::Counter(0),
        MetricKind::Gauge => Value::Gauge(0),
        MetricKind::Histogram(bounds) => Value::Histogram(Histogram::new(bounds)),
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

impl Observer for Registry {
    fn published(&self, event: &Published<'_>) {
        let labels = [event.exchange(), event.outcome().as_str()];
        self.count(Metric::PublishTotal, labels);
        let seconds = event.duration().as_secs_f64();
        self.record(Metric::PublishDuration, labels, seconds);
    }

    fn received(&self, event: &Received<'_>) {
        let labels = [event.queue(), ""];
        self.record(Metric::ConsumeAttempts, labels, event.attempt().into());
        self.add(Metric::ConsumeInFlight, labels, 1);
    }

    fn consumed(&self, event: &Consumed<'_>) {
        let labels = [event.queue(), event.outcome().as_str()];
        self.count(Metric::ConsumeTotal, labels);
        if let Some(time) = event.handler_time() {
            self.record(Metric::ConsumeDuration, labels, time.as_secs_f64());
        }
        // Pairs with the increment in `received`: each delivery has exactly one of both events.
        self.add(Metric::ConsumeInFlight, [event.queue(), ""], -1);
    }

    fn copy_landed(&self, event: &CopyLanded<'_>) {
        let metric = match event.outcome() {
            Outcome::Retried => Metric::MessagesRetried,
            Outcome::DeadLettered | Outcome::Parked => Metric::MessagesDeadLettered,
            // A rejected message is counted by `acemq.consume.total` alone.
            _ => return,
        };
        self.count(metric, [event.queue(), event.outcome().as_str()]);
    }

    fn set_aside_failed(&self, event: &SetAsideFailed<'_>) {
        self.count(Metric::SetAsideFailed, [event.queue(), event.target()]);
    }

    fn rung_missing(&self, event: &RungMissing<'_>) {
        self.count(Metric::RungMissing, [event.queue(), ""]);
    }

    fn handed_back(&self, event: &HandedBack<'_>) {
        let labels = [event.queue(), event.reason().as_str()];
        self.count(Metric::HandedBack, labels);
    }

    fn recovered(&self, _event: &Recovered) {
        self.count(Metric::Recovered, ["", ""]);
    }
}
