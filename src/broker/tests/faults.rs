//! Tests of injected faults, and of the end of every wait.

use super::{
    LIMIT, broker, channel, client, code, confirm, dial, event, incoming, message, queue, quorum,
    text, transport, wait_until,
};
use crate::broker::server::connection::Operation;
use crate::broker::server::faults::DropPoint;
use crate::broker::{Broker, Permission};
use crate::message::headers::Headers;
use crate::time::instant::monotonic;
use crate::topology::declaration::Declaration;
use crate::transport::{Channel, Dialled, Failure, Gone, Incoming, LinkEvent, Transport};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A connection with one channel that has declared the queue `q`.
fn on_a_queue(broker: &Broker) -> (Dialled, Box<dyn Channel>) {
    let (dialled, channel) = client(broker);
    channel.declare(&queue("q")).unwrap();
    (dialled, channel)
}

/// Freezes the broker, publishes to `q`, and counts its messages on another thread.
fn count_while_frozen(
    broker: &Broker,
    channel: Box<dyn Channel>,
) -> JoinHandle<Result<usize, Failure>> {
    broker.freeze();
    channel.publish(&message("", "q", "a")).unwrap();
    let asking = thread::spawn(move || channel.count("q"));
    wait_until("the count was requested", || waiting(broker) == 2);
    asking
}

fn waiting(broker: &Broker) -> usize {
    broker.inspect(|hub| {
        hub.connections
            .values()
            .map(|connection| connection.inbox.len())
            .sum()
    })
}

#[test]
fn frozen_broker_replies_when_it_thaws() {
    let broker = broker();
    let (_dialled, channel) = on_a_queue(&broker);
    let asking = count_while_frozen(&broker, channel);
    assert!(!asking.is_finished());
    broker.thaw();
    assert_eq!(asking.join().unwrap(), Ok(1));
}

#[test]
fn kill_ends_every_wait_and_sent_requests_arrive() {
    let broker = broker();
    let (mut dialled, channel) = on_a_queue(&broker);
    let asking = count_while_frozen(&broker, channel);
    dialled.kill.throw();
    assert!(matches!(asking.join().unwrap(), Err(Failure::Lost(_))));
    assert_eq!(event(&*dialled.link), Err(Gone));
    assert_eq!(dialled.link.open_channel().unwrap_err().to_string(), {
        "the connection was lost: this side cut it off"
    });
    assert_eq!(broker.connections().len(), 1, "the broker has not noticed");
    broker.thaw();
    assert_eq!(
        (broker.connections().len(), broker.queue("q").unwrap().ready),
        (0, 1)
    );
}

#[test]
fn frozen_or_stopped_broker_accepts_no_connection() {
    let broker = broker();
    broker.freeze();
    let limit = monotonic() + Duration::from_millis(50);
    transport(&broker).dial(limit, &|_| {}).unwrap_err();
    let armed = parking_lot::Mutex::new(None);
    let dialling = transport(&broker);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            dialling
                .dial(monotonic() + LIMIT, &|kill| *armed.lock() = Some(kill))
                .map(drop)
        });
        wait_until("the switch is armed", || armed.lock().is_some());
        armed.lock().take().unwrap().throw();
        waiting.join().unwrap().unwrap_err();
    });
    broker.thaw();
    drop(dial(&broker));
    broker.stop();
    transport(&broker)
        .dial(monotonic() + LIMIT, &|_| {})
        .unwrap_err();
    broker.start();
    drop(dial(&broker));
}

#[test]
fn alarm_blocks_publishing_connections_only() {
    let broker = broker();
    let (mut publishing, mut consuming) = (dial(&broker), dial(&broker));
    let (publisher, consumer) = (channel(&mut publishing), channel(&mut consuming));
    consumer.declare(&queue("q")).unwrap();
    let confirms = publisher.confirms().unwrap();
    publisher.publish(&message("", "q", "before")).unwrap();
    assert!(confirm(&*confirms).ack);
    broker.block("low on memory");
    publisher.publish(&message("", "q", "during")).unwrap();
    let blocked = LinkEvent::Blocked("low on memory".to_owned());
    assert_eq!(event(&*publishing.link), Ok(blocked));
    assert_eq!(confirms.next_confirm(), Ok(None));
    assert_eq!(consumer.count("q"), Ok(1));
    assert_eq!(consuming.link.next_event(), Ok(None));
    broker.unblock();
    assert_eq!(event(&*publishing.link), Ok(LinkEvent::Unblocked));
    assert!(confirm(&*confirms).ack);
    assert_eq!(consumer.count("q"), Ok(2));
}

