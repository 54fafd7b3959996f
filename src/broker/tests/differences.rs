//! Regression tests for differences from RabbitMQ that the comparison with it has found.

use super::{
    broker, broker_of, channel, code, delivery, dial, event, exclusive, incoming, message, publish,
    queue, quorum, text, with,
};
use crate::broker::{Broker, Profile};
use crate::message::headers::{HeaderValue, Headers};
use crate::topology::declaration::ExchangeKind;
use crate::transport::{Failure, Incoming};

fn texts(broker: &Broker, queue: &str) -> Vec<String> {
    let messages = broker.messages(queue);
    messages
        .iter()
        .map(|message| message.text().into())
        .collect()
}

#[test]
fn unbinding_a_missing_binding_is_no_error() {
    let broker = broker();
    broker.unbind("q", "x", "k", &Headers::new()).unwrap();
    let mut link = dial(&broker);
    channel(&mut link).declare(&exclusive("q")).unwrap();
    broker
        .unbind("q", "amq.topic", "k", &Headers::new())
        .unwrap();
}

#[test]
fn binding_arguments_are_checked_before_the_queue_owner() {
    let broker = broker();
    let mut link = dial(&broker);
    channel(&mut link).declare(&exclusive("q")).unwrap();
    broker
        .declare_exchange("x", ExchangeKind::Headers, &Headers::new())
        .unwrap();
    let nonsense: Headers = [("x-match", "none")].into_iter().collect();
    let refused = broker.bind("q", "x", "", &nonsense).unwrap_err();
    assert!(refused.is_precondition_failed(), "{refused}");
    let refused = broker.bind("q", "x", "", &Headers::new()).unwrap_err();
    assert!(refused.is_access_refused(), "{refused}");
}

#[test]
fn full_queue_requeues_everything_before_it_drops() {
    for (kind, dead) in [("classic", ["a", "b"]), ("quorum", ["b", "a"])] {
        assert_eq!(dropped_by(kind), dead, "{kind}");
    }
}

/// The messages that a queue of length one drops when a channel ends with "a", "b" and "c"
/// unsettled.
fn dropped_by(kind: &'static str) -> Vec<String> {
    let broker = broker();
    let (mut dying, mut living) = (dial(&broker), dial(&broker));
    let (one, other) = (channel(&mut dying), channel(&mut living));
    other.declare(&queue("dead")).unwrap();
    let limited = [
        ("x-queue-type", kind.into()),
        ("x-max-length", HeaderValue::I64(1)),
        ("x-dead-letter-exchange", "".into()),
        ("x-dead-letter-routing-key", "dead".into()),
    ];
    other.declare(&with("q", limited)).unwrap();
    publish(&*other, "q", ["a"]);
    one.get("q").unwrap().unwrap();
    publish(&*other, "q", ["b"]);
    one.get("q").unwrap().unwrap();
    publish(&*other, "q", ["c"]);
    one.get("q").unwrap().unwrap();
    one.close().unwrap();
    assert_eq!(texts(&broker, "q"), ["c"]);
    texts(&broker, "dead")
}

#[test]
fn consumer_with_room_again_rejoins_at_the_end() {
    for declaration in [queue("q"), quorum("q")] {
        let broker = broker();
        let mut link = dial(&broker);
        let (one, two) = (channel(&mut link), channel(&mut link));
        one.declare(&declaration).unwrap();
        for channel in [&one, &two] {
            channel.set_prefetch(1).unwrap();
        }
        let first = one.subscribe("q").unwrap();
        publish(&*one, "q", ["a"]);
        let tag = delivery(&*first).tag;
        let second = two.subscribe("q").unwrap();
        publish(&*one, "q", ["b", "c"]);
        assert_eq!(text(&delivery(&*second)), "b");
        // The turn of the first consumer was skipped; "c" waits for the first one with room.
        two.ack(1, false).unwrap();
        assert_eq!(text(&delivery(&*second)), "c");
        two.ack(2, false).unwrap();
        one.ack(tag, false).unwrap();
        publish(&*one, "q", ["d"]);
        assert_eq!(text(&delivery(&*second)), "d");
    }
}

#[test]
fn cancel_hands_over_to_next_single_active_consumer() {
    for profile in [Profile::V3_10, Profile::V4_0] {
        for kind in ["classic", "quorum"] {
            let broker = broker_of(profile);
            let mut link = dial(&broker);
            let consuming = channel(&mut link);
            let single = [
                ("x-queue-type", kind.into()),
                ("x-single-active-consumer", true.into()),
            ];
            consuming.declare(&with("q", single)).unwrap();
            consuming.set_prefetch(1).unwrap();
            let first = consuming.subscribe("q").unwrap();
            let second = consuming.subscribe("q").unwrap();
            publish(&*consuming, "q", ["a", "b"]);
            assert_eq!(text(&delivery(&*first)), "a");
            assert!(second.next().is_none());
            first.cancel().unwrap();
            assert_eq!(text(&delivery(&*second)), "b", "{kind} on {profile}");
        }
    }
}

