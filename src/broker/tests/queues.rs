//! Tests of publishing, consuming, settling and routing.

use super::{
    broker, broker_of, channel, client, code, confirm, delivery, dial, incoming, message, publish,
    queue, quorum, text,
};
use crate::broker::model::exchange::Exchange;
use crate::broker::{Profile, Published};
use crate::message::headers::{HeaderValue, Headers, Properties};
use crate::topology::declaration::{Declaration, ExchangeKind};
use crate::transport::{Failure, Incoming};

#[test]
fn messages_are_consumed_in_order_of_publishing() {
    let broker = broker();
    let (mut publishing, mut consuming) = (dial(&broker), dial(&broker));
    let (publisher, consumer) = (channel(&mut publishing), channel(&mut consuming));
    consumer.declare(&queue("q")).unwrap();
    let confirms = publisher.confirms().unwrap();
    publish(&*publisher, "q", ["a", "b", "c"]);
    for tag in 1..=3 {
        let confirmed = confirm(&*confirms);
        assert_eq!((confirmed.tag, confirmed.ack), (tag, true));
    }
    consumer.set_prefetch(2).unwrap();
    let subscription = consumer.subscribe("q").unwrap();
    let first = delivery(&*subscription);
    assert_eq!(
        (text(&first), first.tag, first.redelivered),
        ("a".to_owned(), 1, false)
    );
    assert_eq!(
        (first.exchange.as_str(), first.routing_key.as_str()),
        ("", "q")
    );
    assert_eq!(text(&delivery(&*subscription)), "b");
    assert!(subscription.next().is_none(), "the prefetch is two");
    consumer.ack(2, true).unwrap();
    assert_eq!(text(&delivery(&*subscription)), "c");
    assert_eq!(
        (broker.connections().len(), broker.channels().len()),
        (2, 2)
    );
    let view = broker.queue("q").unwrap();
    assert_eq!((view.ready, view.unacked, view.consumers), (0, 1, 1));
}

#[test]
fn unsettled_messages_of_a_killed_link_are_requeued() {
    let broker = broker();
    let (mut dying, mut living) = (dial(&broker), dial(&broker));
    let (one, other) = (channel(&mut dying), channel(&mut living));
    one.declare(&queue("q")).unwrap();
    publish(&*one, "q", ["a", "b", "c", "d", "e"]);
    one.set_prefetch(3).unwrap();
    let subscription = one.subscribe("q").unwrap();
    for _ in 0..3 {
        delivery(&*subscription);
    }
    one.ack(2, false).unwrap();
    assert_eq!(text(&delivery(&*subscription)), "d");
    dying.kill.throw();
    let other = other.subscribe("q").unwrap();
    let came: Vec<_> = (0..4)
        .map(|_| delivery(&*other))
        .map(|delivery| (text(&delivery), delivery.redelivered))
        .collect();
    let expected = [("a", true), ("c", true), ("d", true), ("e", false)];
    assert_eq!(came, expected.map(|(body, again)| (body.to_owned(), again)));
    assert!(matches!(
        incoming(&*subscription),
        Incoming::Ended(Failure::Lost(_))
    ));
}

#[test]
fn unroutable_mandatory_message_is_returned() {
    let broker = broker();
    let (_link, channel) = client(&broker);
    let confirms = channel.confirms().unwrap();
    channel.publish(&message("", "nowhere", "a")).unwrap();
    assert!(confirm(&*confirms).ack);
    let returned = confirms.next_return().unwrap();
    assert_eq!(returned.message_id.as_deref(), Some("a"));
    assert_eq!(returned.routing_key, "nowhere");
    assert!(returned.text.starts_with("312"));
}

#[test]
fn deleted_queue_cancels_consumers_and_ignores_acks() {
    let broker = broker();
    let (_link, channel) = client(&broker);
    channel.declare(&queue("q")).unwrap();
    publish(&*channel, "q", ["a"]);
    let subscription = channel.subscribe("q").unwrap();
    let delivery = delivery(&*subscription);
    broker.delete_queue("q");
    assert!(matches!(incoming(&*subscription), Incoming::Cancelled));
    channel.ack(delivery.tag, false).unwrap();
    channel.declare(&queue("q")).unwrap();
    assert_eq!(channel.count("q"), Ok(0));
}

#[test]
fn cancel_ends_deliveries_and_keeps_unsettled_ones() {
    let broker = broker();
    let (_link, channel) = client(&broker);
    channel.declare(&queue("q")).unwrap();
    publish(&*channel, "q", ["a"]);
    let subscription = channel.subscribe("q").unwrap();
    subscription.cancel().unwrap();
    publish(&*channel, "q", ["b"]);
    let tag = delivery(&*subscription).tag;
    assert!(matches!(incoming(&*subscription), Incoming::CancelOk));
    drop(subscription);
    assert_eq!(channel.count("q"), Ok(1));
    channel.nack(tag).unwrap();
    let first = channel.get("q").unwrap().unwrap();
    assert_eq!((text(&first), first.redelivered), ("a".to_owned(), true));
}

