//! Tests of how a publish ends on a healthy broker, and that one caller's error affects no other.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use amiquip::{AmqpProperties, AmqpValue};
use rungmq::{Ack, HeaderValue, Headers, Message, Publish};

use crate::harness::observed::{Observed, SOON, diary, fixed};
use crate::harness::rabbitmq::Row;
use crate::harness::wait::timed;
use crate::harness::{Raw, Vhost, secs, table, wait_until};
use crate::suite::steady;

/// AMQP's limit for names, keys, ids and header names, in bytes.
const LONGEST: usize = 255;

fn to(queue: &str, payload: u64) -> Publish {
    Publish::json(&payload).unwrap().routing_key(queue)
}

/// The processes behind the rows, in no order: the broker lists them in any.
fn pids(rows: &[Row]) -> BTreeSet<String> {
    let rows = rows.iter().filter(|row| !row.is_empty());
    rows.map(|row| row["pid"].to_string()).collect()
}

#[test]
fn a_publish_returns_once_the_broker_has_the_message() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let service = Observed::on(&vhost);
    let envelope = service.mq.publish("", "q", &7).unwrap();
    let got = raw.get("q").unwrap();
    assert_eq!(got.text(), "7");
    assert_eq!(got.message_id(), Some(envelope.id()));
    assert_eq!(got.header_text("x-acemq-id"), Some(envelope.id()));
    assert_eq!(got.properties.delivery_mode(), &Some(2));
    assert_eq!(service.published("", "confirmed"), 1);
}

#[test]
fn a_mandatory_message_that_no_queue_takes_comes_back() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let service = Observed::on(&vhost);
    let message = to("nowhere", 7).header("tenant", "acme").mandatory(true);
    let error = service.mq.publish_with(message).unwrap_err();
    assert!(error.is_unroutable(), "{error}");
    assert!(!error.is_refused() && !error.is_unknown() && !error.is_invalid());

    let again = error.into_message().unwrap().routing_key("q");
    service.mq.publish_with(again).unwrap();
    let got = vhost.raw().get("q").unwrap();
    assert_eq!((got.text(), got.header_text("tenant")), ("7", Some("acme")));
    // Without the flag the broker drops it, and that is no error.
    service.mq.publish_with(to("nowhere", 8)).unwrap();
    assert_eq!(service.published("", "unroutable"), 1);
    assert_eq!(service.published("", "confirmed"), 2);
}

#[test]
fn a_missing_exchange_is_named_and_publishing_goes_on() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let service = Observed::on(&vhost);
    for _ in 0..3 {
        let error = service.mq.publish("no.such.exchange", "key", &7);
        let error = error.unwrap_err();
        assert!(error.is_refused() && !error.is_unknown(), "{error}");
        assert!(error.to_string().contains("no.such.exchange"), "{error}");
        assert!(error.into_message().is_some());
        service.mq.publish("", "q", &8).unwrap();
    }
    assert_eq!(service.published("no.such.exchange", "refused"), 3);
    assert_eq!(raw.count("q"), 3);
}

#[test]
fn a_missing_exchange_disturbs_no_copy() {
    let vhost = Vhost::new();
    let service = Observed::on(&vhost);
    service.declare(&fixed(3, 0.0));
    let (diary, read) = diary();
    let consumer = service.mq.consumer("q").retry_policy(fixed(3, 0.0));
    let consumer = consumer.concurrency(4).start(move |message: Message<u64>| {
        diary.note(&message);
        Ack::retry("always")
    });
    consumer.unwrap();
    for payload in 0..100 {
        service.mq.publish("", "q", &payload).unwrap();
        service.mq.publish("missing", "key", &0).unwrap_err();
    }
    service.wait_for_consumed("dead_lettered", 100);
    for payload in 0..100 {
        assert_eq!(read.attempts(payload), [1, 2, 3], "{payload}");
    }
    assert_eq!(service.handed_back("lost"), 0);
    assert_eq!(vhost.raw().count("q.dlq"), 100);
}

/// Declares the queue `full`, which refuses what is more than one message.
fn full(raw: &Raw) {
    let arguments = [
        ("x-max-length", AmqpValue::LongLongInt(1)),
        (
            "x-overflow",
            AmqpValue::LongString("reject-publish".to_owned()),
        ),
    ];
    raw.queue("full", table(arguments));
}

