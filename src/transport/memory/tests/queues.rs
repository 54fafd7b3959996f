//! Publishing, consuming, settling.

use super::super::Published;
use super::super::exchange::Exchange;
use super::super::state::LinkId;
use super::super::state::declare::QueueFlags;
use super::*;
use crate::declaration::ExchangeKind;
use crate::headers::HeaderValue;

#[test]
fn what_one_link_publishes_another_consumes_in_order() {
    let broker = broker();
    let (mut publishing, mut consuming) = (dial(&broker), dial(&broker));
    let (publisher, consumer) = (channel(&mut publishing), channel(&mut consuming));
    consumer.declare(&queue("q")).unwrap();
    let confirms = publisher.confirms().unwrap();
    for body in ["a", "b", "c"] {
        publisher.publish(&message("", "q", body)).unwrap();
    }
    for tag in 1..=3 {
        let confirmed = confirm(&*confirms);
        assert_eq!((confirmed.tag, confirmed.ack), (tag, true));
    }
    consumer.limit_prefetch(2).unwrap();
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
fn what_a_dead_link_had_goes_back_to_its_place() {
    let broker = broker();
    let (mut dying, mut living) = (dial(&broker), dial(&broker));
    let (one, other) = (channel(&mut dying), channel(&mut living));
    one.declare(&queue("q")).unwrap();
    for body in ["a", "b", "c", "d", "e"] {
        one.publish(&message("", "q", body)).unwrap();
    }
    one.limit_prefetch(3).unwrap();
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
fn an_unknown_delivery_tag_closes_the_channel_only() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let (wrong, right) = (channel(&mut dialled), channel(&mut dialled));
    wrong.declare(&queue("q")).unwrap();
    let subscription = wrong.subscribe("q").unwrap();
    wrong.ack(7, false).unwrap();
    match incoming(&*subscription) {
        Incoming::Ended(failure) => assert_eq!(code(&failure), 406),
        other => panic!("{other:?}"),
    }
    drop(subscription);
    assert_eq!(code(&wrong.ack(8, false).unwrap_err()), 406);
    assert!(matches!(wrong.ack(8, false), Err(Failure::Lost(_))));
    assert_eq!(right.count("q"), Ok(0));
}

#[test]
fn a_mandatory_message_without_a_queue_is_returned_before_its_confirm() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    let confirms = channel.confirms().unwrap();
    channel.publish(&message("", "nowhere", "a")).unwrap();
    assert!(confirm(&*confirms).ack);
    let returned = confirms.next_return().unwrap();
    assert_eq!(returned.message_id.as_deref(), Some("a"));
    assert_eq!(returned.routing_key, "nowhere");
    assert!(returned.text.starts_with("312"));
}

#[test]
fn a_publish_to_a_missing_exchange_closes_the_channel() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    let confirms = channel.confirms().unwrap();
    channel.publish(&message("gone", "q", "a")).unwrap();
    assert!(confirms.next_confirm().is_err());
    let failure = channel.close().unwrap_err();
    assert!(failure.is_not_found());
}

#[test]
fn a_refusal_names_the_argument_and_both_values() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let ttl = |millis: i64| {
        let arguments = [("x-message-ttl", millis)].into_iter().collect();
        Declaration::durable_queue("q", arguments)
    };
    channel(&mut dialled).declare(&ttl(2000)).unwrap();
    channel(&mut dialled).declare(&ttl(2000)).unwrap();
    let failure = channel(&mut dialled).declare(&ttl(3000)).unwrap_err();
    let text = "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '3000' \
                but current is '2000'";
    assert_eq!(
        failure,
        Failure::Refused {
            code: 406,
            text: text.to_owned()
        }
    );
}

