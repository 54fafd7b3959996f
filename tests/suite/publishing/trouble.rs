//! Tests of publishing while the broker is blocked, frozen or half gone: every call ends, and says
//! whether the broker may have the message.

use std::thread;

use rungmq::{Ack, Connection, Envelope, Message, Publish, PublishError};

use crate::harness::observed::{Observed, SOON, diary, fixed, unacknowledged};
use crate::harness::wait::{Stopwatch, timed};
use crate::harness::{Flow, Proxy, Vhost, Way, secs, wait_until};
use crate::suite::BorrowedNode;

/// The text every AceMQ library has for it.
const BLOCKED: &str = "the broker has blocked this connection; publishing is paused";

/// Publishes on a thread of its own: a call that never returned would hang the tests instead of
/// failing one.
#[track_caller]
fn publish(service: &Observed, payload: u64) -> Result<Envelope, PublishError> {
    let mq = service.mq.clone();
    let (reply, answer) = crossbeam_channel::bounded(1);
    thread::spawn(move || drop(reply.send(mq.publish("", "q", &payload))));
    answer.recv_timeout(SOON).expect("an end of the publish")
}

#[test]
fn publish_under_memory_alarm_is_refused_then_resumes() {
    let node = BorrowedNode::take();
    let vhost = Vhost::on(&node);
    let service = Observed::on(&vhost);
    service.declare(&fixed(1, 0.0));
    let (diary, read) = diary();
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        if *message.payload() == 1 {
            Ack::reject("wrong")
        } else {
            Ack::accept()
        }
    };
    let raw = vhost.raw();
    service.mq.publish("", "q", &0).unwrap();
    service.mq.publish("", "q", &1).unwrap();
    node.memory_alarm(true);
    let declined_at_once = || publish(&service, 2);
    wait_until(SOON, "publishing is declined", || {
        declined_at_once().is_err()
    });
    let declined = service.published("", "refused");

    let (result, took) = timed(declined_at_once);
    let error = result.unwrap_err();
    assert!(error.is_refused() && !error.is_unknown(), "{error}");
    assert!(error.to_string().contains(BLOCKED), "{error}");
    assert_eq!(error.into_message().unwrap().body(), b"2");
    // A confirm would have been waited for ten seconds.
    assert!(took < secs(5), "{took:?}");
    assert_eq!(service.published("", "refused"), declined + 1);

    // What is accepted is settled all the same, and a copy waits unsent instead of being requeued.
    service.mq.consume("q", handle).unwrap();
    wait_until(SOON, "all but the rejected one are accepted", || {
        let accepted = read.attempts(0).len() + read.attempts(2).len();
        accepted >= 1 && service.consumed("acked") == accepted as u64
    });
    wait_until(SOON, "the rejected one is held", || {
        unacknowledged(&vhost) == 1
    });
    assert_eq!(service.consumed("rejected"), 0);

    node.memory_alarm(false);
    service.wait_for_consumed("rejected", 1);
    wait_until(SOON, "publishing flows again", || {
        publish(&service, 2).is_ok()
    });
    raw.wait_for_count("q.dlq", 1, SOON);
    assert_eq!(read.attempts(1), [1]);
    for reason in ["timeout", "lost", "nacked", "unroutable"] {
        assert_eq!(service.handed_back(reason), 0, "{reason}");
    }
}

#[test]
fn the_first_publish_of_a_process_ends_also_under_an_alarm() {
    let node = BorrowedNode::take();
    let vhost = Vhost::on(&node);
    vhost.raw().classic("q");
    node.memory_alarm(true);
    let builder = Connection::builder(vhost.url()).confirm_timeout(secs(1));
    let service = Observed::with(builder);
    // The broker blocks a connection only once it publishes, so how the first one ends is its
    // choice.
    let (_, took) = timed(|| publish(&service, 1));
    assert!(took < SOON, "{took:?}");
    wait_until(SOON, "publishing is declined", || {
        let result = publish(&service, 2);
        result.is_err_and(|error| error.is_refused())
    });
    let (closed, took) = timed(|| service.mq.close_within(secs(2)));
    closed.unwrap();
    assert!(took < secs(5), "{took:?}");
}

#[test]
fn publish_to_frozen_broker_ends_unknown_at_confirm_timeout() {
    let node = BorrowedNode::take();
    let vhost = Vhost::on(&node);
    vhost.raw().classic("q");
    let builder = Connection::builder(vhost.url()).confirm_timeout(secs(1));
    let service = Observed::with(builder);
    service.mq.publish("", "q", &1).unwrap();
    node.freeze();
    let (results, took) = timed(|| {
        thread::scope(|scope| {
            let service = &service;
            let threads: Vec<_> = (0..8)
                .map(|n| scope.spawn(move || publish(service, n)))
                .collect();
            threads
                .into_iter()
                .map(|t| t.join().unwrap())
                .collect::<Vec<_>>()
        })
    });
    for result in results {
        let error = result.unwrap_err();
        assert!(error.is_unknown() && !error.is_refused(), "{error}");
        assert!(error.into_message().is_some());
    }
    assert!(took >= secs(1) && took < secs(8), "{took:?}");
    assert_eq!(service.published("", "failed"), 8);

    node.thaw();
    wait_until(SOON, "publishing goes on", || {
        service.mq.publish("", "q", &9).is_ok()
    });
}

