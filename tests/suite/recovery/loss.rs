//! Tests of a loss without recovery: every call says so, nothing hangs, and the broker has the
//! messages back.

use std::thread;

use rungmq::{Ack, Connection, Consumer, Error, Message};

use crate::harness::observed::{Observed, Reader, SOON, diary, fixed};
use crate::harness::wait::timed;
use crate::harness::{Flow, Node, Proxy, Raw, Vhost, Way, secs, wait_until};

/// A service in the middle of everything: one handler runs, one message waits for its retry, one is
/// not started.
struct Busy {
    service: Observed,
    consumer: Consumer,
    release: crossbeam_channel::Sender<()>,
    read: Reader,
}

impl Busy {
    fn start(url: &str) -> Self {
        let service = Observed::with(Connection::builder(url).recovery_attempts(0));
        let policy = fixed(3, 20.0);
        service.declare_queue(rungmq::Queue::new("q").classic(), &policy);
        let (diary, read) = diary();
        let (release, gate) = crossbeam_channel::bounded::<()>(0);
        let consumer = service.mq.consumer("q").retry_policy(policy);
        let handle = move |message: Message<u64>| {
            diary.note(&message);
            if *message.payload() == 1 {
                return Ack::retry("once");
            }
            let _ = gate.recv();
            Ack::accept()
        };
        // Never in a rung.
        let consumer = consumer.retry_threshold(secs(0)).start(handle).unwrap();
        for payload in [1, 2, 3] {
            service.mq.publish("", "q", &payload).unwrap();
        }
        assert_eq!((read.next().payload, read.next().payload), (1, 2));
        wait_until(SOON, "two are in flight", || consumer.in_flight() == 2);
        Self {
            service,
            consumer,
            release,
            read,
        }
    }

    /// After the loss: everything has noticed, and every call comes back.
    fn assert_lost(self) {
        let mq = &self.service.mq;
        let waiting = mq.clone();
        let waiter = thread::spawn(move || waiting.wait());
        wait_until(SOON, "the consumer has noticed", || {
            !self.consumer.is_running()
        });
        wait_until(SOON, "the connection has noticed", || !mq.is_running());
        let waited = waiter.join().unwrap().unwrap_err();
        assert!(matches!(waited, Error::ConnectionLost { .. }), "{waited}");
        assert!(!waited.to_string().contains("guest"), "{waited}");

        let error = mq.publish("", "q", &4).unwrap_err();
        assert!(error.is_refused() && !error.is_unknown(), "{error}");
        let error = mq.consume("q", |_: Message<u64>| ()).unwrap_err();
        assert!(matches!(error, Error::ConnectionLost { .. }), "{error}");
        let error = rungmq::Topology::new()
            .queue(rungmq::Queue::new("r").dead_letter())
            .apply(mq)
            .unwrap_err();
        assert!(matches!(error, Error::ConnectionLost { .. }), "{error}");
        assert!(mq.pull("q").is_err());

        let (closed, took) = timed(|| mq.close());
        closed.unwrap();
        assert!(took < secs(10), "{took:?}, half of the default timeout");
        let (cancelled, took) = timed(|| self.consumer.cancel(secs(20)));
        cancelled.unwrap();
        assert!(took < secs(10), "{took:?}");

        // The late handler returns into nothing, and the one that waited ends without a copy.
        drop(self.release);
        self.service.wait_for_consumed("discarded", 2);
        wait_until(SOON, "nothing is in flight", || {
            self.consumer.in_flight() == 0
        });
        assert_eq!(self.read.attempts(1), [1]);
        assert!(self.read.of(3).is_empty());
        for outcome in ["acked", "retried", "handed_back"] {
            assert_eq!(self.service.consumed(outcome), 0, "{outcome}");
        }
    }
}