#[test]
fn names_that_are_missing_reserved_or_locked_are_refused() {
    let broker = broker();
    let (mut one, mut other) = (dial(&broker), dial(&broker));
    let exclusive = Declaration::Queue {
        name: "mine".to_owned(),
        durable: false,
        exclusive: true,
        auto_delete: false,
        arguments: Headers::new(),
    };
    channel(&mut one).declare(&exclusive).unwrap();
    channel(&mut one).declare(&exclusive).unwrap();
    let mut refused = |work: &dyn Fn(&dyn Channel) -> Result<(), Failure>| {
        code(&work(&*channel(&mut other)).unwrap_err())
    };
    assert_eq!(refused(&|channel| channel.check(&queue("missing"))), 404);
    assert_eq!(
        refused(&|channel| channel.subscribe("missing").map(drop)),
        404
    );
    assert_eq!(refused(&|channel| channel.pull("missing").map(drop)), 404);
    assert_eq!(refused(&|channel| channel.declare(&queue("amq.q"))), 403);
    assert_eq!(refused(&|channel| channel.check(&exclusive)), 405);
    assert_eq!(refused(&|channel| channel.declare(&exclusive)), 405);
    assert_eq!(refused(&|channel| channel.subscribe("mine").map(drop)), 405);
    let binding = Declaration::bound_by_name("mine", "");
    assert_eq!(refused(&|channel| channel.declare(&binding)), 403);
    let binding = Declaration::bound_by_name("missing", "amq.direct");
    assert_eq!(refused(&|channel| channel.declare(&binding)), 404);
    drop(one.link);
    assert!(broker.queues().is_empty(), "it went with its link");
}

#[test]
fn a_deleted_queue_cancels_its_consumers_and_settling_goes_on() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    channel.declare(&queue("q")).unwrap();
    channel.publish(&message("", "q", "a")).unwrap();
    let subscription = channel.subscribe("q").unwrap();
    let delivery = delivery(&*subscription);
    broker.delete_queue("q");
    assert!(matches!(incoming(&*subscription), Incoming::Cancelled));
    channel.ack(delivery.tag, false).unwrap();
    channel.declare(&queue("q")).unwrap();
    assert_eq!(channel.count("q"), Ok(0));
}

#[test]
fn nothing_follows_a_cancel_and_the_unsettled_stay_with_the_channel() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    channel.declare(&queue("q")).unwrap();
    channel.publish(&message("", "q", "a")).unwrap();
    let subscription = channel.subscribe("q").unwrap();
    subscription.cancel().unwrap();
    channel.publish(&message("", "q", "b")).unwrap();
    let tag = delivery(&*subscription).tag;
    assert!(matches!(incoming(&*subscription), Incoming::CancelOk));
    drop(subscription);
    assert_eq!(channel.count("q"), Ok(1));
    channel.nack(tag).unwrap();
    let first = channel.pull("q").unwrap().unwrap();
    assert_eq!((text(&first), first.redelivered), ("a".to_owned(), true));
}

