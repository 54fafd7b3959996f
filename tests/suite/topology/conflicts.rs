//! Tests of existing queues and exchanges that conflict with what the library needs: a start ends
//! with one error that says everything, and other consumers of the connection are not affected.

use amiquip::{AmqpProperties, AmqpValue, ExchangeType, FieldTable};
use rungmq::{Ack, Connection, Error, ExchangeKind, Queue, RetryLadder, RetryPolicy, Topology};
use std::error::Error as _;
use std::time::Duration;

use crate::harness::support::{Any, Calls, Declared, connect};
use crate::harness::{Raw, Vhost, holds_for, secs, table};

const THRESHOLD: Duration = Duration::from_millis(500);

fn policy() -> RetryPolicy {
    RetryPolicy::fixed(3, secs(2)).unwrap()
}

fn consume(mq: &Connection, queue: &str) -> Result<rungmq::Consumer, Error> {
    mq.consumer(queue)
        .retry_policy(policy())
        .retry_threshold(THRESHOLD)
        .start(|_: Any| Ack::accept())
}

/// The arguments of the rung of `q` for two seconds, after `change`.
fn rung(change: impl FnOnce(&mut FieldTable)) -> FieldTable {
    let mut arguments = table([
        ("x-message-ttl", AmqpValue::LongLongInt(2000)),
        (
            "x-dead-letter-exchange",
            AmqpValue::LongString("acemq.retry".to_owned()),
        ),
        (
            "x-dead-letter-routing-key",
            AmqpValue::LongString("q".to_owned()),
        ),
    ]);
    change(&mut arguments);
    arguments
}

/// A second consumer on the connection under test, which must not notice anything.
struct Bystander {
    handled: Calls,
    redelivered: Calls,
    connection: serde_json::Value,
}

impl Bystander {
    fn start(vhost: &Vhost<'_>, raw: &Raw, mq: &Connection) -> Self {
        raw.classic("bystander");
        let (handled, redelivered) = (Calls::default(), Calls::default());
        let counts = (handled.clone(), redelivered.clone());
        mq.consume("bystander", move |message: Any| {
            if message.redelivered() {
                counts.1.add();
            }
            counts.0.add();
        })
        .unwrap();
        let connection = connection_of(vhost, "bystander");
        Self {
            handled,
            redelivered,
            connection,
        }
    }

    #[track_caller]
    fn is_undisturbed(&self, vhost: &Vhost<'_>, raw: &Raw, mq: &Connection) {
        let before = self.handled.count();
        raw.send("bystander", "1", AmqpProperties::default());
        self.handled.wait_for(before + 1, secs(10));
        assert_eq!(self.redelivered.count(), 0);
        assert_eq!(connection_of(vhost, "bystander"), self.connection);
        assert!(mq.is_running());
    }
}

/// The broker's process behind the only consumer of `queue`: another one after a reconnect.
#[track_caller]
fn connection_of(vhost: &Vhost<'_>, queue: &str) -> serde_json::Value {
    let mut consumers = vhost.list_consumers();
    consumers.retain(|row| row["queue_name"] == queue);
    assert_eq!(consumers.len(), 1, "{consumers:?}");
    consumers[0]["channel_pid"].clone()
}

#[track_caller]
fn one_refusal(error: &Error, code: u16, parts: &[&str]) {
    let Error::Broker {
        code: got, text, ..
    } = error
    else {
        panic!("not a refusal: {error:?}");
    };
    assert_eq!(*got, code, "{error}");
    assert!(!text.is_empty());
    let shown = error.to_string();
    assert!(
        shown.ends_with(text.as_str()),
        "the broker's words: {shown}"
    );
    for part in parts {
        assert!(shown.contains(part), "{part} is not in: {shown}");
    }
    assert!(error.source().is_none());
}