/// The three messages are in the queue again, each with its attempt as it was, and nothing besides.
fn assert_everything_back(raw: &Raw) {
    raw.wait_for_count("q", 3, SOON);
    let got = raw.drain("q");
    let mut bodies: Vec<_> = got.iter().map(|got| got.text()).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, ["1", "2", "3"]);
    for got in &got {
        assert_eq!(got.header_number("x-acemq-attempt"), Some(1));
        assert!(got.redelivered);
    }
}

#[test]
fn a_connection_that_the_broker_closes_is_lost() {
    let vhost = Vhost::new();
    let busy = Busy::start(&vhost.url());
    assert_eq!(vhost.close_connections(), 2);
    busy.assert_lost();
    assert_everything_back(&vhost.raw());
}

#[test]
fn a_connection_whose_sockets_are_cut_is_lost() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let busy = Busy::start(&proxy.url_for(vhost.name()));
    proxy.cut();
    busy.assert_lost();
    assert_everything_back(&vhost.raw());
}

#[test]
fn losing_the_consuming_socket_loses_the_connection() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let busy = Busy::start(&proxy.url_for(vhost.name()));
    proxy.cut_nth(0);
    busy.assert_lost();
    assert_everything_back(&vhost.raw());
    wait_until(SOON, "no connection is left open", || {
        vhost.list_connections(&["pid"]).is_empty()
    });
}

#[test]
fn a_connection_to_a_broker_that_is_killed_is_lost() {
    let node = Node::start();
    let vhost = Vhost::on(&node);
    let busy = Busy::start(&vhost.url());
    node.kill_9();
    busy.assert_lost();
    node.start_again();
    let back = Raw::open(&vhost.url());
    back.wait_for_count("q", 3, SOON);
}

#[test]
fn a_broker_that_falls_silent_is_noticed_by_its_heartbeats() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let busy = Busy::start(&format!("{}?heartbeat=1", proxy.url_for(vhost.name())));
    proxy.pause();
    busy.assert_lost();
    drop(proxy);
    assert_everything_back(&vhost.raw());
}

#[test]
fn a_loss_during_the_close_ends_the_close() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let busy = Busy::start(&proxy.url_for(vhost.name()));
    let closing = busy.service.mq.clone();
    let close = thread::spawn(move || timed(|| closing.close_within(secs(60))));
    let raw = vhost.raw();
    raw.wait_for_consumers("q", 0, SOON);
    proxy.cut();
    let (_, took) = close.join().unwrap();
    assert!(took < SOON, "{took:?}");
    drop(busy.release);
    assert_everything_back(&raw);
}

#[test]
fn crash_between_confirm_and_ack_leaves_original_and_copy() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let proxy = Proxy::to(vhost.node());
    let service = Observed::with(Connection::builder(proxy.url_for(vhost.name())).prefetch(1));
    let policy = fixed(3, 0.0);
    service.declare_queue(rungmq::Queue::new("q").classic(), &policy);
    let (diary, read) = diary();
    let (release, gate) = crossbeam_channel::bounded::<()>(0);
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        let _ = gate.recv();
        Ack::retry("once")
    };
    let consumer = service.mq.consumer("q").retry_policy(policy);
    consumer.start(handle).unwrap();
    service.mq.publish("", "q", &1).unwrap();
    let id = read.next().id;
    // The copy arrives, its confirm does not.
    proxy.set(Way::ToClient, Flow::Hold);
    drop(release);
    raw.wait_for_count("q", 1, SOON);
    proxy.cut();
    raw.wait_for_count("q", 2, SOON);
    let mut got: Vec<_> = raw
        .drain("q")
        .iter()
        .map(|got| {
            assert_eq!(got.message_id(), Some(id.as_str()));
            (got.header_number("x-acemq-attempt"), got.redelivered)
        })
        .collect();
    got.sort_unstable();
    assert_eq!(got, [(Some(1), true), (Some(2), false)]);
    // Its pumps still hold; the end of the test must not wait for them.
    drop(proxy);
    wait_until(SOON, "the connection has noticed", || {
        !service.mq.is_running()
    });
}