#[test]
fn a_rejected_message_carries_its_death_to_the_dead_letter_queue() {
    for profile in [Profile::V3_10, Profile::V4_0] {
        let broker = broker_of(profile);
        let mut dialled = dial(&broker);
        let channel = channel(&mut dialled);
        let arguments = [
            ("x-dead-letter-exchange", "dlx"),
            ("x-dead-letter-routing-key", "dead"),
        ];
        let source = Declaration::durable_queue("q", arguments.into_iter().collect());
        for declaration in [
            source,
            queue("dead"),
            Declaration::direct_exchange("dlx"),
            Declaration::bound_by_name("dead", "dlx"),
        ] {
            channel.declare(&declaration).unwrap();
        }
        let mut outgoing = message("", "q", "a");
        outgoing.properties.expiration = Some("60000".to_owned());
        channel.publish(&outgoing).unwrap();
        let tag = channel.pull("q").unwrap().unwrap().tag;
        channel.reject(tag).unwrap();
        let dead = channel.pull("dead").unwrap().unwrap();
        assert_eq!(
            (dead.exchange.as_str(), dead.routing_key.as_str()),
            ("dlx", "dead")
        );
        assert_eq!(dead.properties.expiration, None);
        assert!(!dead.redelivered);
        let Some(HeaderValue::Array(deaths)) = dead.headers.get("x-death") else {
            panic!("{:?}", dead.headers);
        };
        let [HeaderValue::Table(death)] = &deaths[..] else {
            panic!("{deaths:?}");
        };
        assert_eq!(death.get("count"), Some(&HeaderValue::I64(1)));
        for (field, value) in [
            ("reason", "rejected"),
            ("queue", "q"),
            ("exchange", ""),
            ("original-expiration", "60000"),
        ] {
            assert_eq!(death.get(field), Some(&value.into()), "{field}");
        }
        let keys = HeaderValue::Array(vec!["q".into()]);
        assert_eq!(death.get("routing-keys"), Some(&keys));
        assert!(matches!(death.get("time"), Some(HeaderValue::Timestamp(_))));
        for end in ["reason", "queue", "exchange"] {
            assert!(dead.headers.contains(&format!("x-first-death-{end}")));
            let last = dead.headers.contains(&format!("x-last-death-{end}"));
            assert_eq!(last, profile == Profile::V4_0);
        }
    }
}

#[test]
fn a_quorum_queue_counts_what_comes_back() {
    for (profile, expected) in [(Profile::V3_10, ["b", "a"]), (Profile::V4_0, ["a", "b"])] {
        let broker = broker_of(profile);
        let mut dialled = dial(&broker);
        let channel = channel(&mut dialled);
        channel.declare(&quorum("q")).unwrap();
        for body in ["a", "b"] {
            channel.publish(&message("", "q", body)).unwrap();
        }
        let first = channel.pull("q").unwrap().unwrap();
        // 3.x counts from zero when a message is fetched.
        let expected_count = (profile == Profile::V3_10).then_some(HeaderValue::I64(0));
        assert_eq!(
            first.headers.get("x-delivery-count"),
            expected_count.as_ref()
        );
        channel.nack(first.tag).unwrap();
        let order = [(); 2].map(|()| channel.pull("q").unwrap().unwrap());
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
fn a_message_that_has_come_back_too_often_is_dead_lettered() {
    let broker = broker_of(Profile::V4_0);
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    let mut arguments: Headers = [
        ("x-queue-type", "quorum"),
        ("x-dead-letter-exchange", ""),
        ("x-dead-letter-routing-key", "dead"),
    ]
    .into_iter()
    .collect();
    arguments.insert("x-delivery-limit", 2);
    let source = Declaration::durable_queue("q", arguments);
    channel.declare(&source).unwrap();
    channel.declare(&queue("dead")).unwrap();
    channel.publish(&message("", "q", "a")).unwrap();
    for round in 0..3 {
        let pulled = channel.pull("q").unwrap();
        let tag = pulled.unwrap_or_else(|| panic!("round {round}")).tag;
        channel.nack(tag).unwrap();
    }
    assert_eq!(channel.count("q"), Ok(0));
    let dead = channel.pull("dead").unwrap().unwrap();
    let reason = dead.headers.get("x-first-death-reason");
    assert_eq!(reason, Some(&"delivery_limit".into()));
}

#[test]
fn a_full_queue_rejects_or_drops_its_head() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    let full = |name: &str, overflow: &str| {
        let mut arguments: Headers = [("x-overflow", overflow)].into_iter().collect();
        arguments.insert("x-max-length", 1);
        Declaration::durable_queue(name, arguments)
    };
    channel.declare(&full("rejects", "reject-publish")).unwrap();
    channel.declare(&full("drops", "drop-head")).unwrap();
    let confirms = channel.confirms().unwrap();
    let mut acks = Vec::new();
    for queue in ["rejects", "rejects", "drops", "drops"] {
        channel
            .publish(&message("", queue, &acks.len().to_string()))
            .unwrap();
        acks.push(confirm(&*confirms).ack);
    }
    assert_eq!(acks, [true, false, true, true]);
    assert_eq!(text(&channel.pull("rejects").unwrap().unwrap()), "0");
    assert_eq!(text(&channel.pull("drops").unwrap().unwrap()), "3");
}

#[test]
fn exchanges_route_by_key_pattern_and_headers() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
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
        .with(|hub, _| hub.state.declare_exchange(internal))
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
    assert_eq!(code(&channel.close().unwrap_err()), 403, "it is internal");
}

