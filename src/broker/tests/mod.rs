//! Tests of the embedded broker through the transport's traits, as the library uses them.

mod differences;
mod faults;
mod limits;
mod others;
mod queues;
mod quorum_order;
mod refusals;
mod restarts;
mod timing;

use super::{Broker, MemoryTransport, Profile};
use crate::message::delivery::{Delivery, Outgoing};
use crate::message::headers::{HeaderValue, Headers, Properties};
use crate::time::clock::SystemClock;
use crate::time::instant::monotonic;
use crate::topology::declaration::Declaration;
use crate::transport::{
    Channel, Confirm, Confirms, Dialled, Failure, Incoming, Link, LinkEvent, Subscription,
    Transport,
};
use crossbeam_channel::Select;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn broker() -> Broker {
    broker_of(Profile::V3_10)
}

pub(crate) fn broker_of(profile: Profile) -> Broker {
    Broker::launch("test", profile, SystemClock::shared()).unwrap()
}

pub(crate) fn transport(broker: &Broker) -> MemoryTransport {
    MemoryTransport {
        broker: broker.clone(),
        heartbeat: Duration::ZERO,
        channel_max: 2047,
    }
}

pub(crate) fn dial(broker: &Broker) -> Dialled {
    let limit = monotonic() + LIMIT;
    transport(broker).dial(limit, &|_| {}).unwrap()
}

pub(crate) fn channel(dialled: &mut Dialled) -> Box<dyn Channel> {
    dialled.link.open_channel().unwrap()
}

/// A connection with one channel.
pub(crate) fn client(broker: &Broker) -> (Dialled, Box<dyn Channel>) {
    let mut dialled = dial(broker);
    let channel = channel(&mut dialled);
    (dialled, channel)
}

/// A classic, durable queue.
pub(crate) fn queue(name: &str) -> Declaration {
    Declaration::durable_queue(name, Headers::new())
}

pub(crate) fn quorum(name: &str) -> Declaration {
    let arguments = [("x-queue-type", "quorum")].into_iter().collect();
    Declaration::durable_queue(name, arguments)
}

/// A durable queue with arguments.
pub(crate) fn with(
    name: &str,
    arguments: impl IntoIterator<Item = (&'static str, HeaderValue)>,
) -> Declaration {
    Declaration::durable_queue(name, arguments.into_iter().collect())
}

/// A queue that is exclusive to one connection.
pub(crate) fn exclusive(name: &str) -> Declaration {
    Declaration::Queue {
        name: name.to_owned(),
        durable: false,
        exclusive: true,
        auto_delete: false,
        arguments: Headers::new(),
    }
}

pub(crate) fn message(exchange: &str, key: &str, body: &str) -> Outgoing {
    let properties = Properties {
        message_id: Some(body.to_owned()),
        delivery_mode: Some(2),
        ..Properties::default()
    };
    Outgoing {
        exchange: exchange.to_owned(),
        routing_key: key.to_owned(),
        mandatory: true,
        properties,
        headers: Headers::new(),
        body: Arc::new(body.as_bytes().to_vec()),
    }
}

/// Publishes to a queue.
pub(crate) fn publish(
    channel: &dyn Channel,
    queue: &str,
    bodies: impl IntoIterator<Item = &'static str>,
) {
    for body in bodies {
        channel.publish(&message("", queue, body)).unwrap();
    }
}

pub(crate) fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.body.to_vec()).unwrap()
}

/// Waits for the next thing that a subscription receives.
pub(crate) fn incoming(subscription: &dyn Subscription) -> Incoming {
    loop {
        if let Some(incoming) = subscription.next() {
            return incoming;
        }
        let mut select = Select::new();
        subscription.watch(&mut select);
        select.ready_timeout(LIMIT).expect("nothing came");
    }
}

pub(crate) fn delivery(subscription: &dyn Subscription) -> Delivery {
    match incoming(subscription) {
        Incoming::Delivery(delivery) => delivery,
        other => panic!("not a delivery: {other:?}"),
    }
}

pub(crate) fn confirm(confirms: &dyn Confirms) -> Confirm {
    loop {
        if let Some(confirm) = confirms.next_confirm().expect("the channel is gone") {
            return confirm;
        }
        let mut select = Select::new();
        confirms.watch(&mut select);
        select.ready_timeout(LIMIT).expect("no confirm came");
    }
}

pub(crate) fn event(link: &dyn Link) -> Result<LinkEvent, crate::transport::Gone> {
    loop {
        if let Some(event) = link.next_event()? {
            return Ok(event);
        }
        let mut select = Select::new();
        link.watch(&mut select);
        select.ready_timeout(LIMIT).expect("nothing happened");
    }
}

pub(crate) fn code(failure: &Failure) -> u16 {
    match failure {
        Failure::Refused { code, .. } => *code,
        other => panic!("not a refusal: {other:?}"),
    }
}

/// Polls until the condition holds.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let limit = monotonic() + LIMIT;
    while !done() {
        assert!(monotonic() < limit, "{what} has not happened");
        std::thread::yield_now();
    }
}
