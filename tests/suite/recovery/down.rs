//! Tests of calls while the connection is down: each returns promptly with an error that says so.

use std::thread;

use rungmq::{Ack, Connection, Error, HealthStatus, Message, Publish, Queue, Topology};

use super::{
    Story, calls_find_it_lost, close_at_once, consumers_on, one_consumer, take_down, told, told_by,
    wait_until_down, wait_until_up,
};
use crate::harness::observed::{Observed, SOON, diary, fixed, wait_until_empty};
use crate::harness::wait::timed;
use crate::harness::{Flow, Proxy, Vhost, Way, holds_for, secs, wait_until};

#[test]
fn calls_while_down_are_refused_and_work_again_afterwards() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let proxy = Proxy::to(vhost.node());
    let (service, story) = told(&proxy.url_for(vhost.name()));
    let mq = &service.mq;
    let consumer = mq.consume("q", |_: Message<u64>| ()).unwrap();
    mq.publish("", "q", &1).unwrap();
    service.wait_for_consumed("acked", 1);
    wait_until_empty(&vhost, "q");
    let waiting = mq.clone();
    let waiter = thread::spawn(move || waiting.wait());
    take_down(&proxy);
    wait_until_down(mq);
    wait_until(SOON, "the consumer has noticed", || !consumer.is_running());

    let topology = Topology::new().queue(Queue::new("r"));
    let ((), took) = timed(|| {
        for payload in 0..100 {
            let error = mq.publish("", "q", &payload).unwrap_err();
            assert!(error.is_refused() && !error.is_unknown(), "{error}");
            assert_eq!(
                error.into_message().unwrap().body(),
                payload.to_string().as_bytes()
            );
        }
        for result in mq.publish_all((0..100).map(|_| Publish::text("x").routing_key("q"))) {
            assert!(result.unwrap_err().is_refused());
        }
        calls_find_it_lost(mq, &topology);
    });
    // A single call that waited would take its timeout of ten seconds.
    assert!(took < secs(10), "{took:?}");
    assert_eq!(service.published("", "refused"), 200);
    assert!(!mq.is_running());
    assert!(
        !waiter.is_finished(),
        "wait returned while it is made again"
    );

    let health = mq.health();
    assert_eq!(health.status, HealthStatus::Down);
    assert_eq!((health.consumers, health.consumers_running), (1, 0));
    let json = health.to_json();
    assert_eq!(json["status"], "down");
    assert_eq!(json["parts"]["queues"], serde_json::json!(["q"]));
    assert_eq!(json["parts"]["blocked"], false);
    assert!(
        json["detail"]
            .as_str()
            .is_some_and(|detail| !detail.is_empty())
    );
    let checked = json["checked"].as_str().unwrap();
    assert!(checked.ends_with('Z') && checked.contains('T'), "{checked}");

    proxy.refuse(false);
    story.wait_for_subscriptions(2);
    wait_until_up(mq);
    assert_eq!(mq.health().detail, None);
    topology.apply(mq).unwrap();
    mq.publish("", "q", &2).unwrap();
    service.wait_for_consumed("acked", 2);
    // Nothing of what was refused had been sent after all.
    assert_eq!(service.consumed("acked"), 2);
    assert_eq!(raw.count("q"), 0);
    assert!(consumer.is_running());
    one_consumer(&vhost, "q");
    mq.close().unwrap();
    waiter.join().unwrap().unwrap();
}

/// A connection that is down with a handler still running and a message that was not started.
fn down_with_work(
    proxy: &Proxy,
    vhost: &Vhost<'_>,
    pause: f64,
) -> (Observed, Story, crossbeam_channel::Sender<()>) {
    let builder = Connection::builder(proxy.url_for(vhost.name())).connect_timeout(secs(30));
    let (service, story) = told_by(builder.recovery_backoff(secs(pause), secs(pause)));
    let policy = fixed(3, 0.0);
    service.declare_queue(Queue::new("q").classic(), &policy);
    let (diary, read) = diary();
    let (release, gate) = crossbeam_channel::bounded::<()>(0);
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        let _ = gate.recv();
        Ack::retry("late")
    };
    let consumer = service.mq.consumer("q").retry_policy(policy);
    consumer.start(handle).unwrap();
    for payload in [1, 2] {
        service.mq.publish("", "q", &payload).unwrap();
    }
    assert_eq!(read.next().payload, 1);
    (service, story, release)
}

