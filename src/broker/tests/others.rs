//! What other clients and operators do, and how the library's connections see it.

use super::*;
use crate::broker::Published;
use crate::error::Error;
use crate::message::headers::HeaderValue;
use crate::topology::declaration::ExchangeKind;
use crate::transport::Gone;

fn publish(broker: &Broker, queue: &str, body: &str) -> Published {
    let properties = Properties::default();
    let published = broker.publish("", queue, properties, Headers::new(), body);
    published.unwrap()
}

fn table<V: Into<HeaderValue>>(key: &str, value: V) -> Headers {
    [(key, value)].into_iter().collect()
}

#[test]
fn a_mute_broker_does_everything_and_is_not_heard() {
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
        "what was lost is lost"
    );
    assert_eq!(confirm(&*confirms).tag, 2);
}

#[test]
fn whoever_asks_a_mute_broker_waits_until_the_connection_ends() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let channel = channel(&mut dialled);
    broker.mute();
    let operations = broker.operations();
    let asking = std::thread::spawn(move || channel.declare(&queue("q")));
    wait_until("the question was asked", || {
        broker.operations() > operations
    });
    assert!(broker.queue("q").is_some());
    broker.unmute();
    assert!(!asking.is_finished());
    broker.drop_connections();
    assert!(matches!(asking.join().unwrap(), Err(Failure::Lost(_))));
}

#[test]
fn a_mute_broker_is_given_up_after_two_heartbeats() {
    let broker = broker();
    let mut transport = transport(&broker);
    transport.heartbeat = Duration::from_millis(50);
    let dialled = transport.dial(monotonic() + LIMIT, &|_| {}).unwrap();
    broker.mute();
    assert_eq!(event(&*dialled.link), Err(Gone));
    wait_until("the broker has noticed", || broker.connections().is_empty());
}

#[test]
fn a_frozen_broker_sends_nothing_of_what_others_do() {
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
fn connections_are_refused_and_dropped_one_by_one() {
    let broker = broker();
    let (first, mut second) = (dial(&broker), dial(&broker));
    broker.refuse_connections();
    transport(&broker)
        .dial(monotonic() + LIMIT, &|_| {})
        .unwrap_err();
    assert_eq!(broker.connection_attempts(), 3);
    let connections = broker.connections();
    assert_eq!(connections.len(), 2, "those that stand stay");
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
fn a_lost_queue_is_not_there_and_cannot_be_declared() {
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
fn what_was_handed_out_comes_back_with_a_lost_queue_whatever_its_channel_does_meanwhile() {
    let settle: [fn(Box<dyn Channel>, u64); 4] = [
        |_open, _tag| {},
        |channel, _tag| channel.close().unwrap(),
        |channel, tag| channel.nack(tag).unwrap(),
        // Nobody is there to hear it.
        |channel, tag| channel.ack(tag, false).unwrap(),
    ];
    for settle in settle {
        for kind in [queue("q"), quorum("q")] {
            let broker = broker();
            let (_dialled, channel) = client(&broker);
            channel.declare(&kind).unwrap();
            publish(&broker, "q", "held");
            publish(&broker, "q", "ready");
            let held = channel.pull("q").unwrap().unwrap();
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
fn a_queue_that_is_found_has_the_policy_of_now() {
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
fn what_is_taken_is_gone() {
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
fn a_classic_queue_that_is_occupied_lets_nobody_consume() {
    let broker = broker();
    let mut dialled = dial(&broker);
    broker.declare_queue("q", &Headers::new()).unwrap();
    publish(&broker, "q", "a");
    let occupant = broker.consume_exclusively("q").unwrap();
    assert_eq!(broker.queue("q").unwrap().unacked, 1);
    broker.consume_exclusively("q").unwrap_err();
    let refused = channel(&mut dialled).subscribe("q").map(drop);
    assert_eq!(code(&refused.unwrap_err()), 403);
    drop(occupant);
    let channel = channel(&mut dialled);
    let subscription = channel.subscribe("q").unwrap();
    assert!(delivery(&*subscription).redelivered);
    broker.consume_exclusively("q").unwrap_err();
}

#[test]
fn an_occupant_goes_with_the_other_connections() {
    let broker = broker();
    broker.declare_queue("q", &Headers::new()).unwrap();
    let occupant = broker.consume_exclusively("q").unwrap();
    broker.drop_connections();
    assert!(broker.channels().is_empty());
    drop(broker.consume_exclusively("q").unwrap());
    drop(occupant);
}

#[test]
fn a_policy_covers_queues_that_are_there_and_queues_to_come() {
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
fn under_a_policy_the_smaller_number_counts_and_otherwise_the_queues_own_word() {
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
    // Set last, it counts in place of the other one, and cuts what is there.
    let shorter = table("max-length", 1);
    broker
        .set_policy("shorter", |queue| queue == "q", &shorter)
        .unwrap();
    assert_eq!(broker.messages("dead").len(), 2);
}

#[test]
fn a_policy_that_defines_what_is_not_known_is_refused() {
    let broker = broker();
    let unknown = table("queue-mode", "lazy");
    let refused = broker.set_policy("p", |_| true, &unknown).unwrap_err();
    assert!(refused.is_precondition_failed(), "{refused}");
    broker.declare_queue("q", &Headers::new()).unwrap();
    assert_eq!(broker.queue("q").unwrap().policy, None);
}

#[test]
fn a_name_or_key_that_is_too_long_for_amqp_is_refused_as_by_a_connection() {
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
