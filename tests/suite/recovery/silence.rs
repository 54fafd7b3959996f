//! Tests of a silent broker or network: heartbeats detect it, and no call hangs meanwhile.

use std::thread;

use amiquip::AmqpProperties;
use rungmq::{Connection, Error, HealthStatus, Message};

use super::{Story, consumers_on, one_consumer, told_by, wait_until_down, wait_until_up};
use crate::harness::observed::{Observed, SOON, diary, fixed, now};
use crate::harness::wait::timed;
use crate::harness::{Flow, Proxy, Vhost, Way, secs, wait::let_pass, wait_until};
use crate::suite::BorrowedNode;

#[test]
fn long_running_handler_keeps_its_connection() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let builder = Connection::builder(vhost.url()).heartbeat(secs(2));
    let (service, story) = told_by(builder);
    let connections = || vhost.list_connections(&["pid", "timeout"]);
    let before = connections();
    assert_eq!(before[0]["timeout"], 2, "{before:?}");
    service
        .mq
        .consume("q", |_: Message<u64>| let_pass(secs(7)))
        .unwrap();
    vhost.raw().send("q", "1", AmqpProperties::default());
    service.wait_for_consumed("acked", 1);
    assert_eq!(connections(), before);
    assert_eq!(story.subscriptions().len(), 1);
    assert!(story.losses().is_empty());
    assert_eq!(vhost.raw().count("q"), 0);
}

#[test]
fn frozen_broker_is_noticed_by_heartbeats_and_nothing_hangs() {
    let node = BorrowedNode::take();
    let vhost = Vhost::on(&node);
    vhost.raw().classic("q");
    let builder = Connection::builder(vhost.url()).connect_timeout(secs(2));
    let builder = builder.recovery_backoff(secs(0.2), secs(0.5));
    let (service, story) = told_by(builder.heartbeat(secs(2)).confirm_timeout(secs(1)));
    let mq = &service.mq;
    let (diary, read) = diary();
    mq.consume("q", diary.noting()).unwrap();
    mq.publish("", "q", &1).unwrap();
    assert_eq!(read.next().payload, 1);

    node.freeze();
    let frozen = now();
    // Health is a look at what is known, so it cannot hang; the publish ends by its own limit.
    while story.losses().is_empty() {
        let (health, took) = timed(|| mq.health());
        assert!(took < secs(5), "{took:?} for {health}");
        let (_, took) = timed(|| mq.publish("", "q", &2));
        assert!(took < secs(8), "{took:?}");
        assert!(now() - frozen < secs(20), "the loss was not noticed");
    }
    let noticed = story.losses()[0] - frozen;
    assert!(noticed < secs(8), "{noticed:?}");
    wait_until_down(mq);
    let (error, took) = timed(|| mq.publish("", "q", &3).unwrap_err());
    assert!(error.is_refused() && took < secs(5), "{took:?}: {error}");
    // Connecting to it takes a limit each time.
    wait_until(SOON, "a dial has failed", || !story.pauses().is_empty());

    node.thaw();
    wait_until_up(mq);
    mq.publish("", "q", &4).unwrap();
    read.wait_for(4, 1);
    assert!(read.of(3).is_empty(), "what was refused was sent");
    one_consumer(&vhost, "q");
}

struct Half {
    vhost: Vhost<'static>,
    proxy: Proxy,
    service: Observed,
    story: Story,
    read: crate::harness::observed::Reader,
    release: crossbeam_channel::Sender<()>,
}

impl Half {
    /// A handler runs whose outcome needs a copy.
    #[track_caller]
    fn start() -> Self {
        let vhost = Vhost::new();
        let proxy = Proxy::to(vhost.node());
        let builder = Connection::builder(proxy.url_for(vhost.name())).connect_timeout(secs(2));
        let builder = builder.recovery_backoff(secs(0.2), secs(0.5));
        let (service, story) = told_by(builder.heartbeat(secs(1)));
        service.declare_queue(rungmq::Queue::new("q").classic(), &fixed(3, 0.0));
        let (diary, read) = diary();
        let (release, gate) = crossbeam_channel::unbounded::<()>();
        let handle = move |message: Message<u64>| {
            diary.note(&message);
            gate.recv().unwrap();
            if message.attempt() == 1 {
                Err("once")
            } else {
                Ok(())
            }
        };
        let consumer = service.mq.consumer("q").retry_policy(fixed(3, 0.0));
        consumer.start(handle).unwrap();
        service.mq.publish("", "q", &1).unwrap();
        read.next();
        Self {
            vhost,
            proxy,
            service,
            story,
            read,
            release,
        }
    }

    /// The loss is noticed, what is under way ends as unknown, and everything goes on when the
    /// network is back.
    #[track_caller]
    fn survives(self, way: Way) {
        let Self {
            vhost,
            proxy,
            service,
            story,
            read,
            release,
        } = self;
        proxy.set(way, Flow::Swallow);
        let began = now();
        thread::scope(|scope| {
            let publish = scope.spawn(|| service.mq.publish("", "q", &2));
            // The handler ends before the loss of the network is noticed.
            release.send(()).unwrap();
            let error = publish.join().unwrap().unwrap_err();
            assert!(error.is_unknown(), "{error}");
        });
        story.wait_for_losses(1);
        let noticed = story.losses()[0] - began;
        assert!(noticed < secs(10), "{noticed:?}");
        proxy.set(way, Flow::Pass);
        // What the broker holds of the half-dead connections ends here.
        proxy.cut();
        for _ in 0..20 {
            release.send(()).unwrap();
        }
        story.wait_for_subscriptions(2);
        wait_until_up(&service.mq);
        wait_until(SOON, "its second attempt", || read.attempts(1).contains(&2));
        wait_until(SOON, "nothing is left", || {
            let row = vhost.queue("q", &["messages"]).unwrap();
            row["messages"] == 0
        });
        let seen = read.of(1);
        // An original that came back, and a copy of each handling at most.
        let firsts = seen.iter().filter(|seen| seen.attempt == 1).count();
        let seconds = seen.iter().filter(|seen| seen.attempt == 2).count();
        assert_eq!(firsts + seconds, seen.len());
        assert!((1..=2).contains(&firsts) && seconds <= firsts, "{seen:?}");
        wait_until(SOON, "there is one consumer", || {
            consumers_on(&vhost, "q") == 1
        });
        assert_eq!(service.mq.health().status, HealthStatus::Up);
    }
}

#[test]
fn network_losing_the_brokers_bytes_is_survived() {
    Half::start().survives(Way::ToClient);
}

#[test]
fn network_losing_the_clients_bytes_is_survived() {
    Half::start().survives(Way::ToBroker);
}

crate::harness::only_on_rabbitmq! { "a queue that hangs";
#[test]
fn hanging_queue_blocks_only_its_own_consumer() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("hangs");
    raw.classic("q");
    let builder = Connection::builder(vhost.url()).connect_timeout(secs(2));
    let (service, story) = told_by(builder);
    let consume = |queue: &str| service.mq.consume(queue, |_: Message<u64>| ());
    vhost.suspend("hangs", true);
    for _ in 0..6 {
        let error = consume("hangs").unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    }
    consume("q").unwrap();
    service.mq.publish("", "q", &1).unwrap();
    service.wait_for_consumed("acked", 1);
    assert!(story.losses().is_empty());
    vhost.suspend("hangs", false);
    wait_until(SOON, "it can be consumed", || consume("hangs").is_ok());
    assert!(story.losses().is_empty());
}
}
