//! The table of metrics: names, kinds, labels and help texts.
//!
//! The AceMQ libraries in other languages use the same names and labels, so that dashboards work
//! for all of them.

/// The description of one metric.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: MetricKind,
    pub(super) labels: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
    /// The upper bounds of the buckets, ascending, without the infinite one.
    Histogram(&'static [f64]),
}

const SECONDS: MetricKind = MetricKind::Histogram(&[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 300.0,
]);
const ATTEMPTS: MetricKind =
    MetricKind::Histogram(&[1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 25.0, 50.0]);

macro_rules! families {
    ($($family:ident = $name:literal, $kind:expr, $labels:expr, $help:literal;)+) => {
        /// A metric. Its discriminant is the index into [`FAMILIES`].
        #[derive(Clone, Copy, Debug)]
        pub(super) enum Metric {
            $($family),+
        }

        /// All metrics, in the order of the output.
        pub(super) static FAMILIES: &[Family] = &[
            $(Family { name: $name, help: $help, kind: $kind, labels: &$labels }),+
        ];
    };
}

families! {
    PublishTotal = "acemq.publish.total", MetricKind::Counter, ["exchange", "outcome"],
        "Publishes that have ended, copies included.";
    PublishDuration = "acemq.publish.duration", SECONDS, ["exchange", "outcome"],
        "Seconds from a publish to its outcome.";
    ConsumeTotal = "acemq.consume.total", MetricKind::Counter, ["queue", "outcome"],
        "Deliveries with a final outcome.";
    ConsumeDuration = "acemq.consume.duration", SECONDS, ["queue", "outcome"],
        "Seconds a handler ran.";
    ConsumeAttempts = "acemq.consume.attempts", ATTEMPTS, ["queue"],
        "Attempt numbers of deliveries.";
    ConsumeInFlight = "acemq.consume.in.flight", MetricKind::Gauge, ["queue"],
        "Deliveries without a final outcome.";
    MessagesRetried = "acemq.messages.retried.total", MetricKind::Counter, ["queue", "outcome"],
        "Retries with a confirmed copy.";
    MessagesDeadLettered = "acemq.messages.dead.lettered.total", MetricKind::Counter,
        ["queue", "outcome"],
        "Messages given up or parked with a confirmed copy.";
    SetAsideFailed = "acemq.messages.set.aside.failed", MetricKind::Counter, ["queue", "target"],
        "Failed attempts to dead-letter or park a message.";
    RungMissing = "acemq.retry.rung.missing", MetricKind::Counter, ["queue"],
        "Retries whose rung does not exist.";
    HandedBack = "acemq.retry.handed.back", MetricKind::Counter, ["queue", "reason"],
        "Deliveries requeued with their attempt unchanged.";
    Recovered = "acemq.connection.recovered", MetricKind::Counter, [],
        "Connections lost and recovered.";
}
