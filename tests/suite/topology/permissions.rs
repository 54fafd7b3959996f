//! Tests of users without configure permission: they consume where everything is declared, and get
//! an error that names what is missing where it is not.

use amiquip::AmqpProperties;
use log::Level;
use rungmq::{
    Ack, Connection, Consumer, Error, ExchangeKind, HealthStatus, Queue, RetryLadder, RetryPolicy,
    Topology,
};
use std::time::Duration;

use crate::harness::only_on_rabbitmq;
use crate::harness::support::{Any, Calls, Declared, connect};
use crate::harness::{Vhost, logs, secs, wait_until};

const THRESHOLD: Duration = Duration::from_millis(500);

fn policy() -> RetryPolicy {
    RetryPolicy::fixed(2, secs(1)).unwrap()
}

fn topology(queue: &str) -> Topology {
    Topology::new()
        .exchange(format!("{queue}.events"), ExchangeKind::Topic)
        .queue(
            Queue::new(queue)
                .dead_letter()
                .retry(&policy())
                .retry_threshold(THRESHOLD),
        )
        .bind(queue, format!("{queue}.events"), "order.*")
}

/// A connection of a user with only these permissions.
#[track_caller]
fn connect_as(vhost: &Vhost<'_>, configure: &str, write: &str, read: &str) -> Connection {
    let user = format!("user-of-{}", vhost.name());
    let node = vhost.node();
    node.add_user(&user, "secret");
    node.set_permissions(&user, vhost.name(), configure, write, read);
    Connection::open(node.url_for_user(&user, "secret", vhost.name())).unwrap()
}

fn consume(mq: &Connection, queue: &str, calls: &Calls) -> Result<Consumer, Error> {
    let calls = calls.clone();
    mq.consumer(queue)
        .retry_policy(policy())
        .retry_threshold(THRESHOLD)
        .start(move |_: Any| {
            calls.add();
            Ack::retry("no stock")
        })
}

/// One line, which names all of `parts`.
#[track_caller]
fn one_warning(queue: &str, parts: &[String]) {
    let lines = logs::captured_with(Level::Warn, &format!("\"{queue}"));
    assert_eq!(lines.len(), 1, "{lines:#?}");
    for part in parts {
        assert!(
            lines[0].contains(part.as_str()),
            "{part} is not in: {}",
            lines[0]
        );
    }
}

#[track_caller]
fn refused(error: &Error, parts: &[&str]) {
    let Error::Broker {
        code: 403, text, ..
    } = error
    else {
        panic!("not a refusal: {error:?}");
    };
    assert!(error.is_access_refused());
    let shown = error.to_string();
    assert!(
        !text.is_empty() && shown.ends_with(text.as_str()),
        "{shown}"
    );
    for part in parts {
        assert!(shown.contains(part), "{part} is not in: {shown}");
    }
}

fn share(queue: &str) -> Vec<String> {
    let own = [".dlq", ".parked", ".retry.1s"].map(|part| format!("queue \"{queue}{part}\""));
    let exchanges = ["acemq.dlx", "acemq.retry"].map(|name| format!("exchange \"{name}\""));
    [&own[..], &exchanges[..]].concat()
}

#[test]
fn consuming_works_without_configure_permission() {
    logs::capture();
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let owner = connect(&vhost);
    topology("p1").apply(&owner).unwrap();
    let before = Declared::on(&vhost);
    let mq = connect_as(&vhost, "^$", ".*", ".*");
    let calls = Calls::default();
    consume(&mq, "p1", &calls).unwrap();
    one_warning("p1", &share("p1"));
    raw.send("p1", "1", AmqpProperties::default());
    // By way of the rung, and then into the dead-letter queue.
    calls.wait_for(2, secs(20));
    raw.wait_for_count("p1.dlq", 1, secs(10));
    assert_eq!(Declared::on(&vhost), before);
    mq.close().unwrap();
    owner.close().unwrap();
}