#[test]
fn conflicting_rung_error_names_argument_and_both_values() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.quorum("q");
    let mq = connect(&vhost);
    let bystander = Bystander::start(&vhost, &raw, &mq);
    let ttl = |millis| rung(|table| drop(table.insert("x-message-ttl".to_owned(), millis)));
    for (arguments, parts) in [
        (
            ttl(AmqpValue::LongLongInt(3000)),
            vec!["x-message-ttl", "2000", "3000"],
        ),
        (
            // A routing key without an exchange is refused by the broker itself.
            table([("x-message-ttl", 2000_i64)]),
            vec!["x-dead-letter-exchange", "acemq.retry"],
        ),
        (
            rung(|table| {
                let quorum = AmqpValue::LongString("quorum".to_owned());
                table.insert("x-queue-type".to_owned(), quorum);
            }),
            vec!["x-queue-type", "quorum"],
        ),
    ] {
        raw.queue("q.retry.2s", arguments);
        let error = consume(&mq, "q").unwrap_err();
        one_refusal(&error, 406, &[&["\"q.retry.2s\""], &parts[..]].concat());
        assert!(error.is_precondition_failed());
        // Nothing half started, and nothing tried again.
        holds_for(secs(0.3), "no consumer on q", || raw.consumers("q") == 0);
        bystander.is_undisturbed(&vhost, &raw, &mq);
        raw.delete_queue("q.retry.2s");
    }
    // With the obstacle gone the same connection consumes.
    consume(&mq, "q").unwrap();
    raw.wait_for_consumers("q", 1, secs(10));
    bystander.is_undisturbed(&vhost, &raw, &mq);
    mq.close().unwrap();
}

#[test]
fn missing_or_unexpected_ttl_is_refused() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.quorum("q");
    let mq = connect(&vhost);
    raw.queue(
        "q.retry.2s",
        rung(|table| drop(table.remove("x-message-ttl"))),
    );
    one_refusal(
        &consume(&mq, "q").unwrap_err(),
        406,
        &["\"q.retry.2s\"", "x-message-ttl", "2000"],
    );
    raw.delete_queue("q.retry.2s");
    for queue in ["q.dlq", "q.parked"] {
        raw.delete_queue(queue);
        raw.queue(queue, table([("x-message-ttl", 1234_i64)]));
        one_refusal(
            &consume(&mq, "q").unwrap_err(),
            406,
            &[&format!("{queue:?}"), "x-message-ttl", "1234"],
        );
        raw.delete_queue(queue);
        raw.classic(queue);
    }
    assert_eq!(raw.consumers("q"), 0);
    mq.close().unwrap();
}

#[test]
fn an_exchange_of_another_type_is_one_error_that_names_it() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.quorum("q");
    let mq = connect(&vhost);
    let bystander = Bystander::start(&vhost, &raw, &mq);
    for exchange in ["acemq.dlx", "acemq.retry"] {
        if raw.exchange_exists(exchange) {
            raw.delete_exchange(exchange);
        }
        raw.exchange(exchange, ExchangeType::Topic);
        let parts = [&format!("{exchange:?}") as &str, "type", "direct", "topic"];
        one_refusal(&consume(&mq, "q").unwrap_err(), 406, &parts);
        assert_eq!(raw.consumers("q"), 0);
        let queue = Queue::new("q")
            .retry(&policy())
            .retry_threshold(THRESHOLD)
            .dead_letter();
        let topology = Topology::new().queue(queue);
        if exchange == "acemq.dlx" {
            one_refusal(&topology.apply(&mq).unwrap_err(), 406, &parts);
        } else {
            let ladder = RetryLadder::new("q", &policy(), THRESHOLD).unwrap();
            one_refusal(&ladder.declare(&mq).unwrap_err(), 406, &parts);
        }
        raw.delete_exchange(exchange);
        bystander.is_undisturbed(&vhost, &raw, &mq);
    }
    consume(&mq, "q").unwrap();
    mq.close().unwrap();
}