#[test]
fn a_queue_that_is_full_refuses() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    full(&raw);
    let service = Observed::on(&vhost);
    service.mq.publish("", "full", &1).unwrap();
    let error = service.mq.publish("", "full", &2).unwrap_err();
    assert!(error.is_refused(), "{error}");
    assert!(!error.is_unroutable() && !error.is_unknown() && !error.is_invalid());
    assert_eq!(error.into_message().unwrap().body(), b"2");
    assert_eq!(service.published("", "refused"), 1);

    raw.purge("full");
    service.mq.publish("", "full", &3).unwrap();
    assert_eq!(raw.get("full").unwrap().text(), "3");
}

#[test]
fn after_a_refusal_the_next_message_goes_on_a_new_channel() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    full(&raw);
    let service = Observed::on(&vhost);
    // The first to an exchange goes on another channel than those that follow.
    for payload in 1..=2 {
        service.mq.publish("", "full", &payload).unwrap();
        raw.purge("full");
    }
    let channels = || pids(&vhost.list_channels(&["pid"]));
    raw.send("full", "in the way", AmqpProperties::default());
    let error = service.mq.publish("", "full", &3).unwrap_err();
    assert!(error.is_refused(), "{error}");
    raw.purge("full");
    let before = steady("the channels", channels);
    service.mq.publish("", "full", &4).unwrap();
    wait_until(SOON, "one channel has taken the place of another", || {
        let after = channels();
        after.len() == before.len() && after.difference(&before).count() == 1
    });
}

#[test]
fn what_amqp_cannot_carry_is_refused_before_the_wire() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let service = Observed::on(&vhost);
    service.mq.publish("", "q", &0).unwrap();
    let connections = || pids(&vhost.list_connections(&["pid"]));
    let before = connections();

    // 128 characters, 256 bytes.
    let long = "é".repeat(LONGEST / 2 + 1);
    let mut nested = Headers::new();
    nested.insert(long.clone(), 1_i64);
    let nested = HeaderValue::Array(vec![HeaderValue::Table(nested)]);
    let set = |change: fn(&mut rungmq::Properties, String)| {
        to("q", 1).properties(|properties| change(properties, long.clone()))
    };
    let messages = [
        ("exchange", to("q", 1).exchange(long.clone())),
        ("routing key", to(&long, 1)),
        ("content type", to("q", 1).content_type(long.clone())),
        ("correlation id", to("q", 1).correlation_id(long.clone())),
        ("reply-to", to("q", 1).reply_to(long.clone())),
        ("content encoding", set(|p, v| p.content_encoding = Some(v))),
        ("expiration", set(|p, v| p.expiration = Some(v))),
        ("message type", set(|p, v| p.message_type = Some(v))),
        ("user id", set(|p, v| p.user_id = Some(v))),
        ("app id", set(|p, v| p.app_id = Some(v))),
        ("cluster id", set(|p, v| p.cluster_id = Some(v))),
        ("header name", to("q", 1).header(long.clone(), 1_i64)),
        ("nested header name", to("q", 1).header("nested", nested)),
        ("frame", to("q", 1).header("large", "x".repeat(131_072))),
        ("reserved", to("q", 1).header("x-acemq-attempt", 7_i64)),
    ];
    for (what, message) in messages {
        let error = service.mq.publish_with(message).unwrap_err();
        assert!(error.is_invalid(), "{what}: {error}");
        assert!(!error.is_refused() && !error.is_unknown(), "{what}");
        assert!(error.into_message().is_some(), "{what}");
        service.mq.publish("", "q", &1).unwrap();
    }
    assert_eq!(connections(), before);
    assert_eq!(raw.count("q"), 16);
}

#[test]
fn what_is_just_short_enough_passes() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let name = "q".repeat(LONGEST);
    raw.classic(&name);
    let service = Observed::on(&vhost);
    let id = "i".repeat(LONGEST + 1);
    let message = Publish::bytes(vec![7; 3_000_000])
        .routing_key(&name)
        .correlation_id("c".repeat(LONGEST))
        .header("h".repeat(LONGEST), "x".repeat(120_000))
        .id(&id)
        .mandatory(true);
    service.mq.publish_with(message).unwrap();
    let got = raw.get(&name).unwrap();
    assert_eq!(got.body.len(), 3_000_000);
    // AMQP has no room for it in message_id, but the header has.
    assert_eq!(got.message_id(), None);
    assert_eq!(got.header_text("x-acemq-id"), Some(id.as_str()));
}