#[test]
fn forbidden_binding_of_a_consumer_is_a_warning() {
    logs::capture();
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let owner = connect(&vhost);
    topology("p2").apply(&owner).unwrap();
    // Binding takes the right to write to the queue; copies go through the default exchange.
    let mq = connect_as(&vhost, "^$", "^amq\\.default$", ".*");
    let calls = Calls::default();
    consume(&mq, "p2", &calls).unwrap();
    let bindings = [
        ("p2.dlq", "acemq.dlx"),
        ("p2.parked", "acemq.dlx"),
        ("p2", "acemq.retry"),
    ]
    .map(|(queue, exchange)| format!("binding of \"{queue}\" to \"{exchange}\""));
    one_warning("p2", &[share("p2"), bindings.to_vec()].concat());
    raw.send("p2", "1", AmqpProperties::default());
    calls.wait_for(2, secs(20));
    raw.wait_for_count("p2.dlq", 1, secs(10));
    mq.close().unwrap();
    owner.close().unwrap();
}

only_on_rabbitmq! { "users with rights of their own";
#[test]
fn missing_object_without_permission_is_named() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let owner = connect(&vhost);
    topology("q").apply(&owner).unwrap();
    let mq = connect_as(&vhost, "^$", ".*", ".*");
    let calls = Calls::default();
    for missing in ["q.retry.1s", "q.parked", "q.dlq"] {
        raw.delete_queue(missing);
        refused(
            &consume(&mq, "q", &calls).unwrap_err(),
            &[&format!("queue {missing:?}"), "does not exist"],
        );
        assert_eq!(raw.consumers("q"), 0);
    }
    for exchange in ["acemq.retry", "acemq.dlx"] {
        raw.delete_exchange(exchange);
        topology("q").apply(&mq).unwrap_err();
        for missing in ["q.dlq", "q.parked", "q.retry.1s"] {
            raw.classic(missing);
        }
        let part = format!("exchange {exchange:?}");
        let parts = [&part as &str, "does not exist"];
        refused(&topology("q").apply(&mq).unwrap_err(), &parts);
        refused(&consume(&mq, "q", &calls).unwrap_err(), &parts);
    }
    raw.delete_queue("q.retry.1s");
    // The owner puts it right, and the same connection consumes.
    topology("q").apply(&owner).unwrap();
    consume(&mq, "q", &calls).unwrap();
    raw.wait_for_consumers("q", 1, secs(10));
    mq.close().unwrap();
    owner.close().unwrap();
}
}

#[test]
fn without_the_right_to_read_the_queue_it_cannot_be_consumed() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let owner = connect(&vhost);
    topology("q").apply(&owner).unwrap();
    let mq = connect_as(&vhost, ".*", ".*", "^acemq");
    let error = consume(&mq, "q", &Calls::default()).unwrap_err();
    refused(&error, &["\"q\""]);
    assert_eq!(raw.consumers("q"), 0);
    mq.close().unwrap();
    owner.close().unwrap();
}

#[test]
fn topology_without_configure_permission_warns_once() {
    logs::capture();
    let vhost = Vhost::new();
    let owner = connect(&vhost);
    topology("p3").apply(&owner).unwrap();
    let before = Declared::on(&vhost);
    let mq = connect_as(&vhost, "^$", ".*", ".*");
    topology("p3").apply(&mq).unwrap();
    let whole = ["queue \"p3\"", "exchange \"p3.events\""].map(str::to_owned);
    one_warning("p3", &[share("p3"), whole.to_vec()].concat());
    assert_eq!(Declared::on(&vhost), before);
    mq.close().unwrap();
    owner.close().unwrap();
}

