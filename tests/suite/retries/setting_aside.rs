//! Tests of dead-lettering and parking while the target queue is gone, forbidden or full.

use std::time::Duration;

use rungmq::{Ack, Connection, HealthStatus, Message, SetAsideFailure};
use serde_json::json;

use crate::harness::observed::{
    Observed, Reader, SOON, diary, fixed, unacknowledged, wait_until_empty,
};
use crate::harness::wait::let_pass;
use crate::harness::{Vhost, holds_for, secs, wait_until};

/// Consumes `q`; payload 1 is rejected, 2 is parked, anything else accepted.
fn consume(service: &Observed, failure: SetAsideFailure) -> Reader {
    let (diary, read) = diary();
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        match message.payload() {
            1 => Ack::reject("wrong"),
            2 => Ack::park("look at it"),
            _ => Ack::accept(),
        }
    };
    let consumer = service.mq.consumer("q").on_set_aside_failure(failure);
    consumer.start(handle).unwrap();
    read
}

/// Sets a policy under which the broker nacks everything that is published to `queue`.
fn refuse(vhost: &Vhost<'_>, queue: &str) {
    let pattern = format!("^{}$", queue.replace('.', "\\."));
    let definition = json!({"max-length": 0, "overflow": "reject-publish"});
    vhost.set_policy("refuse", &pattern, &definition);
}

#[test]
fn deleted_dead_letter_queue_is_declared_again() {
    let vhost = Vhost::new();
    let service = Observed::on(&vhost);
    service.declare(&fixed(1, 0.0));
    let read = consume(&service, SetAsideFailure::Reject);
    is_declared_again(&vhost, &service, &read, 1, "q.dlq", "rejected");
}

#[test]
fn deleted_parked_queue_is_declared_again() {
    let vhost = Vhost::new();
    let service = Observed::on(&vhost);
    service.declare(&fixed(1, 0.0));
    let read = consume(&service, SetAsideFailure::Reject);
    is_declared_again(&vhost, &service, &read, 2, "q.parked", "parked");
}

fn is_declared_again(
    vhost: &Vhost<'_>,
    service: &Observed,
    read: &Reader,
    payload: u64,
    target: &str,
    outcome: &str,
) {
    let raw = vhost.raw();
    raw.delete_queue(target);
    service.mq.publish("", "q", &payload).unwrap();
    service.wait_for_consumed(outcome, 1);
    let got = raw.wait_for_get(target, SOON);
    assert_eq!(got.text(), payload.to_string());
    assert_eq!(got.header_number("x-acemq-attempt"), Some(1));
    assert_eq!(read.attempts(payload), [1]);
    assert_eq!(service.set_aside_failed(target), 0);
    // Its binding is declared behind it.
    wait_until(SOON, "the binding stands again", || {
        vhost.list_bindings().iter().any(|row| {
            row["source_name"] == "acemq.dlx"
                && row["destination_name"] == target
                && row["routing_key"] == target
        })
    });
    let row = vhost.queue(target, &["durable", "type"]).unwrap();
    assert_eq!(row["durable"], true);
    // Its text differs between versions.
    assert!(row["type"].to_string().contains("classic"), "{row:?}");
    wait_until_empty(vhost, "q");
}

#[test]
fn copy_landing_on_a_returned_queue_restores_health() {
    let vhost = Vhost::new();
    let service = Observed::on(&vhost);
    service.declare(&fixed(1, 0.0));
    let _read = consume(&service, SetAsideFailure::Reject);
    vhost.lose("q.dlq");
    service.mq.publish("", "q", &1).unwrap();
    wait_until(SOON, "health names what is down", || {
        let health = service.mq.health();
        let detail = health.detail.unwrap_or_default();
        health.status == HealthStatus::Degraded && detail.contains("q.dlq")
    });
    vhost.find("q.dlq");
    vhost.raw().wait_for_count("q.dlq", 1, SOON);
    // Long before the consumer asks by itself.
    wait_until(secs(10), "health is up", || {
        service.mq.health().status == HealthStatus::Up
    });
}

/// A service whose user has no configure permission from now on.
fn service_without_rights(vhost: &Vhost<'_>, user: &str) -> Observed {
    let node = vhost.node();
    node.add_user(user, "secret");
    node.set_permissions(user, vhost.name(), "^$", ".*", ".*");
    Observed::to(&node.url_for_user(user, "secret", vhost.name()))
}

#[test]
fn undeclarable_dead_letter_queue_rejects_the_message_once() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    Observed::on(&vhost).declare(&fixed(1, 0.0));
    let service = service_without_rights(&vhost, "rejects-once");
    let read = consume(&service, SetAsideFailure::Reject);
    // The source queue's own dead-lettering shows each reject.
    raw.classic("witness");
    raw.bind("witness", "acemq.dlx", "q.dlq");
    raw.delete_queue("q.dlq");
    service.mq.publish("", "q", &1).unwrap();
    service.wait_for_consumed("rejected", 1);
    raw.wait_for_count("witness", 1, SOON);
    holds_for(secs(1.5), "no loop", || read.attempts(1) == [1]);
    assert_eq!(service.set_aside_failed("q.dlq"), 1);
    assert_eq!(raw.count("witness"), 1);
    wait_until_empty(&vhost, "q");
    assert!(!raw.exists("q.dlq"));
    service.mq.publish("", "q", &3).unwrap();
    service.wait_for_consumed("acked", 1);

    // The other queue is as it was.
    service.mq.publish("", "q", &2).unwrap();
    service.wait_for_consumed("parked", 1);
    assert_eq!(raw.count("q.parked"), 1);
}