#[test]
fn conflicting_topology_keeps_the_brokers_words() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    raw.exchange("events", ExchangeType::Fanout);
    let mq = connect(&vhost);
    let error = Topology::new()
        .queue(Queue::new("q"))
        .apply(&mq)
        .unwrap_err();
    one_refusal(&error, 406, &["queue \"q\"", "x-queue-type", "quorum"]);
    let events = Topology::new().exchange("events", ExchangeKind::Topic);
    one_refusal(
        &events.apply(&mq).unwrap_err(),
        406,
        &["exchange \"events\"", "topic", "fanout"],
    );
    // What came before the refusal stands, what came after it does not.
    let error = Topology::new()
        .queue(Queue::new("before").classic())
        .queue(Queue::new("q"))
        .queue(Queue::new("after").classic())
        .apply(&mq)
        .unwrap_err();
    assert!(error.is_precondition_failed());
    assert_eq!(vhost.queue_names(), ["before", "q"]);
    mq.close().unwrap();
}

#[test]
fn missing_source_queue_is_named_and_nothing_declared() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let mq = connect(&vhost);
    let bystander = Bystander::start(&vhost, &raw, &mq);
    let before = Declared::on(&vhost);
    let error = consume(&mq, "missing").unwrap_err();
    one_refusal(&error, 404, &["\"missing\"", "does not exist"]);
    assert!(error.is_not_found());
    assert_eq!(Declared::on(&vhost), before);
    let ladder = RetryLadder::new("missing", &policy(), THRESHOLD).unwrap();
    let error = ladder.declare(&mq).unwrap_err();
    one_refusal(&error, 404, &["binding of \"missing\" to \"acemq.retry\""]);
    bystander.is_undisturbed(&vhost, &raw, &mq);

    raw.classic("missing");
    consume(&mq, "missing").unwrap();
    raw.wait_for_consumers("missing", 1, secs(10));
    mq.close().unwrap();
}

#[test]
fn an_exclusive_consumer_in_the_way_is_an_error_that_says_so() {
    let vhost = Vhost::new();
    let (raw, owner) = (vhost.raw(), vhost.raw());
    // Quorum queues let others in beside an exclusive consumer (seen on 3.10.8).
    raw.classic("q");
    owner.occupy("q");
    let mq = connect(&vhost);
    let bystander = Bystander::start(&vhost, &raw, &mq);
    for _ in 0..3 {
        let error = consume(&mq, "q").unwrap_err();
        one_refusal(&error, 403, &["\"q\"", "exclusive"]);
        assert!(error.is_access_refused());
    }
    bystander.is_undisturbed(&vhost, &raw, &mq);
    assert_eq!(raw.consumers("q"), 1);
    drop(owner);
    raw.wait_for_consumers("q", 0, secs(10));
    consume(&mq, "q").unwrap();
    raw.wait_for_consumers("q", 1, secs(10));
    mq.close().unwrap();
}

#[test]
fn exclusive_queue_of_another_connection_is_named() {
    let vhost = Vhost::new();
    let (owner, other) = (connect(&vhost), connect(&vhost));
    let own = Topology::new().queue(Queue::new("own").exclusive());
    own.apply(&owner).unwrap();
    let error = consume(&other, "own").unwrap_err();
    one_refusal(&error, 405, &["\"own\""]);
    assert!(error.is_access_refused());
    one_refusal(&own.apply(&other).unwrap_err(), 405, &["\"own\""]);
    // Its owner may.
    consume(&owner, "own").unwrap();
    owner.close().unwrap();
    other.close().unwrap();
}

#[test]
fn failed_starts_leave_no_channel_behind() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.quorum("q");
    raw.classic("taken");
    raw.occupy("taken");
    raw.queue("q.retry.2s", table([("x-message-ttl", 1_i64)]));
    let mq = Connection::open(format!("{}?channel_max=8", vhost.url())).unwrap();
    let bystander = Bystander::start(&vhost, &raw, &mq);
    for _ in 0..30 {
        assert!(consume(&mq, "missing").unwrap_err().is_not_found());
        assert!(consume(&mq, "q").unwrap_err().is_precondition_failed());
        assert!(consume(&mq, "taken").unwrap_err().is_access_refused());
    }
    bystander.is_undisturbed(&vhost, &raw, &mq);
    // The raw client's and the bystander's.
    crate::harness::wait_until(secs(10), "two channels are left", || {
        vhost.list_channels(&["pid"]).len() == 2
    });
    mq.close().unwrap();
}
