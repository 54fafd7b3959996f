//! Tests of bodies larger than all buffers: publishing them ends although the broker reads nothing.

use std::thread;

use rungmq::{Connection, Publish};

use crate::harness::observed::{Observed, SOON};
use crate::harness::{Vhost, secs, wait_until};
use crate::suite::BorrowedNode;

type Results = Vec<Result<rungmq::Envelope, rungmq::PublishError>>;

/// Publishes two bodies of 64 MiB, more than all buffers on the way. On a thread of its own: a call
/// that never returns must not hang the tests as well.
#[track_caller]
fn publish_large_ones(service: &Observed) -> Results {
    let mq = service.mq.clone();
    let (reply, answer) = crossbeam_channel::bounded(1);
    thread::spawn(move || {
        let large = Publish::bytes(vec![0; 64 << 20]).routing_key("q");
        drop(reply.send(mq.publish_all(vec![large; 2])));
    });
    answer.recv_timeout(SOON).expect("an end of every publish")
}

#[test]
fn large_bodies_to_a_frozen_broker_end_as_unknown_too() {
    let node = BorrowedNode::take();
    let vhost = Vhost::on(&node);
    vhost.raw().classic("q");
    // Heartbeats would end it for another reason.
    let builder = Connection::builder(format!("{}?heartbeat=0", vhost.url()));
    let service = Observed::with(builder.confirm_timeout(secs(1)));
    service.mq.publish("", "q", &1).unwrap();
    node.freeze();
    for result in publish_large_ones(&service) {
        let error = result.unwrap_err();
        assert!(error.is_unknown() || error.is_refused(), "{error}");
    }
    // Deleting the virtual host would wait for a frozen node.
    node.thaw();
}

#[test]
fn large_bodies_under_an_alarm_end_too() {
    let node = BorrowedNode::take();
    let vhost = Vhost::on(&node);
    vhost.raw().classic("q");
    node.memory_alarm(true);
    let builder = Connection::builder(vhost.url()).confirm_timeout(secs(1));
    let service = Observed::with(builder);
    let results = publish_large_ones(&service);
    assert!(results.iter().any(Result::is_err));
    node.memory_alarm(false);
    wait_until(SOON, "publishing flows again", || {
        service.mq.publish("", "q", &2).is_ok()
    });
}
