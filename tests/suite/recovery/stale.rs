//! Tests of what a lost channel leaves behind: running handlers, waits, and unstarted deliveries.

use amiquip::AmqpProperties;
use crossbeam_channel::{bounded, unbounded};
use rungmq::{Ack, HealthStatus, Message, Queue};

use super::{consumers_on, one_consumer, told};
use crate::harness::observed::{
    Observed, Reader, SOON, diary, fixed, unacknowledged, wait_until_empty,
};
use crate::harness::{Proxy, Vhost, holds_for, secs, wait_until};

/// Publishes each of these once the handler of the one before has started.
#[track_caller]
fn start_handlers(service: &Observed, read: &Reader, payloads: impl IntoIterator<Item = u64>) {
    for payload in payloads {
        service.mq.publish("", "q", &payload).unwrap();
        assert_eq!(read.next().payload, payload);
    }
}

#[test]
fn outcomes_of_handlers_whose_channel_was_lost_are_thrown_away() {
    let vhost = Vhost::new();
    let (service, story) = told(&vhost.url());
    let policy = fixed(3, 1.0);
    service.declare_queue(Queue::new("q").classic(), &policy);
    let (diary, read) = diary();
    let (release, gate) = bounded::<()>(0);
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        if message.redelivered() {
            return Ack::accept();
        }
        let _ = gate.recv();
        match message.payload() {
            1 => Ack::accept(),
            2 => Ack::retry("late"),
            3 => Ack::reject("late"),
            4 => Ack::park("late"),
            _ => panic!("late"),
        }
    };
    let consumer = service.mq.consumer("q").retry_policy(policy);
    // One permit is left, so that the consumer subscribes again while the handlers run.
    let consumer = consumer.concurrency(6).start(handle).unwrap();
    start_handlers(&service, &read, 1..=5);
    vhost.close_connections();
    story.wait_for_subscriptions(2);
    // The five are handled again while their first handlers still run.
    service.wait_for_consumed("acked", 5);
    wait_until(SOON, "the first five are in flight", || {
        consumer.in_flight() == 5
    });
    drop(release);
    service.wait_for_consumed("discarded", 5);
    wait_until(SOON, "nothing is in flight", || consumer.in_flight() == 0);
    let raw = vhost.raw();
    holds_for(secs(0.5), "nothing was copied", || {
        ["q", "q.retry.1s", "q.dlq", "q.parked"].map(|queue| raw.count(queue)) == [0; 4]
    });
    for payload in 1..=5 {
        assert_eq!(read.attempts(payload), [1, 1]);
    }
    wait_until(SOON, "nothing is unacknowledged", || {
        unacknowledged(&vhost) == 0
    });
    assert_eq!(story.subscriptions().len(), 2, "the channel lives on");
    assert_eq!(service.consumed("acked"), 5);
    one_consumer(&vhost, "q");
}

#[test]
fn no_subscription_while_stale_handlers_hold_every_permit() {
    let vhost = Vhost::new();
    let (service, story) = told(&vhost.url());
    service.declare_queue(Queue::new("q").classic(), &fixed(1, 0.0));
    let (diary, read) = diary();
    let (release, gate) = unbounded::<()>();
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        if !message.redelivered() {
            gate.recv().unwrap();
        }
    };
    let consumer = service.mq.consumer("q").concurrency(2);
    consumer.start(handle).unwrap();
    start_handlers(&service, &read, [1, 2]);
    vhost.close_connections();
    story.wait_for_recoveries(1);
    wait_until(SOON, "the broker has forgotten the old consumer", || {
        consumers_on(&vhost, "q") == 0
    });
    holds_for(secs(1.5), "nothing is subscribed", || {
        consumers_on(&vhost, "q") == 0 && story.subscriptions().len() == 1
    });
    let health = service.mq.health();
    assert_eq!(health.status, HealthStatus::Degraded, "{health}");
    assert!(health.detail.unwrap().contains("q: "));

    release.send(()).unwrap();
    story.wait_for_subscriptions(2);
    service.wait_for_consumed("acked", 2);
    release.send(()).unwrap();
    service.wait_for_consumed("discarded", 2);
    assert_eq!(
        (read.attempts(1), read.attempts(2)),
        (vec![1, 1], vec![1, 1])
    );
    one_consumer(&vhost, "q");
}