#[test]
fn dropped_connections_keep_accepted_messages_only() {
    for (when, accepted, confirmed) in [
        (DropPoint::DuringPublish, 0, false),
        (DropPoint::AfterConfirm, 1, true),
    ] {
        let broker = broker();
        let (dialled, channel) = on_a_queue(&broker);
        let confirms = channel.confirms().unwrap();
        broker.drop_connections_at(when);
        channel.publish(&message("", "q", "a")).unwrap();
        assert_eq!(matches!(confirms.next_confirm(), Ok(Some(_))), confirmed);
        assert!(confirms.next_confirm().is_err());
        assert!(matches!(channel.close(), Err(Failure::Lost(_))));
        assert_eq!(event(&*dialled.link), Err(Gone));
        assert_eq!(broker.queue("q").unwrap().ready, accepted);
    }
}

#[test]
fn lost_acknowledgement_redelivers_the_message() {
    let broker = broker();
    let (_dialled, one) = on_a_queue(&broker);
    one.publish(&message("", "q", "a")).unwrap();
    let tag = one.get("q").unwrap().unwrap().tag;
    broker.drop_connections_at(DropPoint::BeforeAck);
    one.ack(tag, false).unwrap();
    let (_again, other) = client(&broker);
    let delivery = other.get("q").unwrap().unwrap();
    assert!(delivery.redelivered);
}

#[test]
fn confirms_are_nacked_and_lost_as_armed() {
    let broker = broker();
    let (_dialled, channel) = on_a_queue(&broker);
    let confirms = channel.confirms().unwrap();
    broker.nack_next_confirms(1);
    channel.publish(&message("", "q", "nacked")).unwrap();
    assert!(!confirm(&*confirms).ack);
    broker.lose_next_confirms(1);
    channel.publish(&message("", "q", "lost")).unwrap();
    channel.publish(&message("", "q", "fine")).unwrap();
    let last = confirm(&*confirms);
    assert_eq!((last.tag, last.ack), (3, true));
    assert_eq!(channel.count("q"), Ok(2));
}

#[test]
fn close_channels_closes_those_of_one_queue() {
    let broker = broker();
    let mut dialled = dial(&broker);
    let (one, other) = (channel(&mut dialled), channel(&mut dialled));
    one.declare(&queue("q")).unwrap();
    one.declare(&queue("other")).unwrap();
    let subscription = one.subscribe("q").unwrap();
    let untouched = other.subscribe("other").unwrap();
    assert_eq!(broker.close_channels("q", 406), 1);
    match incoming(&*subscription) {
        Incoming::Ended(failure) => assert_eq!(code(&failure), 406),
        other => panic!("{other:?}"),
    }
    assert!(untouched.next().is_none());
}

#[test]
fn refused_permission_is_denied_until_allowed() {
    let broker = broker();
    let mut dialled = dial(&broker);
    broker.refuse(Permission::Declare);
    let failure = channel(&mut dialled).declare(&queue("q")).unwrap_err();
    assert!(failure.is_access_refused());
    broker.allow_all();
    channel(&mut dialled).declare(&queue("q")).unwrap();
}

