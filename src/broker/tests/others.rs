//! Tests of the methods that act as another client or an operator, and of mute brokers.

use super::{
    LIMIT, broker, channel, client, code, confirm, delivery, dial, event, incoming, message, queue,
    quorum, text, transport, wait_until,
};
use crate::broker::{Broker, Published};
use crate::error::Error;
use crate::message::headers::{HeaderValue, Headers, Properties};
use crate::time::instant::monotonic;
use crate::topology::declaration::ExchangeKind;
use crate::transport::{Channel, Failure, Gone, Incoming, Transport};
use std::time::Duration;

fn publish(broker: &Broker, queue: &str, body: &str) -> Published {
    let properties = Properties::default();
    let published = broker.publish("", queue, properties, Headers::new(), body);
    published.unwrap()
}

fn table<V: Into<HeaderValue>>(key: &str, value: V) -> Headers {
    [(key, value)].into_iter().collect()
}

#[test]
fn mute_broker_executes_everything_and_sends_nothing() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    channel.declare(&queue("q")).unwrap();
    let confirms = channel.confirms().unwrap();
    let subscription = channel.subscribe("q").unwrap();
    broker.mute();
    channel.publish(&message("", "q", "a")).unwrap();
    assert_eq!(confirms.next_confirm(), Ok(None));
    assert!(subscription.next().is_none());
    assert_eq!(broker.queue("q").unwrap().unacked, 1, "it was delivered");
    broker.unmute();
    channel.publish(&message("", "q", "b")).unwrap();
    assert_eq!(
        text(&delivery(&*subscription)),
        "b",
        "what was lost stays lost"
    );
    assert_eq!(confirm(&*confirms).tag, 2);
}

#[test]
fn call_to_mute_broker_waits_for_the_connection_to_end() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    broker.mute();
    let operations = broker.operations();
    let asking = std::thread::spawn(move || channel.declare(&queue("q")));
    wait_until("the declaration was sent", || {
        broker.operations() > operations
    });
    assert!(broker.queue("q").is_some());
    broker.unmute();
    assert!(!asking.is_finished());
    broker.drop_connections();
    assert!(matches!(asking.join().unwrap(), Err(Failure::Lost(_))));
}

#[test]
fn mute_broker_loses_connections_after_two_heartbeats() {
    let broker = broker();
    let mut transport = transport(&broker);
    transport.heartbeat = Duration::from_millis(50);
    let dialled = transport.dial(monotonic() + LIMIT, &|_| {}).unwrap();
    broker.mute();
    assert_eq!(event(&*dialled.link), Err(Gone));
    wait_until("the broker has noticed", || broker.connections().is_empty());
}

#[test]
fn frozen_broker_sends_no_effects_of_other_clients() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    channel.declare(&queue("q")).unwrap();
    let subscription = channel.subscribe("q").unwrap();
    broker.freeze();
    publish(&broker, "q", "a");
    broker.delete_queue("q");
    assert!(subscription.next().is_none());
    broker.thaw();
    assert_eq!(text(&delivery(&*subscription)), "a");
    assert!(matches!(incoming(&*subscription), Incoming::Cancelled));
}

#[test]
fn connections_are_refused_and_dropped_individually() {
    let broker = broker();
    let (first, mut second) = (dial(&broker), dial(&broker));
    broker.refuse_connections();
    transport(&broker)
        .dial(monotonic() + LIMIT, &|_| {})
        .unwrap_err();
    assert_eq!(broker.connection_attempts(), 3);
    let connections = broker.connections();
    assert_eq!(connections.len(), 2, "open connections stay");
    broker.drop_connection(connections[0].number);
    assert_eq!(event(&*first.link), Err(Gone));
    let channel = channel(&mut second);
    let channels = broker.channels();
    assert_eq!(channels.len(), 1);
    assert_eq!(channels[0].connection, connections[1].number);
    channel.declare(&queue("q")).unwrap();
    let _subscription = channel.subscribe("q").unwrap();
    assert_eq!(broker.consumers()[0].channel, channels[0].number);
    broker.accept_connections();
    drop(dial(&broker));
}