#[test]
fn waits_in_the_consumer_end_with_the_channel_and_copy_nothing() {
    let vhost = Vhost::new();
    let (service, story) = told(&vhost.url());
    let policy = fixed(3, 60.0);
    service.declare_queue(Queue::new("q").classic(), &policy);
    let (diary, read) = diary();
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        if message.redelivered() {
            Ack::accept()
        } else {
            Ack::retry("once")
        }
    };
    let consumer = service.mq.consumer("q").retry_policy(policy);
    let consumer = consumer.retry_threshold(secs(0)).start(handle).unwrap();
    start_handlers(&service, &read, 1..=10);
    wait_until(SOON, "ten are in flight", || consumer.in_flight() == 10);
    vhost.close_connections();
    story.wait_for_subscriptions(2);
    service.wait_for_consumed("acked", 10);
    service.wait_for_consumed("discarded", 10);
    assert_eq!(service.consumed("retried"), 0);
    for payload in 1..=10 {
        assert_eq!(read.attempts(payload), [1, 1]);
    }
    wait_until_empty(&vhost, "q");
    wait_until(SOON, "nothing is in flight", || consumer.in_flight() == 0);
}

#[test]
fn unstarted_deliveries_are_dropped_with_their_channel() {
    let vhost = Vhost::new();
    let (service, story) = told(&vhost.url());
    service.declare_queue(Queue::new("q").classic(), &fixed(1, 0.0));
    let (diary, read) = diary();
    let (release, gate) = unbounded::<()>();
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        gate.recv().unwrap();
    };
    let consumer = service.mq.consumer("q").concurrency(2).prefetch(50);
    consumer.start(handle).unwrap();
    let raw = vhost.raw();
    let bodies: Vec<_> = (1..=50).map(|n| n.to_string()).collect();
    raw.send_all("q", &bodies, &AmqpProperties::default());
    let first = [read.next().payload, read.next().payload];
    wait_until(SOON, "all are with the consumer", || {
        unacknowledged(&vhost) == 50
    });
    vhost.close_connections();
    story.wait_for_recoveries(1);
    for _ in 0..52 {
        release.send(()).unwrap();
    }
    service.wait_for_consumed("acked", 50);
    service.wait_for_consumed("discarded", 2);
    for payload in 1..=50 {
        let seen = read.of(payload);
        let started_before = first.contains(&payload);
        assert_eq!(seen.len(), 1 + usize::from(started_before), "{payload}");
        assert!(seen.iter().all(|seen| seen.attempt == 1));
        assert!(seen.last().unwrap().redelivered);
    }
    wait_until_empty(&vhost, "q");
}

#[test]
fn unsent_copies_are_dropped_with_their_channel() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let (service, story) = told(&proxy.url_for(vhost.name()));
    service.declare_queue(Queue::new("q").classic(), &fixed(1, 0.0));
    let (diary, read) = diary();
    let (release, gate) = bounded::<()>(0);
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        let _ = gate.recv();
        if *message.payload() == 0 {
            Ack::accept()
        } else {
            Ack::reject("never")
        }
    };
    let consumer = service.mq.consumer("q").concurrency(11);
    let consumer = consumer.start(handle).unwrap();
    start_handlers(&service, &read, 0..=10);
    // Only the socket that publishes is lost.
    proxy.refuse(true);
    proxy.cut_nth(1);
    wait_until(SOON, "health says so", || {
        service.mq.health().status == HealthStatus::Degraded
    });
    let error = service.mq.publish("", "q", &11).unwrap_err();
    assert!(error.is_refused(), "{error}");
    assert!(service.mq.is_running() && consumer.is_running());
    drop(release);
    // What needs no copy is settled all the same.
    service.wait_for_consumed("acked", 1);
    wait_until(SOON, "the copies wait", || {
        service.mq.health().waiting_copies == 10
    });
    assert_eq!(service.handed_back("lost"), 0);

    proxy.cut_nth(0);
    wait_until(SOON, "they wait no longer", || {
        service.mq.health().waiting_copies == 0
    });
    service.wait_for_consumed("discarded", 10);
    proxy.refuse(false);
    story.wait_for_subscriptions(2);
    service.wait_for_consumed("rejected", 10);
    for payload in 1..=10 {
        assert_eq!(read.attempts(payload), [1, 1]);
    }
    let raw = vhost.raw();
    raw.wait_for_count("q.dlq", 10, SOON);
    holds_for(secs(0.5), "there are no more copies", || {
        raw.count("q.dlq") == 10
    });
    wait_until_empty(&vhost, "q");
}
