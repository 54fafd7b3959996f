//! Test of a broker that is killed, started, and started without its data.

use rungmq::HealthStatus;

use super::{told, wait_until_down};
use crate::harness::observed::{SOON, diary, fixed};
use crate::harness::wait::let_pass;
use crate::harness::{Node, Raw, holds_for, secs, wait_until};

#[test]
fn consuming_resumes_after_kills_and_an_emptied_broker() {
    let node = Node::start();
    let url = node.url();
    let (service, story) = told(&url);
    let policy = fixed(3, 1.0);
    service.declare(&policy);
    let (diary, read) = diary();
    let consumer = service.mq.consumer("q").retry_policy(policy.clone());
    let consumer = consumer.start(diary.failing_once()).unwrap();
    let retried = |payload| {
        wait_until(SOON, "publishing is possible", || {
            service.mq.publish("", "q", &payload).is_ok()
        });
        let seen = read.wait_for(payload, 2);
        assert_eq!((seen[0].attempt, seen[1].attempt), (1, 2));
        assert_eq!(seen[1].exchange, "acemq.retry", "it waited in a rung");
    };
    let consumers = || {
        let rows = node.list_consumers("/");
        rows.iter().filter(|row| row["queue_name"] == "q").count()
    };
    let consumed_once = || {
        wait_until(SOON, "it is consumed", || consumers() == 1);
        holds_for(secs(1), "there is one consumer", || consumers() == 1);
    };
    retried(1);

    node.kill_9();
    wait_until_down(&service.mq);
    wait_until(SOON, "it is not consumed", || !consumer.is_running());
    node.start_again();
    wait_until(SOON, "it is consumed", || consumer.is_running());
    consumed_once();
    retried(2);

    // Killed in the middle of the recovery, as soon as the port is open again.
    node.kill_9();
    let recoveries = story.recoveries().len();
    node.start_again();
    node.kill_9();
    node.empty_data();
    wait_until_down(&service.mq);
    node.start_again();
    wait_until(SOON, "it is connected", || {
        service.mq.health().status == HealthStatus::Degraded
    });
    let subscribed = story.subscriptions().len();
    let_pass(secs(3));
    let health = service.mq.health();
    assert_eq!(health.status, HealthStatus::Degraded, "{health}");
    assert!(health.detail.unwrap().contains("\"q\" does not exist"));
    assert_eq!(story.subscriptions().len(), subscribed);
    assert!(story.recoveries().len() - recoveries <= 2);
    // Only the source queue is the application's to declare.
    Raw::open(&url).quorum("q");
    wait_until(SOON, "it is consumed", || consumer.is_running());
    consumed_once();
    retried(3);
    let raw = Raw::open(&url);
    for queue in ["q.retry.1s", "q.dlq", "q.parked"] {
        assert!(raw.exists(queue), "{queue}");
    }
    let bindings = node.list_bindings("/");
    let bound = |source: &str, queue: &str| {
        bindings.iter().any(|row| {
            row["source_name"] == source
                && row["destination_name"] == queue
                && row["routing_key"] == queue
        })
    };
    assert!(bound("acemq.retry", "q"));
    assert!(bound("acemq.dlx", "q.dlq") && bound("acemq.dlx", "q.parked"));
    assert_eq!(service.mq.health().status, HealthStatus::Up);
    service.mq.close().unwrap();
}