/// Checks that the close returns promptly and that nothing is dialled after it.
#[track_caller]
fn ends_with_the_close(service: &Observed, proxy: &Proxy, vhost: &Vhost<'_>) {
    close_at_once(&service.mq);
    let accepted = proxy.accepted();
    proxy.refuse(false);
    proxy.set_both(Flow::Pass);
    holds_for(secs(1.5), "nothing is dialled", || {
        proxy.accepted() == accepted
    });
    wait_until(SOON, "nothing is connected", || {
        vhost.list_connections(&["pid"]).is_empty()
    });
    assert!(matches!(
        service.mq.consume("q", |_: Message<u64>| ()),
        Err(Error::Closed)
    ));
    vhost.raw().wait_for_count("q", 2, SOON);
}

#[test]
fn a_close_between_two_tries_returns_at_once() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let (service, story, release) = down_with_work(&proxy, &vhost, 1.0);
    take_down(&proxy);
    wait_until(SOON, "a pause", || !story.pauses().is_empty());
    ends_with_the_close(&service, &proxy, &vhost);
    drop(release);
    service.wait_for_consumed("discarded", 1);
}

#[test]
fn a_close_in_the_middle_of_a_dial_returns_at_once() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let (service, _story, release) = down_with_work(&proxy, &vhost, 1.0);
    let accepted = proxy.accepted();
    proxy.set(Way::ToClient, Flow::Swallow);
    proxy.cut();
    // Both sockets are dialled again.
    wait_until(SOON, "the dials", || proxy.accepted() == accepted + 2);
    close_at_once(&service.mq);
    drop(release);
    service.wait_for_consumed("discarded", 1);
    proxy.cut();
    proxy.set_both(Flow::Pass);
    holds_for(secs(1.5), "nothing is connected", || {
        consumers_on(&vhost, "q") == 0 && proxy.accepted() == accepted + 2
    });
}

#[test]
fn cancel_while_down_returns_promptly_and_is_remembered() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let (service, story) = told(&proxy.url_for(vhost.name()));
    vhost.raw().classic("q");
    vhost.raw().classic("r");
    let cancelled = service.mq.consume("q", |_: Message<u64>| ()).unwrap();
    service.mq.consume("r", |_: Message<u64>| ()).unwrap();
    take_down(&proxy);
    wait_until_down(&service.mq);
    let (result, took) = timed(|| cancelled.cancel(secs(20)));
    result.unwrap();
    assert!(took < secs(10), "{took:?}");
    assert_eq!(service.mq.health().consumers, 1);
    proxy.refuse(false);
    story.wait_for_subscriptions(3);
    one_consumer(&vhost, "r");
    assert_eq!(consumers_on(&vhost, "q"), 0);
    assert!(!cancelled.is_running());
}

#[test]
fn dropping_the_last_handle_while_down_ends_the_connection() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let (service, story, release) = down_with_work(&proxy, &vhost, 0.3);
    take_down(&proxy);
    wait_until(SOON, "a pause", || !story.pauses().is_empty());
    let Observed { mq, .. } = service;
    let ((), took) = timed(|| drop(mq));
    assert!(took < secs(5), "{took:?}");
    let accepted = proxy.accepted();
    proxy.refuse(false);
    holds_for(secs(1.5), "nothing is dialled", || {
        proxy.accepted() == accepted
    });
    drop(release);
    vhost.raw().wait_for_count("q", 2, SOON);
}