#[test]
fn forbidden_binding_of_a_topology_is_a_warning() {
    logs::capture();
    let vhost = Vhost::new();
    let owner = connect(&vhost);
    topology("p4").apply(&owner).unwrap();
    let mq = connect_as(&vhost, "^$", "^$", "^$");
    topology("p4").apply(&mq).unwrap();
    let bindings =
        ["p4.events", "acemq.retry"].map(|exchange| format!("binding of \"p4\" to \"{exchange}\""));
    one_warning("p4", &[share("p4"), bindings.to_vec()].concat());
    let ladder = RetryLadder::new("p4", &policy(), THRESHOLD).unwrap();
    ladder.declare(&mq).unwrap();
    mq.close().unwrap();
    owner.close().unwrap();
}

#[test]
fn declare_false_declares_nothing_and_asks_for_nothing() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.quorum("q");
    let before = Declared::on(&vhost);
    let mq = connect_as(&vhost, "^$", ".*", ".*");
    let calls = Calls::default();
    let counted = calls.clone();
    mq.consumer("q")
        .retry_policy(policy())
        .retry_threshold(THRESHOLD)
        .declare(false)
        .start(move |message: Any| {
            counted.add();
            // Without a rung the wait is the consumer's.
            if message.attempt() == 1 {
                Err("no stock")
            } else {
                Ok(())
            }
        })
        .unwrap();
    raw.send("q", "1", AmqpProperties::default());
    calls.wait_for(2, secs(20));
    assert_eq!(Declared::on(&vhost), before);
    // The source queue is still looked at.
    let error = mq
        .consumer("missing")
        .declare(false)
        .start(|_: Any| ())
        .unwrap_err();
    assert!(
        error.is_not_found() && error.to_string().contains("\"missing\""),
        "{error}"
    );
    mq.close().unwrap();
}

#[test]
fn queues_on_a_down_node_are_warnings_for_a_consumer() {
    logs::capture();
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let mq = connect(&vhost);
    topology("p5").apply(&mq).unwrap();
    for queue in ["p5.dlq", "p5.parked", "p5.retry.1s"] {
        vhost.lose(queue);
        assert!(!raw.exists(queue));
    }
    let calls = Calls::default();
    consume(&mq, "p5", &calls).unwrap();
    let lines = logs::captured_with(Level::Warn, "p5.");
    for queue in ["p5.dlq", "p5.parked", "p5.retry.1s"] {
        assert!(
            lines.iter().any(|line| line.contains(queue)),
            "{queue} is not in: {lines:#?}"
        );
    }
    // A source queue that is lost that way is an error all the same.
    raw.classic("p6");
    vhost.lose("p6");
    let error = consume(&mq, "p6", &calls).unwrap_err();
    assert!(error.is_not_found(), "{error:?}");
    mq.close().unwrap();
}

#[test]
fn consumer_recovers_while_its_dead_letter_node_is_down() {
    logs::capture();
    let vhost = Vhost::new();
    let owner = connect(&vhost);
    topology("p7").apply(&owner).unwrap();
    owner.close().unwrap();
    let mq = connect_as(&vhost, "^$", ".*", ".*");
    let calls = Calls::default();
    let consumer = consume(&mq, "p7", &calls).unwrap();
    let lost = ["p7.dlq", "p7.retry.1s"];
    lost.iter().for_each(|queue| vhost.lose(queue));
    vhost.close_connections();
    wait_until(
        secs(20),
        "it consumes, and health names what is lost",
        || {
            let health = mq.health();
            let detail = health.detail.unwrap_or_default();
            consumer.is_running()
                && health.status == HealthStatus::Degraded
                && lost.iter().all(|queue| detail.contains(queue))
        },
    );
    for queue in lost {
        let lines = logs::captured_with(Level::Warn, &format!("queue {queue:?}"));
        assert!(
            lines.iter().any(|line| line.contains("may not declare")),
            "{lines:#?}"
        );
    }
    vhost.raw().send("p7", "1", AmqpProperties::default());
    calls.wait_for(1, secs(20));
    // One that starts does not know whether they ever stood.
    refused(
        &consume(&mq, "p7", &calls).unwrap_err(),
        &["queue \"p7.dlq\"", "does not exist"],
    );
    mq.close().unwrap();
}