#[test]
fn requeue_on_failure_lasts_until_the_queue_is_there() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    Observed::on(&vhost).declare(&fixed(1, 0.0));
    let service = service_without_rights(&vhost, "never-rejects");
    let read = consume(&service, SetAsideFailure::Requeue);
    raw.delete_queue("q.parked");
    service.mq.publish("", "q", &2).unwrap();
    service.mq.publish("", "q", &3).unwrap();
    service.wait_for_consumed("acked", 1);
    let seen = read.wait_for(2, 3);
    assert!(seen.iter().all(|seen| seen.attempt == 1), "{seen:?}");
    let pauses = [seen[1].at - seen[0].at, seen[2].at - seen[1].at];
    assert!(
        pauses[0] >= secs(0.95) && pauses[1] >= secs(1.95),
        "{pauses:?}"
    );
    assert!(service.set_aside_failed("q.parked") >= 2);
    assert!(service.handed_back("unroutable") >= 2);
    raw.classic("q.parked");
    service.wait_for_consumed("parked", 1);
    raw.wait_for_count("q.parked", 1, SOON);
    wait_until_empty(&vhost, "q");
}

#[test]
fn a_full_dead_letter_queue_is_no_reason_to_reject() {
    let vhost = Vhost::new();
    let service = Observed::on(&vhost);
    service.declare(&fixed(1, 0.0));
    let read = consume(&service, SetAsideFailure::Reject);
    refuse(&vhost, "q.dlq");
    service.mq.publish("", "q", &1).unwrap();
    service.mq.publish("", "q", &3).unwrap();
    // Held, it keeps neither the permit nor the others.
    service.wait_for_consumed("acked", 1);
    let seen = read.wait_for(1, 3);
    assert!(seen.iter().all(|seen| seen.attempt == 1), "{seen:?}");
    assert!(seen[1].redelivered);
    let pauses = [seen[1].at - seen[0].at, seen[2].at - seen[1].at];
    assert!(
        pauses[0] >= secs(0.95) && pauses[1] >= secs(1.95),
        "{pauses:?}"
    );
    let rounds = service.set_aside_failed("q.dlq");
    assert!(rounds >= 2, "{rounds}");
    assert!(service.handed_back("nacked") >= 2);
    vhost.clear_policy("refuse");
    service.wait_for_consumed("rejected", 1);
    let got = vhost.raw().wait_for_get("q.dlq", SOON);
    assert_eq!(got.header_number("x-acemq-attempt"), Some(1));
    wait_until_empty(&vhost, "q");
}

#[test]
fn delivery_limit_of_5_outlasts_6_s_of_refused_copies() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let service = Observed::on(&vhost);
    service.declare(&fixed(1, 0.0));
    vhost.set_policy("limit", "^q$", &json!({"delivery-limit": 5}));
    // What exceeds the limit would land here.
    raw.classic("witness");
    raw.bind("witness", "acemq.dlx", "q.dlq");
    let read = consume(&service, SetAsideFailure::Reject);
    refuse(&vhost, "q.dlq");
    service.mq.publish("", "q", &1).unwrap();
    let first = read.next().at;
    wait_until(SOON, "six seconds have passed", || {
        let_pass(Duration::from_millis(100));
        crate::harness::observed::now() - first >= secs(6)
    });
    assert_eq!(raw.count("witness"), 0);
    vhost.clear_policy("refuse");
    service.wait_for_consumed("rejected", 1);
    raw.wait_for_count("q.dlq", 1, SOON);
    assert_eq!(raw.count("witness"), 0);
    assert!(read.attempts(1).iter().all(|attempt| *attempt == 1));
}

#[test]
fn forbidden_default_exchange_rejects_each_message_once() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    Observed::on(&vhost).declare(&fixed(1, 0.0));
    raw.classic("witness");
    raw.bind("witness", "acemq.dlx", "q.dlq");
    let node = vhost.node();
    node.add_user("no-default", "secret");
    node.set_permissions(
        "no-default",
        vhost.name(),
        ".*",
        "^(?!amq\\.default$)",
        ".*",
    );
    let url = node.url_for_user("no-default", "secret", vhost.name());
    // Several copies in flight at a time, so that the culprit has to be found.
    let service = Observed::with(Connection::builder(url).prefetch(50));
    let messages = vhost.raw();
    let properties = amiquip::AmqpProperties::default();
    messages.send_all("q", vec!["1"; 20], &properties);
    messages.send("q", "3", properties);
    let read = consume(&service, SetAsideFailure::Reject);
    service.wait_for_consumed("acked", 1);
    service.wait_for_consumed("rejected", 20);
    raw.wait_for_count("witness", 20, SOON);
    assert_eq!(service.set_aside_failed("q.dlq"), 20);
    assert_eq!(read.of(1).len(), 20);
    wait_until(SOON, "nothing is unacknowledged", || {
        unacknowledged(&vhost) == 0
    });
    assert!(service.mq.is_running());
}
