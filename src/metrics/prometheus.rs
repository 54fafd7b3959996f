//! Renders a snapshot in Prometheus' text format 0.0.4.

use super::families::{Family, MetricKind};
use super::snapshot::{Sample, Snapshot, Value};
use std::fmt::{self, Write};

pub(super) fn render(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_all(&mut text, snapshot);
    text
}

fn write_all(out: &mut String, snapshot: &Snapshot) -> fmt::Result {
    let mut last = "";
    for sample in snapshot.iter() {
        // Samples of one metric are adjacent, so its head is written once.
        if sample.name() != last {
            write_head(out, sample.family())?;
            last = sample.name();
        }
        write_sample(out, sample)?;
    }
    Ok(())
}

fn write_head(out: &mut String, family: &Family) -> fmt::Result {
    let name = underscored(family.name);
    let kind = match family.kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram(_) => "histogram",
    };
    writeln!(out, "# HELP {name} {}", family.help)?;
    writeln!(out, "# TYPE {name} {kind}")
}

fn write_sample(out: &mut String, sample: &Sample) -> fmt::Result {
    let name = underscored(sample.name());
    match sample.value() {
        Value::Counter(count) => writeln!(out, "{name}{} {count}", labels(sample, None)),
        Value::Gauge(level) => writeln!(out, "{name}{} {level}", labels(sample, None)),
        Value::Histogram(histogram) => {
            for (bound, count) in histogram.buckets() {
                let labels = labels(sample, Some(bound));
                writeln!(out, "{name}_bucket{labels} {count}")?;
            }
            let labels = labels(sample, None);
            writeln!(out, "{name}_sum{labels} {}", histogram.sum())?;
            writeln!(out, "{name}_count{labels} {}", histogram.count())
        }
    }
}

/// The labels in braces, followed by the bound of a histogram bucket; empty without labels and
/// bound.
fn labels(sample: &Sample, bound: Option<f64>) -> String {
    let mut pairs: Vec<String> = sample
        .labels()
        .map(|(name, value)| format!("{}=\"{}\"", underscored(name), escaped(value)))
        .collect();
    if let Some(bound) = bound {
        pairs.push(if bound.is_infinite() {
            // Prometheus spells infinity like this.
            "le=\"+Inf\"".to_owned()
        } else {
            format!("le=\"{bound}\"")
        });
    }
    if pairs.is_empty() {
        return String::new();
    }
    format!("{{{}}}", pairs.join(","))
}

fn underscored(name: &str) -> String {
    name.replace('.', "_")
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
