//! Tests of refusals and their codes.

use super::{
    LIMIT, broker, channel, client, code, dial, exclusive, incoming, message, queue, transport,
};
use crate::broker::model::declare::QueueFlags;
use crate::broker::model::ids::LinkId;
use crate::message::headers::Headers;
use crate::time::instant::monotonic;
use crate::topology::declaration::Declaration;
use crate::transport::{Channel, Failure, Incoming, Transport};

#[test]
fn unknown_delivery_tag_closes_the_channel_only() {
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
fn publish_to_missing_exchange_closes_the_channel() {
    let broker = broker();
    let (_link, channel) = client(&broker);
    let confirms = channel.confirms().unwrap();
    channel.publish(&message("gone", "q", "a")).unwrap();
    assert!(confirms.next_confirm().is_err());
    let failure = channel.close().unwrap_err();
    assert!(failure.is_not_found());
}

#[test]
fn refusal_names_the_argument_and_both_values() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let ttl = |millis: i64| {
        let arguments = [("x-message-ttl", millis)].into_iter().collect();
        Declaration::durable_queue("q", arguments)
    };
    channel(&mut dialled).declare(&ttl(2000)).unwrap();
    channel(&mut dialled).declare(&ttl(2000)).unwrap();
    let failure = channel(&mut dialled).declare(&ttl(3000)).unwrap_err();
    let text = "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': \
                received '3000' but current is '2000'";
    assert_eq!(
        failure,
        Failure::Refused {
            code: 406,
            text: text.to_owned()
        }
    );
}

#[test]
fn missing_reserved_and_locked_names_are_refused() {
    let broker = broker();
    let (mut one, mut other) = (dial(&broker), dial(&broker));
    let exclusive = exclusive("mine");
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
    assert_eq!(refused(&|channel| channel.get("missing").map(drop)), 404);
    assert_eq!(refused(&|channel| channel.declare(&queue("amq.q"))), 403);
    assert_eq!(refused(&|channel| channel.check(&exclusive)), 405);
    assert_eq!(refused(&|channel| channel.declare(&exclusive)), 405);
    assert_eq!(refused(&|channel| channel.subscribe("mine").map(drop)), 405);
    let binding = Declaration::bound_by_name("mine", "");
    assert_eq!(refused(&|channel| channel.declare(&binding)), 403);
    let binding = Declaration::bound_by_name("missing", "amq.direct");
    assert_eq!(refused(&|channel| channel.declare(&binding)), 404);
    drop(one.link);
    assert!(broker.queues().is_empty(), "it ended with its connection");
}

#[test]
fn channel_max_limits_the_channels_of_a_link() {
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
fn quorum_queue_must_be_durable_and_not_exclusive() {
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
fn exclusive_queue_of_another_client_is_locked() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let flags = QueueFlags {
        durable: false,
        exclusive: true,
        auto_delete: false,
    };
    let declared = broker.update(|hub, at| {
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
