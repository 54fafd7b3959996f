//! Tests of the registry and its output.

use super::*;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn keys(registry: &Registry) -> Vec<String> {
    registry
        .snapshot()
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn one_of_each() -> Registry {
    let registry = Registry::new();
    registry.published(&Published::new("events", PublishOutcome::Confirmed, 3 * MS));
    registry.received(&Received::new("orders", 2));
    registry.consumed(&Consumed::new("orders", Outcome::Acked, Some(MS)));
    registry.copy_landed(&CopyLanded::new("orders", Outcome::Retried));
    registry.copy_landed(&CopyLanded::new("orders", Outcome::Parked));
    registry.set_aside_failed(&SetAsideFailed::new("orders", "orders.dlq"));
    registry.rung_missing(&RungMissing::new("orders"));
    registry.handed_back(&HandedBack::new("orders", HandBackReason::Nacked));
    registry.recovered(&Recovered::new(MS));
    registry
}

#[test]
fn names_and_labels() {
    assert_eq!(
        keys(&one_of_each()),
        [
            "acemq.publish.total{exchange=events,outcome=confirmed}",
            "acemq.publish.duration{exchange=events,outcome=confirmed}",
            "acemq.consume.total{queue=orders,outcome=acked}",
            "acemq.consume.duration{queue=orders,outcome=acked}",
            "acemq.consume.attempts{queue=orders}",
            "acemq.consume.in.flight{queue=orders}",
            "acemq.messages.retried.total{queue=orders,outcome=retried}",
            "acemq.messages.dead.lettered.total{queue=orders,outcome=parked}",
            "acemq.messages.set.aside.failed{queue=orders,target=orders.dlq}",
            "acemq.retry.rung.missing{queue=orders}",
            "acemq.retry.handed.back{queue=orders,reason=nacked}",
            "acemq.connection.recovered",
        ]
    );
}

#[test]
fn label_values() {
    use HandBackReason::{Drain, Lost, Nacked, Timeout, Unroutable};
    let reasons = [Unroutable, Nacked, Timeout, Lost, Drain].map(|reason| reason.to_string());
    assert_eq!(
        reasons,
        ["unroutable", "nacked", "timeout", "lost", "drain"]
    );
    let outcomes = [
        PublishOutcome::Confirmed,
        PublishOutcome::Unroutable,
        PublishOutcome::Refused,
        PublishOutcome::Failed,
    ]
    .map(|outcome| outcome.to_string());
    assert_eq!(outcomes, ["confirmed", "unroutable", "refused", "failed"]);
}

#[test]
fn lookup_needs_all_labels_in_any_order() {
    let snapshot = one_of_each().snapshot();
    let name = "acemq.consume.total";
    let (queue, outcome) = (("queue", "orders"), ("outcome", "acked"));
    assert_eq!(snapshot.counter(name, &[queue, outcome]), 1);
    assert_eq!(snapshot.counter(name, &[outcome, queue]), 1);
    assert_eq!(snapshot.counter(name, &[queue]), 0);
    assert_eq!(snapshot.counter(name, &[queue, queue]), 0);
    assert_eq!(snapshot.counter("acemq.consume.attempts", &[queue]), 0);
    assert_eq!(snapshot.counter("acemq.connection.recovered", &[]), 1);
    assert!(snapshot.histogram(name, &[queue, outcome]).is_none());
}

#[test]
fn in_flight_rises_and_falls() {
    let registry = Registry::new();
    let level = || {
        let snapshot = registry.snapshot();
        snapshot.gauge("acemq.consume.in.flight", &[("queue", "q")])
    };
    registry.received(&Received::new("q", 1));
    registry.received(&Received::new("q", 1));
    assert_eq!(level(), 2);
    registry.consumed(&Consumed::new("q", Outcome::HandedBack, None));
    assert_eq!(level(), 1);
    registry.consumed(&Consumed::new("q", Outcome::Discarded, Some(MS)));
    assert_eq!(level(), 0);
}

#[test]
fn handler_that_did_not_run_has_no_duration() {
    let registry = Registry::new();
    registry.consumed(&Consumed::new("q", Outcome::Parked, None));
    let snapshot = registry.snapshot();
    let labels = [("queue", "q"), ("outcome", "parked")];
    assert_eq!(snapshot.counter("acemq.consume.total", &labels), 1);
    let duration = snapshot.histogram("acemq.consume.duration", &labels);
    assert!(duration.is_none());
}

#[test]
fn copy_of_a_rejected_message_is_not_counted() {
    let registry = Registry::new();
    for outcome in [Outcome::Rejected, Outcome::Acked, Outcome::HandedBack] {
        registry.copy_landed(&CopyLanded::new("q", outcome));
    }
    assert!(keys(&registry).is_empty());
    registry.copy_landed(&CopyLanded::new("q", Outcome::DeadLettered));
    assert_eq!(
        keys(&registry),
        ["acemq.messages.dead.lettered.total{queue=q,outcome=dead_lettered}"]
    );
}

#[test]
fn buckets_include_their_bound() {
    let registry = Registry::new();
    for attempt in [1, 2, 2, 60] {
        registry.received(&Received::new("q", attempt));
    }
    let snapshot = registry.snapshot();
    let attempts = snapshot
        .histogram("acemq.consume.attempts", &[("queue", "q")])
        .unwrap();
    assert_eq!(attempts.count(), 4);
    assert_eq!(attempts.sum(), 65.0);
    let within = |bound| {
        let mut buckets = attempts.buckets();
        buckets.find(|(at, _)| *at == bound).unwrap().1
    };
    assert_eq!(within(1.0), 1);
    assert_eq!(within(2.0), 3);
    assert_eq!(within(50.0), 3);
    assert_eq!(within(f64::INFINITY), 4);
}

#[test]
fn prometheus_text() {
    let registry = Registry::new();
    registry.recovered(&Recovered::new(MS));
    registry.received(&Received::new("a\"b\\c\nd", 2));
    registry.copy_landed(&CopyLanded::new("q", Outcome::Retried));
    let labels = r#"queue="a\"b\\c\nd""#;
    let expected = format!(
        r##"# HELP acemq_consume_attempts Attempt numbers of deliveries.
# TYPE acemq_consume_attempts histogram
acemq_consume_attempts_bucket{{{labels},le="1"}} 0
acemq_consume_attempts_bucket{{{labels},le="2"}} 1
acemq_consume_attempts_bucket{{{labels},le="3"}} 1
acemq_consume_attempts_bucket{{{labels},le="4"}} 1
acemq_consume_attempts_bucket{{{labels},le="5"}} 1
acemq_consume_attempts_bucket{{{labels},le="7"}} 1
acemq_consume_attempts_bucket{{{labels},le="10"}} 1
acemq_consume_attempts_bucket{{{labels},le="15"}} 1
acemq_consume_attempts_bucket{{{labels},le="25"}} 1
acemq_consume_attempts_bucket{{{labels},le="50"}} 1
acemq_consume_attempts_bucket{{{labels},le="+Inf"}} 1
acemq_consume_attempts_sum{{{labels}}} 2
acemq_consume_attempts_count{{{labels}}} 1
# HELP acemq_consume_in_flight Deliveries without a final outcome.
# TYPE acemq_consume_in_flight gauge
acemq_consume_in_flight{{{labels}}} 1
# HELP acemq_messages_retried_total Retries with a confirmed copy.
# TYPE acemq_messages_retried_total counter
acemq_messages_retried_total{{queue="q",outcome="retried"}} 1
# HELP acemq_connection_recovered Connections lost and recovered.
# TYPE acemq_connection_recovered counter
acemq_connection_recovered 1
"##
    );
    assert_eq!(registry.prometheus(), expected);
}

#[test]
fn series_of_one_metric_share_a_head() {
    let registry = Registry::new();
    for queue in ["b", "a"] {
        registry.rung_missing(&RungMissing::new(queue));
    }
    assert_eq!(
        registry.prometheus(),
        "# HELP acemq_retry_rung_missing Retries whose rung does not exist.\n\
         # TYPE acemq_retry_rung_missing counter\n\
         acemq_retry_rung_missing{queue=\"a\"} 1\n\
         acemq_retry_rung_missing{queue=\"b\"} 1\n"
    );
}

#[test]
fn clones_share_counts_across_threads() {
    let registry = Registry::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let registry = registry.clone();
            scope.spawn(move || {
                for _ in 0..100 {
                    registry.rung_missing(&RungMissing::new("q"));
                }
            });
        }
    });
    let missing = registry
        .snapshot()
        .counter("acemq.retry.rung.missing", &[("queue", "q")]);
    assert_eq!(missing, 400);
}

#[test]
fn observer_methods_are_optional() {
    struct Silent;
    impl Observer for Silent {}
    let observer: Box<dyn Observer> = Box::new(Silent);
    observer.recovered(&Recovered::new(MS));
}