#[test]
fn a_publish_that_finds_no_publishing_connection_is_not_sent() {
    let node = BorrowedNode::take();
    let vhost = Vhost::on(&node);
    let builder = Connection::builder(vhost.url())
        .confirm_timeout(secs(1))
        .connect_timeout(secs(2));
    let service = Observed::with(builder);
    // The second socket is opened for the first publish only.
    assert_eq!(vhost.list_connections(&["pid"]).len(), 1);
    node.freeze();
    let (result, took) = timed(|| publish(&service, 1));
    let error = result.unwrap_err();
    assert!(error.is_refused() && !error.is_unknown(), "{error}");
    assert!(took < secs(10), "{took:?}");
    let (_, took) = timed(|| service.mq.close_within(secs(1)));
    assert!(took < secs(5), "{took:?}");
    // Deleting the virtual host would wait for a frozen node.
    node.thaw();
}

#[test]
fn losing_the_publishing_socket_costs_only_what_is_in_flight() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let service = Observed::to(&proxy.url_for(vhost.name()));
    service.declare(&fixed(3, 0.0));
    let (diary, read) = diary();
    let (release, gate) = crossbeam_channel::unbounded::<()>();
    let consumer = service.mq.consumer("q").retry_policy(fixed(3, 0.0));
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        gate.recv().unwrap();
        if message.attempt() == 1 {
            Ack::retry("once")
        } else {
            Ack::accept()
        }
    };
    let consumer = consumer.start(handle).unwrap();
    service.mq.publish("", "q", &1).unwrap();
    assert_eq!(proxy.accepted(), 2, "a socket to consume, one to publish");
    assert_eq!(read.next().attempt, 1);
    let channels = |vhost: &Vhost<'_>| {
        let rows = vhost.list_consumers();
        rows.iter()
            .map(|row| row["channel_pid"].to_string())
            .collect::<Vec<_>>()
    };
    let before = channels(&vhost);

    // The copy is written and never arrives.
    proxy.set(Way::ToBroker, Flow::Hold);
    let written = proxy.bytes(Way::ToBroker);
    release.send(()).unwrap();
    wait_until(SOON, "the copy is under way", || {
        proxy.bytes(Way::ToBroker) > written
    });
    proxy.cut_nth(1);
    proxy.set(Way::ToBroker, Flow::Pass);

    let again = read.next();
    assert_eq!((again.attempt, again.redelivered), (1, true));
    wait_until(SOON, "its requeue is counted", || {
        service.handed_back("lost") == 1
    });
    release.send(()).unwrap();
    let copy = read.next();
    assert_eq!((copy.attempt, copy.redelivered), (2, false));
    release.send(()).unwrap();
    service.wait_for_consumed("acked", 1);

    assert_eq!(proxy.accepted(), 3, "a new socket to publish");
    let later = Publish::json(&3).unwrap().routing_key("q").mandatory(true);
    service.mq.publish_with(later).unwrap();
    assert_eq!(read.next().payload, 3);
    assert!(consumer.is_running() && service.mq.is_running());
    assert_eq!(channels(&vhost), before);
    drop(release);
}

#[test]
fn a_publish_in_flight_when_its_socket_dies_ends_as_unknown() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let proxy = Proxy::to(vhost.node());
    let service = Observed::to(&proxy.url_for(vhost.name()));
    service.mq.publish("", "q", &1).unwrap();
    proxy.set(Way::ToBroker, Flow::Hold);
    let written = proxy.bytes(Way::ToBroker);
    thread::scope(|scope| {
        let publish = scope.spawn(|| service.mq.publish("", "q", &2));
        wait_until(SOON, "it is under way", || {
            proxy.bytes(Way::ToBroker) > written
        });
        proxy.cut_nth(1);
        let (error, took) = timed(|| publish.join().unwrap().unwrap_err());
        assert!(error.is_unknown(), "{error}");
        // The end of the socket tells; the limit for the confirm is ten seconds.
        assert!(took < secs(5), "{took:?}");
    });
    assert_eq!(service.published("", "failed"), 1);
    proxy.set(Way::ToBroker, Flow::Pass);
    wait_until(SOON, "publishing is possible again", || {
        service.mq.publish("", "q", &3).is_ok()
    });
    assert!(service.mq.is_running());
}

#[test]
fn publishing_resumes_promptly_after_a_long_outage() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let builder = Connection::builder(proxy.url_for(vhost.name()));
    let service = Observed::with(builder.recovery_backoff(secs(0.2), secs(0.2)));
    vhost.raw().classic("q");
    service.mq.publish("", "q", &0).unwrap();
    proxy.refuse(true);
    proxy.cut();
    // Pauses of the publisher's own that double from half a second would now be at eight.
    let clock = Stopwatch::start();
    wait_until(SOON, "the connection has been away", || {
        assert!(publish(&service, 1).is_err());
        clock.elapsed() > secs(8.5)
    });
    proxy.refuse(false);
    wait_until(SOON, "the connection is back", || service.mq.is_running());
    wait_until(secs(5), "publishing goes on", || {
        publish(&service, 2).is_ok()
    });
}