#[test]
fn restart_keeps_durable_queues_and_persistent_messages() {
    let broker = broker();
    let (dialled, channel) = client(&broker);
    let transient = Declaration::Queue {
        name: "transient".to_owned(),
        durable: false,
        exclusive: false,
        auto_delete: false,
        arguments: Headers::new(),
    };
    for declaration in [queue("classic"), quorum("quorum"), transient] {
        channel.declare(&declaration).unwrap();
    }
    for queue in ["classic", "quorum", "transient"] {
        channel.publish(&message("", queue, "kept")).unwrap();
        let mut outgoing = message("", queue, "lost");
        outgoing.properties.delivery_mode = Some(1);
        channel.publish(&outgoing).unwrap();
    }
    broker.restart();
    assert_eq!(event(&*dialled.link), Err(Gone));
    let left = broker.queues();
    let left: Vec<_> = left
        .iter()
        .map(|queue| (queue.name.as_str(), queue.ready))
        .collect();
    assert_eq!(left, [("classic", 1), ("quorum", 2)]);
}

#[test]
fn frozen_broker_loses_connections_after_two_heartbeats() {
    let broker = broker();
    let mut transport = transport(&broker);
    transport.heartbeat = Duration::from_millis(50);
    let dialled = transport.dial(monotonic() + LIMIT, &|_| {}).unwrap();
    let opened = dialled.activity.last_read();
    wait_until("a heartbeat came", || dialled.activity.last_read() > opened);
    broker.freeze();
    assert_eq!(event(&*dialled.link), Err(Gone));
}

#[test]
fn one_confirm_covers_publishes_read_together() {
    let broker = broker();
    let (_dialled, channel) = on_a_queue(&broker);
    let confirms = channel.confirms().unwrap();
    let publish = |count: usize| {
        broker.freeze();
        for _ in 0..count {
            channel.publish(&message("", "q", "a")).unwrap();
        }
        broker.thaw();
        std::iter::from_fn(|| confirms.next_confirm().unwrap())
            .map(|confirm| (confirm.tag, confirm.multiple, confirm.ack))
            .collect::<Vec<_>>()
    };
    assert_eq!(publish(3), [(3, true, true)]);
    assert_eq!(publish(1), [(4, false, true)]);
    broker.nack_next_confirms(2);
    assert_eq!(publish(3), [(6, true, false), (7, false, true)]);
    broker.lose_next_confirms(1);
    let none_covers_the_lost_one = [(9, false, true), (10, false, true)];
    assert_eq!(publish(3), none_covers_the_lost_one);
}

#[test]
fn channel_request_after_kill_does_not_wait() {
    let broker = broker();
    let (dialled, channel) = client(&broker);
    let (link, id) = broker.inspect(|hub| {
        let channel = hub.state.channels.keys().next().copied();
        (*hub.connections.keys().next().unwrap(), channel)
    });
    broker.freeze();
    dialled.kill.throw();
    // As if the request had been on its way when the switch was thrown.
    let (reply, answer) = crossbeam_channel::bounded(1);
    let count = Operation::Count("q".to_owned());
    broker.update(|hub, _| hub.submit(link, id, count, Some(reply)));
    let gone = crossbeam_channel::RecvTimeoutError::Disconnected;
    assert_eq!(answer.recv_timeout(LIMIT).unwrap_err(), gone);
    drop(channel);
}

#[test]
fn latency_delays_requests_and_keeps_their_order() {
    let broker = broker();
    let (_dialled, channel) = on_a_queue(&broker);
    let latency = Duration::from_millis(50);
    broker.set_latency(latency);
    let began = monotonic();
    channel.publish(&message("", "q", "a")).unwrap();
    channel.publish(&message("", "q", "b")).unwrap();
    assert_eq!(broker.queue("q").unwrap().ready, 0);
    assert_eq!(channel.count("q").unwrap(), 2);
    assert!(began.elapsed() >= latency);
    broker.set_latency(Duration::ZERO);
    assert_eq!(text(&channel.get("q").unwrap().unwrap()), "a");
}

#[test]
fn connection_request_after_kill_does_not_wait() {
    let broker = broker();
    let dialled = dial(&broker);
    broker.freeze();
    dialled.kill.throw();
    let (reply, answer) = crossbeam_channel::bounded(1);
    broker.update(|hub, _| {
        let link = *hub.connections.keys().next().unwrap();
        hub.submit(link, None, Operation::OpenChannel, Some(reply));
    });
    let answer = answer.try_recv();
    assert!(answer.is_err_and(|error| error.is_disconnected()));
}
