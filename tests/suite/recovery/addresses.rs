//! Tests of several addresses: one that does not answer costs nothing.

use std::net::TcpListener;

use rungmq::Connection;

use super::{Story, one_consumer, take_down, told_by};
use crate::harness::{Proxy, Vhost, wait_until};
use crate::harness::observed::{Observed, SOON, diary, fixed, wait_until_empty};

fn with_hosts(first: &str, others: &[String]) -> (Observed, Story) {
    let builder = Connection::builder(first).hosts(others.iter().cloned());
    told_by(builder)
}

fn host(proxy: &Proxy) -> String {
    format!("127.0.0.1:{}", proxy.port())
}

#[test]
fn the_next_address_is_tried_without_a_pause_when_one_is_lost() {
    let vhost = Vhost::new();
    let proxies = [Proxy::to(vhost.node()), Proxy::to(vhost.node())];
    let (service, story) = with_hosts(&proxies[0].url_for(vhost.name()), &[host(&proxies[1])]);
    service.declare(&fixed(1, 0.0));
    let (diary, read) = diary();
    service.mq.consume("q", diary.noting()).unwrap();
    service.mq.publish("", "q", &1).unwrap();
    read.next();
    wait_until_empty(&vhost, "q");
    assert_eq!(proxies[1].accepted(), 0);

    take_down(&proxies[0]);
    story.wait_for_subscriptions(2);
    wait_until(SOON, "publishing goes on", || {
        service.mq.publish("", "q", &2).is_ok()
    });
    assert_eq!(read.next().payload, 2);
    wait_until_empty(&vhost, "q");
    assert_eq!(proxies[1].accepted(), 2, "one to consume, one to publish");
    assert!(story.pauses().is_empty(), "{:?}", story.events());
    one_consumer(&vhost, "q");

    // The second address has lived long enough for a first try without a pause, and the first one
    // is tried although it was dead the last time.
    proxies[0].refuse(false);
    take_down(&proxies[1]);
    story.wait_for_subscriptions(3);
    wait_until(SOON, "publishing goes on", || {
        service.mq.publish("", "q", &3).is_ok()
    });
    assert_eq!(read.next().payload, 3);
    assert!(story.pauses().is_empty(), "{:?}", story.events());
}

#[test]
fn one_round_tries_every_address_and_only_then_comes_a_pause() {
    let vhost = Vhost::new();
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = unused.local_addr().unwrap().to_string();
    drop(unused);
    let proxies = [Proxy::to(vhost.node()), Proxy::to(vhost.node())];
    let others = [dead, host(&proxies[1])];
    let (service, story) = with_hosts(&proxies[0].url_for(vhost.name()), &others);
    proxies[1].refuse(true);
    take_down(&proxies[0]);
    wait_until(SOON, "a pause", || story.pauses().len() == 1);
    assert_eq!((proxies[0].accepted(), proxies[1].accepted()), (2, 1));
    drop(service);
}