#[test]
fn queue_delivers_before_its_own_dead_letter_returns() {
    let limit = ("x-max-length", HeaderValue::I64(1));
    let rejecting = ("x-overflow", "reject-publish".into());
    let priorities = ("x-max-priority", HeaderValue::I64(10));
    for profile in [Profile::V3_10, Profile::V4_0] {
        for kind in [
            vec![limit.clone()],
            vec![limit.clone(), rejecting.clone()],
            vec![priorities.clone()],
        ] {
            let case = format!("{kind:?} on {profile}");
            let broker = broker_of(profile);
            let mut link = dial(&broker);
            let channel = channel(&mut link);
            let to_itself = ("x-dead-letter-exchange", "".into());
            let arguments = kind.into_iter().chain([to_itself]);
            channel.declare(&with("q", arguments)).unwrap();
            channel.set_prefetch(1).unwrap();
            let consumer = channel.subscribe("q").unwrap();
            let mut urgent = message("", "q", "a");
            urgent.properties.priority = Some(5);
            channel.publish(&urgent).unwrap();
            publish(&*channel, "q", ["b"]);
            channel.reject(delivery(&*consumer).tag).unwrap();
            assert_eq!(text(&delivery(&*consumer)), "b", "{case}");
            assert_eq!(texts(&broker, "q"), ["a"], "{case}");
        }
    }
}

#[test]
fn fetched_messages_return_after_dead_letters_of_consumers() {
    for profile in [Profile::V3_10, Profile::V4_0] {
        for kind in ["classic", "quorum"] {
            let broker = broker_of(profile);
            let mut link = dial(&broker);
            let (close_reason, watching) = (channel(&mut link), channel(&mut link));
            let of_kind = [("x-queue-type", kind.into())];
            watching.declare(&with("q0", of_kind)).unwrap();
            let to_other = [
                ("x-max-length", HeaderValue::I64(0)),
                ("x-dead-letter-exchange", "".into()),
                ("x-dead-letter-routing-key", "q0".into()),
            ];
            watching.declare(&with("q1", to_other)).unwrap();
            publish(&*watching, "q0", ["fetched"]);
            close_reason.get("q0").unwrap().unwrap();
            let watcher = watching.subscribe("q0").unwrap();
            let consumer = close_reason.subscribe("q1").unwrap();
            publish(&*watching, "q1", ["consumed"]);
            delivery(&*consumer);
            assert_eq!(code(&close_reason.get("missing").unwrap_err()), 404);
            let order = [(); 2].map(|()| text(&delivery(&*watcher)));
            assert_eq!(order, ["consumed", "fetched"], "{kind} on {profile}");
        }
    }
}

#[test]
fn hard_error_closes_the_connection() {
    let broker = broker();
    let (mut one, mut other) = (dial(&broker), dial(&broker));
    let (asking, beside) = (channel(&mut one), channel(&mut one));
    let elsewhere = channel(&mut other);
    elsewhere.declare(&queue("q")).unwrap();
    let subscription = beside.subscribe("q").unwrap();
    publish(&*elsewhere, "q", ["a"]);
    delivery(&*subscription);
    let stream = with("s", [("x-queue-type", "stream".into())]);
    let is_closed = |failure: &Failure| match failure {
        Failure::Lost(why) => why.contains("540 NOT_IMPLEMENTED"),
        _ => false,
    };
    let failure = asking.declare(&stream).unwrap_err();
    assert!(is_closed(&failure), "{failure:?}");
    match incoming(&*subscription) {
        Incoming::Ended(failure) => assert!(is_closed(&failure), "{failure:?}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        one.link.open_channel(),
        Err(failure) if is_closed(&failure)
    ));
    assert!(event(&*one.link).is_err());
    assert_eq!(elsewhere.count("q"), Ok(1), "its message is requeued");
}

#[test]
fn close_channels_with_hard_code_closes_connections() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let (one, other) = (channel(&mut dialled), channel(&mut dialled));
    one.declare(&queue("q")).unwrap();
    let (first, second) = (one.subscribe("q").unwrap(), other.subscribe("q").unwrap());
    assert_eq!(broker.close_channels("q", 541), 2);
    for subscription in [first, second] {
        assert!(matches!(
            incoming(&*subscription),
            Incoming::Ended(Failure::Lost(_))
        ));
    }
    assert!(broker.connections().is_empty());
}

#[test]
fn delivery_limit_dead_letters_after_max_length() {
    let broker = broker();
    let (mut dying, mut living) = (dial(&broker), dial(&broker));
    let (one, other) = (channel(&mut dying), channel(&mut living));
    other.declare(&queue("dead")).unwrap();
    let limited = [
        ("x-queue-type", "quorum".into()),
        ("x-max-length", HeaderValue::I64(1)),
        ("x-delivery-limit", HeaderValue::I64(1)),
        ("x-dead-letter-exchange", "".into()),
        ("x-dead-letter-routing-key", "dead".into()),
    ];
    other.declare(&with("q", limited)).unwrap();
    let subscription = one.subscribe("q").unwrap();
    for body in ["a", "b", "c"] {
        publish(&*other, "q", [body]);
        delivery(&*subscription);
    }
    for tag in [1, 2] {
        one.nack(tag).unwrap();
        delivery(&*subscription);
    }
    publish(&*other, "q", ["d"]);
    delivery(&*subscription);
    dying.kill.throw();
    assert_eq!(texts(&broker, "q"), ["d"]);
    assert_eq!(texts(&broker, "dead"), ["c", "a", "b"]);
}
