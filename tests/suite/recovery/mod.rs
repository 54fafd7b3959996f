//! Tests of recovery: connections are made again, consumers go on, and every message is accounted
//! for.

mod alarms;
mod brokers;
mod channels;
mod chaos;
mod down;
mod ending;
mod giving_up;
mod loss;
mod outages;
mod reconnecting;
mod rungs;
mod silence;
mod stale;

crate::harness::only_on_rabbitmq! { "several addresses";
mod addresses;
}

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amiquip::AmqpProperties;
use parking_lot::Mutex;
use rungmq::metrics::{Lost, Observer, Recovered, Retrying, Subscribed};
use rungmq::{Connection, Error, HealthStatus, Message, Topology};

use crate::harness::observed::{Observed, SOON, now};
use crate::harness::wait::timed;
use crate::harness::{Proxy, Raw, Vhost, holds_for, secs, table, wait_for, wait_until};
use crate::suite::shutdown::alone;

/// One thing that a connection said of itself.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Subscribed(String),
    Lost(String),
    Retrying(u32, Duration),
    Recovered(Duration),
}

/// Everything that a connection said of itself, and when.
#[derive(Clone, Default)]
struct Story(Arc<Mutex<Vec<(Instant, Event)>>>);

impl Story {
    fn add(&self, event: Event) {
        self.0.lock().push((now(), event));
    }

    fn all(&self) -> Vec<(Instant, Event)> {
        self.0.lock().clone()
    }

    fn events(&self) -> Vec<Event> {
        self.all().into_iter().map(|(_, event)| event).collect()
    }

    /// When events of this kind were told.
    fn times(&self, is: impl Fn(&Event) -> bool) -> Vec<Instant> {
        let mut all = self.all();
        all.retain(|(_, event)| is(event));
        all.into_iter().map(|(at, _)| at).collect()
    }

    fn subscriptions(&self) -> Vec<Instant> {
        self.times(|event| matches!(event, Event::Subscribed(_)))
    }

    fn losses(&self) -> Vec<Instant> {
        self.times(|event| matches!(event, Event::Lost(_)))
    }

    fn recoveries(&self) -> Vec<Instant> {
        self.times(|event| matches!(event, Event::Recovered(_)))
    }

    /// The announced pauses, each with its attempt and the time of its announcement.
    fn pauses(&self) -> Vec<(Instant, u32, Duration)> {
        let pauses = self
            .all()
            .into_iter()
            .filter_map(|(at, event)| match event {
                Event::Retrying(attempt, pause) => Some((at, attempt, pause)),
                _ => None,
            });
        pauses.collect()
    }

    #[track_caller]
    fn wait_for_losses(&self, n: usize) {
        wait_until(SOON, &format!("loss {n}"), || self.losses().len() >= n);
    }

    #[track_caller]
    fn wait_for_recoveries(&self, n: usize) {
        wait_until(SOON, &format!("recovery {n}"), || {
            self.recoveries().len() >= n
        });
    }

    #[track_caller]
    fn wait_for_subscriptions(&self, n: usize) {
        wait_until(SOON, &format!("subscription {n}"), || {
            self.subscriptions().len() >= n
        });
    }
}

impl Observer for Story {
    fn subscribed(&self, event: &Subscribed<'_>) {
        self.add(Event::Subscribed(event.queue().to_owned()));
    }

    fn lost(&self, event: &Lost<'_>) {
        self.add(Event::Lost(event.reason().to_owned()));
    }

    fn retrying(&self, event: &Retrying) {
        self.add(Event::Retrying(event.attempt(), event.pause()));
    }

    fn recovered(&self, event: &Recovered) {
        self.add(Event::Recovered(event.downtime()));
    }
}

/// A connection that tries often, and what it says of itself.
#[track_caller]
fn told(url: &str) -> (Observed, Story) {
    told_by(Connection::builder(url).recovery_backoff(secs(0.1), secs(0.4)))
}

#[track_caller]
fn told_by(builder: rungmq::ConnectionBuilder) -> (Observed, Story) {
    let story = Story::default();
    let service = Observed::with(builder.observer(story.clone()));
    (service, story)
}

/// How many consumers `queue` has on the broker.
#[track_caller]
fn consumers_on(vhost: &Vhost<'_>, queue: &str) -> usize {
    let rows = vhost.list_consumers();
    rows.iter().filter(|row| row["queue_name"] == queue).count()
}

/// Waits until `queue` has a consumer, and checks that it stays the only one.
#[track_caller]
fn one_consumer(vhost: &Vhost<'_>, queue: &str) {
    // The broker may list the consumer of a lost connection a moment longer.
    wait_until(SOON, "there is one consumer", || {
        consumers_on(vhost, queue) == 1
    });
    holds_for(secs(0.7), "there is one consumer", || {
        consumers_on(vhost, queue) == 1
    });
}

/// Cuts every connection, and takes none: for the client the broker is down.
fn take_down(proxy: &Proxy) {
    proxy.refuse(true);
    proxy.cut();
}

#[track_caller]
fn wait_until_down(mq: &Connection) {
    wait_until(SOON, "the loss is noticed", || {
        mq.health().status == HealthStatus::Down
    });
}

#[track_caller]
fn wait_until_up(mq: &Connection) {
    wait_for(SOON, "the connection is up", || {
        (mq.health().status == HealthStatus::Up).then_some(())
    });
}

/// What needs the broker, and is no publish, says that the connection is lost.
#[track_caller]
fn calls_find_it_lost(mq: &Connection, topology: &Topology) {
    assert_lost(mq.consume("q", |_: Message<u64>| ()));
    assert_lost(mq.pull("q"));
    assert_lost(mq.replay("q"));
    assert_lost(topology.apply(mq));
}

#[track_caller]
fn assert_lost<T: Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost { .. }), "{error}");
}

/// Checks that a close waits for nothing that is being retried.
#[track_caller]
fn close_at_once(mq: &Connection) {
    let (closed, took) = timed(|| mq.close());
    closed.unwrap();
    assert!(took < secs(10), "{took:?}, half of the default timeout");
}

/// For a test in a process of its own: `q` on the shared broker, to be reached through a proxy.
#[track_caller]
fn a_queue() -> (String, Vhost<'static>) {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    alone::address(vhost)
}

/// Puts a message into `queue` as a client without the library would.
#[track_caller]
fn send(raw: &Raw, queue: &str, payload: u64, attempt: i64) {
    let properties = AmqpProperties::default()
        .with_message_id(id(payload))
        .with_delivery_mode(2)
        .with_headers(table([("x-acemq-attempt", attempt)]));
    raw.send(queue, payload.to_string(), properties);
}

/// The id of a message that was put there by [`send`].
fn id(payload: u64) -> String {
    format!("id-{payload}")
}
