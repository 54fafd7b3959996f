//! Tests of the loss of one channel or queue: its consumer alone subscribes again, at a pace, and
//! others are not affected.

use amiquip::AmqpProperties;
use crossbeam_channel::{bounded, unbounded};
use rungmq::{Connection, HealthStatus, Message};

use super::{
    Story, close_at_once, consumers_on, one_consumer, take_down, told, told_by, wait_until_up,
};
use crate::harness::observed::{Observed, Reader, SOON, diary, fixed, now, unacknowledged};
use crate::harness::only_on_rabbitmq;
use crate::harness::wait::timed;
use crate::harness::{Node, Proxy, Raw, Vhost, holds_for, secs, wait::let_pass, wait_until};

/// How many channels there are on the virtual host, the raw client's included.
#[track_caller]
fn channels(vhost: &Vhost<'_>) -> usize {
    vhost.list_channels(&["pid"]).len()
}

/// A second consumer of the same connection, which must not notice anything.
struct Neighbour {
    read: Reader,
    sent: u64,
    slowest: std::time::Duration,
    channel: String,
}

impl Neighbour {
    #[track_caller]
    fn start(service: &Observed, vhost: &Vhost<'_>, raw: &Raw) -> Self {
        raw.classic("neighbour");
        let (diary, read) = diary();
        service.mq.consume("neighbour", diary.noting()).unwrap();
        Self {
            read,
            sent: 0,
            slowest: secs(0),
            channel: Self::channel(vhost),
        }
    }

    #[track_caller]
    fn channel(vhost: &Vhost<'_>) -> String {
        let rows = vhost.list_consumers();
        let row = rows.iter().find(|row| row["queue_name"] == "neighbour");
        row.unwrap()["channel_pid"].to_string()
    }

    #[track_caller]
    fn ping(&mut self, raw: &Raw) {
        self.sent += 1;
        let (seen, took) = timed(|| {
            raw.send(
                "neighbour",
                self.sent.to_string(),
                AmqpProperties::default(),
            );
            self.read.next()
        });
        assert_eq!((seen.payload, seen.redelivered), (self.sent, false));
        self.slowest = self.slowest.max(took);
    }

    #[track_caller]
    fn noticed_nothing(&self, vhost: &Vhost<'_>) {
        assert_eq!(Self::channel(vhost), self.channel);
        assert!(self.sent >= 5, "{} pings", self.sent);
        // Half of the timeout of a call that the other consumer's recovery could hold up.
        assert!(self.slowest < secs(5), "{:?}", self.slowest);
    }
}

#[test]
fn deleted_queue_is_consumed_again_once_it_is_back() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let (service, story) = told_by(Connection::builder(vhost.url()));
    let mut neighbour = Neighbour::start(&service, &vhost, &raw);
    let (diary, read) = diary();
    let consumer = service.mq.consume("q", diary.noting()).unwrap();
    raw.send("q", "1", AmqpProperties::default());
    assert_eq!(read.next().payload, 1);
    let before = 3;
    wait_until(SOON, "the two consumers and the raw client", || {
        channels(&vhost) == before
    });

    raw.delete_queue("q");
    wait_until(SOON, "health says so", || {
        service.mq.health().status == HealthStatus::Degraded
    });
    let health = service.mq.health();
    assert!(
        health.detail.as_ref().unwrap().starts_with("q: "),
        "{health}"
    );
    assert_eq!((health.consumers, health.consumers_running), (2, 1));
    assert_eq!(health.queues, ["neighbour", "q"]);
    assert!(!consumer.is_running() && service.mq.is_running());
    for _ in 0..20 {
        neighbour.ping(&raw);
        let_pass(secs(0.1));
    }
    wait_until(SOON, "no channel is left behind", || {
        channels(&vhost) <= before
    });
    // In the end the detail comes from the consumer's own tries.
    wait_until(SOON, "health names the missing queue", || {
        let detail = service.mq.health().detail.unwrap();
        detail.contains("\"q\" does not exist")
    });

    raw.classic("q");
    raw.send("q", "2", AmqpProperties::default());
    assert_eq!(read.next().payload, 2);
    wait_until_up(&service.mq);
    one_consumer(&vhost, "q");
    wait_until(SOON, "as many channels as before", || {
        channels(&vhost) == before
    });
    neighbour.noticed_nothing(&vhost);
    assert!(story.losses().is_empty());
    // The delivery may be as quick as the announcement.
    story.wait_for_subscriptions(3);
    assert_eq!(story.subscriptions().len(), 3);

    // A close in between does not hang.
    raw.delete_queue("q");
    wait_until(SOON, "it has noticed", || !consumer.is_running());
    close_at_once(&service.mq);
}

