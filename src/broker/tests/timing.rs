//! Tests of times to live, on a test clock.

use super::{channel, code, delivery, dial, message, queue, quorum, text, wait_until};
use crate::broker::{Broker, Profile};
use crate::message::headers::{HeaderValue, Headers};
use crate::time::test_clock::TestClock;
use crate::topology::declaration::Declaration;
use std::sync::Arc;
use std::time::Duration;

fn broker_and_clock(profile: Profile) -> (Broker, TestClock) {
    let clock = TestClock::new();
    let broker = Broker::launch("timed", profile, Arc::new(clock.clone())).unwrap();
    (broker, clock)
}

/// A rung of a retry ladder, whose messages wait and then return to the queue `home`.
fn rung(millis: i64, home: &str) -> Declaration {
    let mut arguments: Headers = [
        ("x-dead-letter-exchange", ""),
        ("x-dead-letter-routing-key", home),
    ]
    .into_iter()
    .collect();
    arguments.insert("x-message-ttl", millis);
    Declaration::durable_queue("rung", arguments)
}

fn ready(broker: &Broker, queue: &str) -> usize {
    broker.queue(queue).map_or(0, |queue| queue.ready)
}

#[test]
fn rung_returns_messages_when_their_time_is_over() {
    for profile in [Profile::V3_10, Profile::V4_0] {
        let (broker, clock) = broker_and_clock(profile);
        let mut dialled = dial(&broker);
        let channel = channel(&mut dialled);
        channel.declare(&queue("home")).unwrap();
        channel.declare(&rung(40_000, "home")).unwrap();
        channel.publish(&message("", "rung", "a")).unwrap();
        clock.advance(Duration::from_millis(39_999));
        assert_eq!(channel.count("home"), Ok(0));
        clock.advance(Duration::from_millis(1));
        wait_until("the message has returned", || ready(&broker, "home") == 1);
        let home = channel.get("home").unwrap().unwrap();
        let reason = home.headers.get("x-first-death-reason");
        assert_eq!(reason, Some(&"expired".into()));
    }
}

#[test]
fn only_the_head_of_a_queue_expires() {
    let (broker, clock) = broker_and_clock(Profile::V3_10);
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    channel.declare(&queue("q")).unwrap();
    for (body, ttl) in [("long", "5000"), ("short", "1000")] {
        let mut outgoing = message("", "q", body);
        outgoing.properties.expiration = Some(ttl.to_owned());
        channel.publish(&outgoing).unwrap();
    }
    clock.advance(Duration::from_secs(2));
    assert_eq!(channel.count("q"), Ok(2));
    clock.advance(Duration::from_secs(3));
    wait_until("both have expired", || ready(&broker, "q") == 0);
}

#[test]
fn zero_expiration_is_delivered_immediately_or_never() {
    for declaration in [queue("q"), quorum("q")] {
        let (broker, clock) = broker_and_clock(Profile::V3_10);
        let mut dialled = dial(&broker);
        let channel = channel(&mut dialled);
        channel.declare(&declaration).unwrap();
        let mut outgoing = message("", "q", "a");
        outgoing.properties.expiration = Some("0".to_owned());
        channel.publish(&outgoing).unwrap();
        clock.advance(Duration::from_millis(1));
        wait_until("it has expired", || ready(&broker, "q") == 0);
        let subscription = channel.subscribe("q").unwrap();
        assert!(subscription.next().is_none());
        channel.publish(&outgoing).unwrap();
        assert_eq!(text(&delivery(&*subscription)), "a");
    }
}

#[test]
fn invalid_expiration_closes_the_channel() {
    for (text, is_fine) in [
        ("1", true),
        ("+5", true),
        ("", false),
        ("-1", false),
        ("1s", false),
        ("315360000001", false),
    ] {
        let (broker, _clock) = broker_and_clock(Profile::V3_10);
        let mut dialled = dial(&broker);
        let channel = channel(&mut dialled);
        let mut outgoing = message("", "q", "a");
        outgoing.properties.expiration = Some(text.to_owned());
        channel.publish(&outgoing).unwrap();
        match channel.close() {
            Ok(()) => assert!(is_fine, "{text:?}"),
            Err(failure) => assert_eq!((code(&failure), is_fine), (406, false), "{text:?}"),
        }
    }
}

#[test]
fn unused_queue_is_deleted_and_a_used_one_stays() {
    let (broker, clock) = broker_and_clock(Profile::V3_10);
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    let arguments: Headers = [("x-expires", 1000)].into_iter().collect();
    channel
        .declare(&Declaration::durable_queue("q", arguments))
        .unwrap();
    clock.advance(Duration::from_millis(900));
    assert_eq!(channel.count("q"), Ok(0));
    clock.advance(Duration::from_millis(900));
    let subscription = channel.subscribe("q").unwrap();
    clock.advance(Duration::from_secs(9));
    subscription.cancel().unwrap();
    assert!(broker.queue("q").is_some());
    clock.advance(Duration::from_millis(1000));
    wait_until("the queue is gone", || broker.queue("q").is_none());
}

#[test]
fn message_passes_a_chain_of_queues() {
    for kind in ["classic", "quorum"] {
        let (broker, clock) = broker_and_clock(Profile::V4_0);
        let mut dialled = dial(&broker);
        let channel = channel(&mut dialled);
        let declare = |name: &str, millis: i64, next: &str| {
            let mut arguments: Headers = [
                ("x-queue-type", kind),
                ("x-dead-letter-exchange", ""),
                ("x-dead-letter-routing-key", next),
            ]
            .into_iter()
            .collect();
            arguments.insert("x-message-ttl", millis);
            channel
                .declare(&Declaration::durable_queue(name, arguments))
                .unwrap();
        };
        declare("first", 1000, "second");
        declare("second", 2000, "third");
        declare("third", 4000, "home");
        channel.declare(&queue("home")).unwrap();
        channel.publish(&message("", "first", "a")).unwrap();
        clock.advance(Duration::from_millis(6999));
        assert_eq!(ready(&broker, "third"), 1);
        clock.advance(Duration::from_millis(1));
        assert_eq!(ready(&broker, "home"), 1);
        channel.publish(&message("", "first", "b")).unwrap();
        clock.advance(Duration::from_secs(60 * 60 * 24));
        assert_eq!(ready(&broker, "home"), 2);
        let home = broker.messages("home");
        let Some(HeaderValue::Array(deaths)) = home[1].headers.get("x-death") else {
            panic!("{:?}", home[1].headers);
        };
        let times: Vec<_> = deaths.iter().map(time_of).collect();
        assert_eq!([times[0] - times[1], times[1] - times[2]], [4, 2]);
    }
}

fn time_of(death: &HeaderValue) -> u64 {
    match death {
        HeaderValue::Table(death) => match death.get("time") {
            Some(HeaderValue::Timestamp(seconds)) => *seconds,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn higher_priority_triggers_no_head_check() {
    let (broker, clock) = broker_and_clock(Profile::V3_10);
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    let arguments: Headers = [("x-max-priority", 5)].into_iter().collect();
    channel
        .declare(&Declaration::durable_queue("q", arguments))
        .unwrap();
    let mut stays = message("", "q", "stays");
    stays.properties.expiration = Some("70000".to_owned());
    channel.publish(&stays).unwrap();
    let mut urgent = message("", "q", "urgent");
    urgent.properties.priority = Some(5);
    urgent.properties.expiration = Some("1".to_owned());
    channel.publish(&urgent).unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(text(&channel.get("q").unwrap().unwrap()), "urgent");
}
