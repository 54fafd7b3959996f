//! A snapshot of a registry.

use super::families::Family;
use std::fmt;

/// The values of a [`Registry`](crate::metrics::Registry) at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    samples: Vec<Sample>,
}

impl Snapshot {
    pub(super) fn new(samples: Vec<Sample>) -> Self {
        Self { samples }
    }

    /// All samples, grouped by metric and sorted by labels.
    pub fn iter(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter()
    }

    /// The value of a counter; 0 if it does not exist. All labels must be given, in any order.
    #[must_use]
    pub fn counter(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        match self.value(name, labels) {
            Some(Value::Counter(count)) => *count,
            _ => 0,
        }
    }

    /// The value of a gauge; 0 if it does not exist. All labels must be given, in any order.
    #[must_use]
    pub fn gauge(&self, name: &str, labels: &[(&str, &str)]) -> i64 {
        match self.value(name, labels) {
            Some(Value::Gauge(level)) => *level,
            _ => 0,
        }
    }

    /// A histogram; `None` if it does not exist. All labels must be given, in any order.
    #[must_use]
    pub fn histogram(&self, name: &str, labels: &[(&str, &str)]) -> Option<&Histogram> {
        match self.value(name, labels) {
            Some(Value::Histogram(histogram)) => Some(histogram),
            _ => None,
        }
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<&Value> {
        let mut samples = self.samples.iter();
        samples
            .find(|sample| {
                sample.name() == name
                    && sample.labels().count() == labels.len()
                    && sample.labels().all(|label| labels.contains(&label))
            })
            .map(Sample::value)
    }
}

/// One series and its value. `Display` shows the series alone: `name{label=value,…}`, or `name`
/// without labels.
#[derive(Clone, Debug)]
pub struct Sample {
    family: &'static Family,
    labels: [String; 2],
    value: Value,
}

impl Sample {
    pub(super) fn new(family: &'static Family, labels: [String; 2], value: Value) -> Self {
        Self {
            family,
            labels,
            value,
        }
    }

    /// The name of the metric, such as `acemq.consume.total`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.family.name
    }

    /// The names and values of the labels.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let names = self.family.labels.iter().copied();
        names.zip(self.labels.iter().map(String::as_str))
    }

    /// The value of the series.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    pub(super) fn family(&self) -> &'static Family {
        self.family
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        for (index, (name, value)) in self.labels().enumerate() {
            f.write_str(if index == 0 { "{" } else { "," })?;
            write!(f, "{name}={value}")?;
        }
        if self.family.labels.is_empty() {
            return Ok(());
        }
        f.write_str("}")
    }
}

/// The value of a [`Sample`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A monotonic count.
    Counter(u64),
    /// A level that rises and falls.
    Gauge(i64),
    /// A distribution of values.
    Histogram(Histogram),
}

/// A distribution of values: their count, their sum, and cumulative counts for fixed bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// The number of values in each bucket, not cumulative. The last entry counts values beyond all
    /// bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    pub(super) fn record(&mut self, value: f64) {
        // Bounds are inclusive, as in Prometheus.
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum += value;
    }

    /// The number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the values.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Upper bounds in ascending order, each with the number of values not above it. The last bound
    /// is infinity.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        // Buckets are stored separately and summed here.
        let within = self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        });
        bounds.zip(within)
    }
}