#[test]
fn lost_queue_is_missing_and_cannot_be_declared() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let consuming = channel(&mut dialled);
    consuming.declare(&queue("q")).unwrap();
    publish(&broker, "q", "kept");
    let subscription = consuming.subscribe("q").unwrap();
    assert_eq!(text(&delivery(&*subscription)), "kept");
    broker.lose_queue("q");
    assert!(matches!(incoming(&*subscription), Incoming::Cancelled));
    assert_eq!(publish(&broker, "q", "not kept"), Published::Unroutable);
    for answer in [
        channel(&mut dialled).declare(&queue("q")),
        channel(&mut dialled).check(&queue("q")),
    ] {
        assert_eq!(code(&answer.unwrap_err()), 404);
    }
    broker.restore_queue("q");
    drop(subscription);
    consuming.close().unwrap();
    assert_eq!(broker.messages("q")[0].text(), "kept");
    channel(&mut dialled).declare(&queue("q")).unwrap();
}

#[test]
fn restored_queue_redelivers_what_was_unsettled() {
    let settle: [fn(Box<dyn Channel>, u64); 4] = [
        |_open, _tag| {},
        |channel, _tag| channel.close().unwrap(),
        |channel, tag| channel.nack(tag).unwrap(),
        // The queue is lost, so the acknowledgement has no effect.
        |channel, tag| channel.ack(tag, false).unwrap(),
    ];
    for settle in settle {
        for kind in [queue("q"), quorum("q")] {
            let broker = broker();
            let (_dialled, channel) = client(&broker);
            channel.declare(&kind).unwrap();
            publish(&broker, "q", "held");
            publish(&broker, "q", "ready");
            let held = channel.get("q").unwrap().unwrap();
            broker.lose_queue("q");
            settle(channel, held.tag);
            broker.restore_queue("q");
            let messages = broker.messages("q");
            let texts: Vec<_> = messages.iter().map(|message| message.text()).collect();
            assert_eq!(texts, ["held", "ready"]);
            assert!(messages[0].redelivered && !messages[1].redelivered);
            assert_eq!(broker.queue("q").unwrap().unacked, 0);
        }
    }
}

#[test]
fn restored_queue_has_the_current_policy() {
    let broker = broker();
    let shorter = table("max-length", 1_i64);
    broker.set_policy("before", |_| true, &shorter).unwrap();
    broker.declare_queue("q", &Headers::new()).unwrap();
    broker.lose_queue("q");
    broker.clear_policy("before");
    broker.restore_queue("q");
    assert_eq!(broker.queue("q").unwrap().policy, None);
    broker.lose_queue("q");
    broker.set_policy("after", |_| true, &shorter).unwrap();
    broker.restore_queue("q");
    assert_eq!(broker.queue("q").unwrap().policy.as_deref(), Some("after"));
    publish(&broker, "q", "a");
    publish(&broker, "q", "b");
    assert_eq!(broker.messages("q").len(), 1);
}

#[test]
fn take_removes_the_message() {
    let broker = broker();
    broker.take("q").unwrap_err();
    broker.declare_queue("q", &Headers::new()).unwrap();
    assert_eq!(broker.take("q").unwrap(), None);
    publish(&broker, "q", "a");
    publish(&broker, "q", "b");
    assert!(!broker.delete_queue_if_empty("q"));
    assert_eq!(broker.take("q").unwrap().unwrap().text(), "a");
    assert_eq!(broker.messages("q").len(), 1);
    assert_eq!(broker.take("q").unwrap().unwrap().text(), "b");
    assert!(broker.channels().is_empty());
    assert!(broker.delete_queue_if_empty("q"));
    assert_eq!(broker.queue("q"), None);
}

#[test]
fn exclusive_consumer_of_classic_queue_admits_no_other() {
    let broker = broker();
    let mut dialled = dial(&broker);
    broker.declare_queue("q", &Headers::new()).unwrap();
    publish(&broker, "q", "a");
    let exclusive = broker.consume_exclusively("q").unwrap();
    assert_eq!(broker.queue("q").unwrap().unacked, 1);
    broker.consume_exclusively("q").unwrap_err();
    let refused = channel(&mut dialled).subscribe("q").map(drop);
    assert_eq!(code(&refused.unwrap_err()), 403);
    drop(exclusive);
    let channel = channel(&mut dialled);
    let subscription = channel.subscribe("q").unwrap();
    assert!(delivery(&*subscription).redelivered);
    broker.consume_exclusively("q").unwrap_err();
}