#[test]
fn a_batch_keeps_its_order_and_its_failures_apart() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let service = Observed::on(&vhost);
    let kind = |n: u64| match n {
        n if n % 7 == 3 => "unroutable",
        n if n % 11 == 5 => "invalid",
        _ => "confirmed",
    };
    let messages = (0..5000).map(|n| match kind(n) {
        "unroutable" => to("nowhere", n).mandatory(true),
        "invalid" => to("q", n).header("x-acemq-mine", 1_i64),
        _ => to("q", n),
    });
    let results = service.mq.publish_all(messages);
    assert_eq!(results.len(), 5000);
    for (n, result) in (0..).zip(&results) {
        let ended = match result {
            Ok(_) => "confirmed",
            Err(error) if error.is_unroutable() => "unroutable",
            Err(error) if error.is_invalid() => "invalid",
            Err(error) => panic!("{n}: {error}"),
        };
        assert_eq!(ended, kind(n), "{n}");
    }
    let expected: Vec<u64> = (0..5000).filter(|n| kind(*n) == "confirmed").collect();
    let bodies: Vec<u64> = raw
        .drain("q")
        .iter()
        .map(|got| got.text().parse().unwrap())
        .collect();
    assert_eq!(bodies, expected);
    assert_eq!(service.published("", "confirmed"), expected.len() as u64);
    assert!(service.mq.publish_all([]).is_empty());
}

#[test]
fn sixteen_threads_publish_at_once() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let service = Observed::on(&vhost);
    thread::scope(|scope| {
        for thread in 0..16_u64 {
            let mq = service.mq.clone();
            scope.spawn(move || {
                for n in 0..100 {
                    mq.publish("", "q", &(thread * 1000 + n)).unwrap();
                }
            });
        }
    });
    assert_eq!(service.published("", "confirmed"), 1600);
    let bodies: Vec<u64> = raw
        .drain("q")
        .iter()
        .map(|got| got.text().parse().unwrap())
        .collect();
    assert_eq!(bodies.len(), 1600);
    for thread in 0..16 {
        let own: Vec<u64> = bodies
            .iter()
            .copied()
            .filter(|n| n / 1000 == thread)
            .collect();
        assert_eq!(own, (0..100).map(|n| thread * 1000 + n).collect::<Vec<_>>());
    }
}

#[test]
fn handler_publishes_while_the_connection_closes() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    raw.classic("out");
    let service = Observed::on(&vhost);
    let (started, begun) = crossbeam_channel::bounded(1);
    let (release, gate) = crossbeam_channel::bounded::<()>(0);
    let mq = service.mq.clone();
    let handle = move |message: Message<u64>| {
        started.send(()).unwrap();
        let _ = gate.recv();
        mq.publish("", "out", message.payload()).map(drop)
    };
    service.mq.consume("q", handle).unwrap();
    raw.send("q", "7", AmqpProperties::default());
    begun.recv_timeout(SOON).unwrap();
    let closing = service.mq.clone();
    let close = thread::spawn(move || closing.close_within(SOON));
    // The drain has begun once the broker has no consumer any more.
    raw.wait_for_consumers("q", 0, SOON);
    drop(release);
    close.join().unwrap().unwrap();
    assert_eq!(raw.get("out").unwrap().text(), "7");
    assert_eq!(service.consumed("acked"), 1);
    assert_eq!(raw.count("q"), 0);
}

#[test]
fn nothing_is_published_after_the_close() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let service = Observed::on(&vhost);
    service.mq.publish("", "q", &1).unwrap();
    service.mq.close().unwrap();
    let (result, took) = timed(|| service.mq.publish_with(to("q", 2)));
    let error = result.unwrap_err();
    assert!(error.is_refused() && !error.is_unknown(), "{error}");
    assert_eq!(error.into_message().unwrap().body(), b"2");
    assert!(took < secs(5), "{took:?}");
    let results = service.mq.publish_all([to("q", 3), to("q", 4)]);
    assert!(
        results
            .iter()
            .all(|result| result.as_ref().is_err_and(rungmq::PublishError::is_refused))
    );
    assert_eq!(raw.count("q"), 1);
}

#[test]
fn a_close_without_a_limit_ends_once_everything_is_done() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let service = Observed::on(&vhost);
    service.mq.publish("", "q", &1).unwrap();
    let mq = service.mq.clone();
    let (reply, answer) = crossbeam_channel::bounded(1);
    thread::spawn(move || drop(reply.send(mq.close_within(Duration::MAX))));
    answer.recv_timeout(SOON).expect("an end").unwrap();
}
