//! Tests of `fixtures/contract.json` on a broker: it holds what the fixture says, and nothing else.

use rungmq::{Ack, Connection, ExchangeKind, Queue, RetryPolicy, Topology};
use serde_json::{Value, json};

use crate::harness::support::{Any, Declared, connect, sorted};
use crate::harness::{Vhost, secs, table};
use std::time::Duration;

const SOURCE: &str = "orders.new";

fn contract() -> Value {
    serde_json::from_str(include_str!("../../../fixtures/contract.json")).unwrap()
}

/// The fixture's topology, without what only services outside `by` declare.
fn expected(by: &[&str]) -> Declared {
    let contract = contract();
    let rows = |table: &str| {
        let rows = contract["topology"][table].as_array().unwrap().clone();
        let mut rows: Vec<_> = rows
            .into_iter()
            .filter(|row| by.contains(&row["declared_by"].as_str().unwrap()))
            .collect();
        for row in &mut rows {
            row.as_object_mut().unwrap().remove("declared_by");
        }
        sorted(rows)
    };
    Declared {
        exchanges: rows("exchanges"),
        queues: rows("queues"),
        bindings: rows("bindings"),
    }
}

fn policy() -> RetryPolicy {
    let contract = contract();
    let row = contract["policies"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == contract["topology"]["policy"])
        .unwrap()
        .clone();
    let millis = |column: &str| Duration::from_millis(row[column].as_u64().unwrap());
    let attempts = row["attempts"].as_u64().unwrap() as u32;
    assert_eq!(row["kind"], "exponential");
    RetryPolicy::exponential(attempts, millis("initial_ms"), millis("cap_ms")).unwrap()
}

fn threshold() -> Duration {
    Duration::from_millis(
        contract()["topology"]["retry_threshold_ms"]
            .as_u64()
            .unwrap(),
    )
}

fn apply(mq: &Connection) {
    let queue = Queue::new(SOURCE)
        .dead_letter()
        .retry(&policy())
        .retry_threshold(threshold());
    Topology::new()
        .exchange("orders", ExchangeKind::Topic)
        .queue(queue)
        .bind(SOURCE, "orders", "order.*")
        .apply(mq)
        .unwrap();
}

fn consume(mq: &Connection) {
    mq.consumer(SOURCE)
        .retry_policy(policy())
        .retry_threshold(threshold())
        .start(|_: Any| Ack::accept())
        .unwrap();
}

/// The source queue as another service declares it.
fn declare_by_hand(vhost: &Vhost<'_>) {
    vhost.raw().queue(
        SOURCE,
        table([
            ("x-queue-type", "quorum"),
            ("x-dead-letter-exchange", "acemq.dlx"),
            ("x-dead-letter-routing-key", "orders.new.dlq"),
        ]),
    );
}

#[test]
fn apply_alone_declares_what_the_fixture_says() {
    let vhost = Vhost::new();
    let mq = connect(&vhost);
    apply(&mq);
    assert_eq!(Declared::on(&vhost), expected(&["topology", "both"]));
    mq.close().unwrap();
}

#[test]
fn consume_alone_declares_its_share_and_never_the_source() {
    let vhost = Vhost::new();
    declare_by_hand(&vhost);
    let by_hand = Declared::on(&vhost).queue(SOURCE).clone();
    let mq = connect(&vhost);
    consume(&mq);
    let mut wanted = expected(&["consumer", "both"]);
    wanted.queues = sorted([wanted.queues, vec![by_hand]].concat());
    assert_eq!(Declared::on(&vhost), wanted);
    mq.close().unwrap();
}

#[test]
fn a_source_of_another_shape_is_left_as_it_is() {
    let vhost = Vhost::new();
    vhost.raw().queue(SOURCE, table([("x-max-length", 7_i64)]));
    let mq = connect(&vhost);
    consume(&mq);
    let declared = Declared::on(&vhost);
    assert_eq!(
        *declared.queue(SOURCE),
        json!({"name": SOURCE, "type": "classic", "durable": true, "arguments": {"x-max-length": 7}})
    );
    assert_eq!(
        declared.queues.len(),
        expected(&["consumer", "both"]).queues.len() + 1
    );
    mq.close().unwrap();
}

#[test]
fn apply_and_consume_agree_in_either_order() {
    let everything = expected(&["topology", "consumer", "both"]);

    let vhost = Vhost::new();
    let mq = connect(&vhost);
    apply(&mq);
    consume(&mq);
    assert_eq!(Declared::on(&vhost), everything);
    mq.close().unwrap();

    // The consumer first, beside a source that was declared by hand.
    let vhost = Vhost::new();
    declare_by_hand(&vhost);
    let mq = connect(&vhost);
    consume(&mq);
    apply(&mq);
    assert_eq!(Declared::on(&vhost), everything);
    mq.close().unwrap();
}

#[test]
fn applying_again_and_from_two_services_changes_nothing() {
    let vhost = Vhost::new();
    let services = [connect(&vhost), connect(&vhost)];
    std::thread::scope(|scope| {
        for mq in &services {
            scope.spawn(|| {
                for _ in 0..3 {
                    apply(mq);
                    consume(mq);
                }
            });
        }
    });
    assert_eq!(
        Declared::on(&vhost),
        expected(&["topology", "consumer", "both"])
    );
    vhost.raw().wait_for_consumers(SOURCE, 6, secs(10));
    for mq in services {
        mq.close().unwrap();
    }
}

/// The names and arguments that another service declares are the fixture's; ours must not differ in
/// a single type.
#[test]
fn what_another_library_declares_from_the_fixture_is_accepted() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    for row in contract()["topology"]["queues"].as_array().unwrap() {
        let arguments = row["arguments"].as_object().unwrap();
        let arguments = arguments.iter().map(|(name, value)| {
            let value = match value.as_str() {
                Some(text) => amiquip::AmqpValue::LongString(text.to_owned()),
                // The narrowest width that any of the other libraries writes.
                None => amiquip::AmqpValue::LongInt(value.as_i64().unwrap().try_into().unwrap()),
            };
            (name.clone(), value)
        });
        raw.queue(row["name"].as_str().unwrap(), arguments.collect());
    }
    let mq = connect(&vhost);
    apply(&mq);
    consume(&mq);
    assert_eq!(
        Declared::on(&vhost),
        expected(&["topology", "consumer", "both"])
    );
    mq.close().unwrap();
}