#[test]
fn a_link_has_no_more_channels_than_it_may() {
    let broker = broker();
    let mut transport = transport(&broker);
    transport.channel_max = 1;
    let mut dialled = transport.dial(monotonic() + LIMIT, &|_| {}).unwrap();
    let only = channel(&mut dialled);
    let failure = dialled.link.open_channel().unwrap_err();
    assert_eq!(failure, Failure::NoChannelLeft);
    only.close().unwrap();
    channel(&mut dialled);
}

#[test]
fn of_several_consumers_each_has_its_turn_but_for_a_single_active_one() {
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
            for body in ["a", "b", "c", "d"] {
                one.publish(&message("", "q", body)).unwrap();
            }
            let counted = consuming
                .each_ref()
                .map(|subscription| std::iter::from_fn(|| subscription.next()).count());
            assert_eq!(counted, expected, "{kind}");
            consuming[0].cancel().unwrap();
            one.publish(&message("", "q", "e")).unwrap();
            assert_eq!(text(&delivery(&*consuming[1])), "e");
        }
    }
}

#[test]
fn an_auto_delete_queue_goes_with_its_last_consumer() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
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
fn a_quorum_queue_is_durable_and_for_everybody() {
    let broker = broker();
    let mut dialled = dial(&broker);
    for (durable, exclusive, auto_delete) in [
        (false, false, false),
        (true, true, false),
        (true, false, true),
    ] {
        let declaration = Declaration::Queue {
            name: "q".to_owned(),
            durable,
            exclusive,
            auto_delete,
            arguments: [("x-queue-type", "quorum")].into_iter().collect(),
        };
        let refused = channel(&mut dialled).declare(&declaration).unwrap_err();
        assert_eq!(code(&refused), 406);
    }
}

#[test]
fn a_full_quorum_queue_rejects_until_it_is_four_fifths_full() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    let mut arguments: Headers = [("x-queue-type", "quorum"), ("x-overflow", "reject-publish")]
        .into_iter()
        .collect();
    arguments.insert("x-max-length", 5);
    channel
        .declare(&Declaration::durable_queue("q", arguments))
        .unwrap();
    let confirms = channel.confirms().unwrap();
    let publish = || {
        channel.publish(&message("", "q", "a")).unwrap();
        confirm(&*confirms).ack
    };
    let take = || {
        let tag = channel.pull("q").unwrap().unwrap().tag;
        channel.ack(tag, false).unwrap();
    };
    // It notices that it is over its limit one message late.
    let taken: Vec<bool> = (0..7).map(|_| publish()).collect();
    assert_eq!(taken, [true, true, true, true, true, true, false]);
    take();
    assert!(!publish());
    take();
    assert!(publish());
}

#[test]
fn what_another_client_holds_exclusively_is_locked() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let flags = QueueFlags {
        durable: false,
        exclusive: true,
        auto_delete: false,
    };
    let declared = broker.with(|hub, at| {
        let other = Some(LinkId(0));
        hub.state
            .declare_queue("q", flags, &Headers::new(), other, at)
    });
    declared.unwrap();
    assert!(broker.queue("q").unwrap().exclusive);
    let failure = channel(&mut dialled).check(&queue("q")).unwrap_err();
    assert_eq!(code(&failure), 405);
    assert_eq!(broker.purge("q").unwrap(), 0);
}

#[test]
fn a_publish_of_another_client_says_what_became_of_it() {
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