#[test]
fn exclusive_consumer_ends_with_the_other_connections() {
    let broker = broker();
    broker.declare_queue("q", &Headers::new()).unwrap();
    let exclusive = broker.consume_exclusively("q").unwrap();
    broker.drop_connections();
    assert!(broker.channels().is_empty());
    drop(broker.consume_exclusively("q").unwrap());
    drop(exclusive);
}

#[test]
fn policy_covers_present_and_future_queues() {
    let broker = broker();
    let full = [
        ("max-length", HeaderValue::from(0)),
        ("overflow", "reject-publish".into()),
    ];
    let full: Headers = full.into_iter().collect();
    broker.declare_queue("a.dlq", &Headers::new()).unwrap();
    broker
        .set_policy("full", |queue| queue.ends_with(".dlq"), &full)
        .unwrap();
    broker.declare_queue("b.dlq", &Headers::new()).unwrap();
    broker.declare_queue("b", &Headers::new()).unwrap();
    for (queue, published) in [
        ("a.dlq", Published::Rejected),
        ("b.dlq", Published::Rejected),
        ("b", Published::Confirmed),
    ] {
        assert_eq!(publish(&broker, queue, "a"), published, "{queue}");
    }
    let policy = broker.queue("b.dlq").unwrap().policy;
    assert_eq!(policy.as_deref(), Some("full"));
    broker.clear_policy("full");
    assert_eq!(publish(&broker, "a.dlq", "a"), Published::Confirmed);
    assert_eq!(broker.queue("a.dlq").unwrap().policy, None);
}

#[test]
fn policy_yields_to_smaller_numbers_and_own_arguments() {
    let broker = broker();
    broker.declare_queue("dead", &Headers::new()).unwrap();
    let own = [
        ("x-max-length", HeaderValue::from(2)),
        ("x-dead-letter-exchange", "".into()),
        ("x-dead-letter-routing-key", "dead".into()),
    ];
    broker
        .declare_queue("q", &own.into_iter().collect())
        .unwrap();
    let longer = [
        ("max-length", HeaderValue::from(3)),
        ("dead-letter-exchange", "nowhere".into()),
    ];
    let longer: Headers = longer.into_iter().collect();
    broker
        .set_policy("longer", |queue| queue == "q", &longer)
        .unwrap();
    for body in ["a", "b", "c"] {
        publish(&broker, "q", body);
    }
    assert_eq!(broker.messages("q").len(), 2);
    assert_eq!(broker.messages("dead")[0].text(), "a");
    // The policy that is set last replaces the other one, and applies to messages in the queue.
    let shorter = table("max-length", 1);
    broker
        .set_policy("shorter", |queue| queue == "q", &shorter)
        .unwrap();
    assert_eq!(broker.messages("dead").len(), 2);
}

#[test]
fn policy_with_unknown_key_is_refused() {
    let broker = broker();
    let unknown = table("queue-mode", "lazy");
    let refused = broker.set_policy("p", |_| true, &unknown).unwrap_err();
    assert!(refused.is_precondition_failed(), "{refused}");
    broker.declare_queue("q", &Headers::new()).unwrap();
    assert_eq!(broker.queue("q").unwrap().policy, None);
}

#[test]
fn names_and_keys_that_are_too_long_are_refused() {
    let broker = broker();
    let (long, none) = ("q".repeat(256), Headers::new());
    let longest = "q".repeat(255);
    broker.declare_queue(&longest, &none).unwrap();
    let publish = |exchange: &str, key: &str| {
        let properties = Properties::default();
        broker.publish(exchange, key, properties, Headers::new(), "")
    };
    publish("", &longest).unwrap();
    for refused in [
        broker.declare_queue(&long, &none),
        broker.declare_exchange(&long, ExchangeKind::Direct, &none),
        broker.delete_exchange(&long),
        broker.bind(&long, "amq.topic", "k", &none),
        broker.bind(&longest, &long, "k", &none),
        broker.bind(&longest, "amq.topic", &long, &none),
        broker.unbind(&longest, "amq.topic", &long, &none),
        publish(&long, "k").map(drop),
        publish("", &long).map(drop),
        broker.take(&long).map(drop),
        broker.purge(&long).map(drop),
        broker.consume_exclusively(&long).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::NameTooLong(_))), "{refused:?}");
    }
}