#[test]
fn quorum_queue_counts_requeues() {
    for (profile, expected) in [(Profile::V3_10, ["b", "a"]), (Profile::V4_0, ["a", "b"])] {
        let broker = broker_of(profile);
        let (_link, channel) = client(&broker);
        channel.declare(&quorum("q")).unwrap();
        publish(&*channel, "q", ["a", "b"]);
        let first = channel.get("q").unwrap().unwrap();
        // Only 3.x includes a count of zero in a fetched message.
        let expected_count = (profile == Profile::V3_10).then_some(HeaderValue::I64(0));
        assert_eq!(
            first.headers.get("x-delivery-count"),
            expected_count.as_ref()
        );
        channel.nack(first.tag).unwrap();
        let order = [(); 2].map(|()| channel.get("q").unwrap().unwrap());
        assert_eq!(order.each_ref().map(text), expected, "{profile}");
        let again = order.iter().find(|delivery| text(delivery) == "a").unwrap();
        assert!(again.redelivered);
        assert_eq!(
            again.headers.get("x-delivery-count"),
            Some(&HeaderValue::I64(1))
        );
    }
}

#[test]
fn exchanges_route_by_key_pattern_and_headers() {
    let broker = broker();
    let (_link, channel) = client(&broker);
    let none = Headers::new();
    for name in ["a", "b", "spare"] {
        channel.declare(&queue(name)).unwrap();
    }
    let spare: Headers = [("alternate-exchange", "spare")].into_iter().collect();
    broker
        .declare_exchange("topic", ExchangeKind::Topic, &spare)
        .unwrap();
    let mut internal = Exchange::new("spare", ExchangeKind::Fanout, true);
    internal.internal = true;
    broker
        .update(|hub, _| hub.state.declare_exchange(internal))
        .unwrap();
    broker
        .declare_exchange("headers", ExchangeKind::Headers, &none)
        .unwrap();
    broker.bind("spare", "spare", "", &none).unwrap();
    broker.bind("a", "topic", "order.*", &none).unwrap();
    broker.bind("b", "topic", "#.new", &none).unwrap();
    let red: Headers = [("x-match", "any"), ("colour", "red")]
        .into_iter()
        .collect();
    broker.bind("a", "headers", "", &red).unwrap();
    let publish = |exchange: &str, key: &str, headers: &Headers| {
        let mut outgoing = message(exchange, key, "m");
        outgoing.headers = headers.clone();
        channel.publish(&outgoing).unwrap();
        ["a", "b", "spare"].map(|queue| broker.purge(queue).unwrap())
    };
    assert_eq!(publish("topic", "order.new", &none), [1, 1, 0]);
    assert_eq!(publish("topic", "order.old", &none), [1, 0, 0]);
    assert_eq!(publish("topic", "other", &none), [0, 0, 1]);
    let red: Headers = [("colour", "red")].into_iter().collect();
    assert_eq!(publish("headers", "", &red), [1, 0, 0]);
    assert_eq!(publish("headers", "", &none), [0, 0, 0]);
    let mut copies = Headers::new();
    copies.insert("CC", vec![HeaderValue::from("b")]);
    copies.insert("BCC", vec![HeaderValue::from("spare")]);
    assert_eq!(publish("", "a", &copies), [1, 1, 1]);
    channel.publish(&message("spare", "", "m")).unwrap();
    assert_eq!(
        code(&channel.close().unwrap_err()),
        403,
        "the exchange is internal"
    );
}

#[test]
fn consumers_take_turns_unless_one_is_single_active() {
    for (single, expected) in [(false, [2, 2]), (true, [4, 0])] {
        for kind in ["classic", "quorum"] {
            let broker = broker();
            let (mut one, mut other) = (dial(&broker), dial(&broker));
            let (one, other) = (channel(&mut one), channel(&mut other));
            let mut arguments: Headers = [("x-queue-type", kind)].into_iter().collect();
            arguments.insert("x-single-active-consumer", single);
            let declaration = Declaration::durable_queue("q", arguments);
            one.declare(&declaration).unwrap();
            let consuming = [one.subscribe("q").unwrap(), other.subscribe("q").unwrap()];
            publish(&*one, "q", ["a", "b", "c", "d"]);
            let counted = consuming
                .each_ref()
                .map(|subscription| std::iter::from_fn(|| subscription.next()).count());
            assert_eq!(counted, expected, "{kind}");
            consuming[0].cancel().unwrap();
            publish(&*one, "q", ["e"]);
            assert_eq!(text(&delivery(&*consuming[1])), "e");
        }
    }
}

#[test]
fn auto_delete_queue_ends_with_its_last_consumer() {
    let broker = broker();
    let (_link, channel) = client(&broker);
    let declaration = Declaration::Queue {
        name: "q".to_owned(),
        durable: true,
        exclusive: false,
        auto_delete: true,
        arguments: Headers::new(),
    };
    channel.declare(&declaration).unwrap();
    let (one, other) = (
        channel.subscribe("q").unwrap(),
        channel.subscribe("q").unwrap(),
    );
    one.cancel().unwrap();
    assert!(broker.queue("q").is_some());
    other.cancel().unwrap();
    assert!(broker.queue("q").is_none());
}

#[test]
fn publish_of_another_client_returns_its_result() {
    let broker = broker();
    let full: Headers = [("x-max-length", 0)].into_iter().collect();
    let mut full = full;
    full.insert("x-overflow", "reject-publish");
    broker.declare_queue("full", &full).unwrap();
    broker.declare_queue("q", &Headers::new()).unwrap();
    let publish =
        |exchange, key| broker.publish(exchange, key, Properties::default(), Headers::new(), "m");
    assert_eq!(publish("", "q").unwrap(), Published::Confirmed);
    assert_eq!(publish("", "none").unwrap(), Published::Unroutable);
    assert_eq!(publish("", "full").unwrap(), Published::Rejected);
    assert!(publish("none", "q").unwrap_err().is_not_found());
    let messages = broker.messages("q");
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].body, b"m");
}