#[test]
fn exclusive_consumer_after_reconnect_is_named_and_retried() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("in-the-way");
    let proxy = Proxy::to(vhost.node());
    crate::harness::logs::capture();
    let (service, story) = told(&proxy.url_for(vhost.name()));
    let (diary, read) = diary();
    service.mq.consume("in-the-way", diary.noting()).unwrap();
    take_down(&proxy);
    raw.wait_for_consumers("in-the-way", 0, SOON);
    let other = vhost.raw();
    other.occupy("in-the-way");
    proxy.refuse(false);
    story.wait_for_recoveries(1);
    let refused = || {
        let text = "not consuming: the queue \"in-the-way\" could not be consumed";
        crate::harness::logs::captured_with(log::Level::Warn, text).len()
    };
    wait_until(SOON, "it was refused", || refused() >= 1);
    let began = now();
    let before = refused();
    wait_until(SOON, "it was refused three times more", || {
        refused() >= before + 3
    });
    // Pauses of half a second, one second and two, 20 % shorter at most, and the first of them may
    // have begun before the look. Pauses that do not double take 1.8 s at most.
    let took = now() - began;
    assert!(took >= secs(2.2), "{took:?}");
    let health = service.mq.health();
    assert_eq!(health.status, HealthStatus::Degraded);
    let detail = health.detail.unwrap();
    assert!(
        detail.starts_with("in-the-way: the queue \"in-the-way\""),
        "{detail}"
    );
    wait_until(SOON, "no channel is left behind", || channels(&vhost) <= 4);
    drop(other);
    raw.send("in-the-way", "1", AmqpProperties::default());
    assert_eq!(read.next().payload, 1);
    one_consumer(&vhost, "in-the-way");
    wait_until_up(&service.mq);
}

only_on_rabbitmq! { "ack timeouts";
/// Ack timeouts of three seconds on every channel that is opened from now on.
fn impatient() -> Node {
    let node = Node::start();
    node.eval(
        "application:set_env(rabbit, consumer_timeout, 3000), \
         application:set_env(rabbit, channel_tick_interval, 1000)",
    );
    node
}
}

only_on_rabbitmq! { "ack timeouts";
#[test]
fn ack_timeout_costs_its_consumer_a_moment_and_others_nothing() {
    let node = impatient();
    let vhost = Vhost::on(&node);
    let raw = vhost.raw();
    let (service, story) = told(&vhost.url());
    service.declare(&fixed(3, 1.0));
    let mut neighbour = Neighbour::start(&service, &vhost, &raw);
    let (diary, read) = diary();
    let (release, gate) = bounded::<()>(0);
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        if *message.payload() == 1 && !message.redelivered() {
            let _ = gate.recv();
        }
    };
    let consumer = service.mq.consumer("q").retry_policy(fixed(3, 1.0));
    let consumer = consumer.concurrency(2).start(handle).unwrap();
    service.mq.publish("", "q", &1).unwrap();
    assert_eq!(read.next().payload, 1);
    wait_until(SOON, "the channel is closed", || {
        neighbour.ping(&raw);
        !consumer.is_running()
    });
    for payload in 2..=6 {
        service.mq.publish("", "q", &payload).unwrap();
    }
    for payload in 1..=6 {
        neighbour.ping(&raw);
        read.wait_for(payload, 1 + usize::from(payload == 1));
    }
    service.wait_for_consumed("acked", 6);
    drop(release);
    service.wait_for_consumed("discarded", 1);
    for payload in 1..=6 {
        let attempts = read.attempts(payload);
        assert_eq!(attempts, vec![1; 1 + usize::from(payload == 1)]);
    }
    assert!(read.of(1)[1].redelivered);
    wait_until(SOON, "nothing is unacknowledged", || {
        unacknowledged(&vhost) == 0
    });
    // The late acknowledgement has closed nothing.
    assert_eq!(story.subscriptions().len(), 3);
    assert!(story.losses().is_empty());
    neighbour.noticed_nothing(&vhost);
    one_consumer(&vhost, "q");
}
}

#[test]
fn repeated_channel_loss_leaves_no_channel_behind() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let (service, story) = told(&vhost.url());
    let (diary, read) = diary();
    let consumer = service.mq.consume("q", diary.noting()).unwrap();
    let before = 2;
    wait_until(SOON, "the consumer and the raw client", || {
        channels(&vhost) == before
    });
    for round in 1..=3 {
        let n = story.subscriptions().len();
        raw.delete_queue("q");
        wait_until(SOON, "it has noticed", || !consumer.is_running());
        raw.classic("q");
        story.wait_for_subscriptions(n + 1);
        raw.send("q", round.to_string(), AmqpProperties::default());
        assert_eq!(read.next().payload, round);
        assert_eq!(consumers_on(&vhost, "q"), 1);
    }
    wait_until(SOON, "no channel is left behind", || {
        channels(&vhost) == before
    });
}

#[test]
fn broker_cancel_discards_running_and_keeps_acked_deliveries() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let (service, story): (Observed, Story) = told(&vhost.url());
    let (started, running) = unbounded();
    let (release, gate) = bounded::<()>(0);
    let handle = move |message: Message<u64>| {
        let _ = started.send(*message.payload());
        if *message.payload() == 1 {
            let _ = gate.recv();
        }
    };
    let consumer = service.mq.consumer("q").concurrency(2);
    consumer.start(handle).unwrap();
    raw.send("q", "1", AmqpProperties::default());
    raw.send("q", "2", AmqpProperties::default());
    service.wait_for_consumed("acked", 1);
    wait_until(SOON, "the other one runs", || running.len() == 2);
    raw.delete_queue("q");
    wait_until(SOON, "health says so", || {
        service.mq.health().status == HealthStatus::Degraded
    });
    // The new queue's deliveries begin at tag 1 again.
    raw.classic("q");
    raw.send("q", "3", AmqpProperties::default());
    story.wait_for_subscriptions(2);
    service.wait_for_consumed("acked", 2);
    drop(release);
    service.wait_for_consumed("discarded", 1);
    holds_for(secs(0.5), "the channel lives on", || {
        story.subscriptions().len() == 2 && consumers_on(&vhost, "q") == 1
    });
    wait_until(SOON, "nothing is unacknowledged", || {
        unacknowledged(&vhost) == 0
    });
    assert_eq!(service.consumed("acked"), 2);
}
