//! The metrics by name. Dashboards across all AceMQ libraries rest on these names and labels.

/// A metric with all its series.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    pub(super) labels: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets, ascending, the infinite one left out.
    Histogram(&'static [f64]),
}

const SECONDS: Kind = Kind::Histogram(&[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 300.0,
]);
const ATTEMPTS: Kind = Kind::Histogram(&[1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 25.0, 50.0]);

macro_rules! families {
    ($($family:ident = $name:literal, $kind:expr, $labels:expr, $help:literal;)+) => {
        /// Which metric; the index into [`FAMILIES`].
        #[derive(Clone, Copy, Debug)]
        pub(super) enum Metric {
            $($family),+
        }

        /// Every metric, in the order they are shown.
        pub(super) static FAMILIES: &[Family] = &[
            $(Family { name: $name, help: $help, kind: $kind, labels: &$labels }),+
        ];
    };
}

families! {
    PublishTotal = "acemq.publish.total", Kind::Counter, ["exchange", "outcome"],
        "Publishes that have ended, copies included.";
    PublishDuration = "acemq.publish.duration", SECONDS, ["exchange", "outcome"],
        "Seconds from a publish to its end.";
    ConsumeTotal = "acemq.consume.total", Kind::Counter, ["queue", "outcome"],
        "Deliveries whose fate is known.";
    ConsumeDuration = "acemq.consume.duration", SECONDS, ["queue", "outcome"],
        "Seconds a handler ran.";
    ConsumeAttempts = "acemq.consume.attempts", ATTEMPTS, ["queue"],
        "The attempt each delivery came with.";
    ConsumeInFlight = "acemq.consume.in.flight", Kind::Gauge, ["queue"],
        "Deliveries taken on whose fate is not known yet.";
    MessagesRetried = "acemq.messages.retried.total", Kind::Counter, ["queue", "outcome"],
        "Retries whose copy landed.";
    MessagesDeadLettered = "acemq.messages.dead.lettered.total", Kind::Counter, ["queue", "outcome"],
        "Messages given up or parked whose copy landed.";
    SetAsideFailed = "acemq.messages.set.aside.failed", Kind::Counter, ["queue", "target"],
        "Rounds in which a message could not be set aside.";
    RungMissing = "acemq.retry.rung.missing", Kind::Counter, ["queue"],
        "Retries that found their rung missing.";
    HandedBack = "acemq.retry.handed.back", Kind::Counter, ["queue", "reason"],
        "Deliveries handed back with their attempt unchanged.";
    Recovered = "acemq.connection.recovered", Kind::Counter, [],
        "Connections lost and recovered.";
}
