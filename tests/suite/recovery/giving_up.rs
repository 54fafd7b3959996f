//! Test of the limit of attempts: when it is reached, the connection counts as closed and every
//! call says so.

use std::thread;

use rungmq::{Connection, Error, HealthStatus, Message, Queue, RetryLadder, Topology};

use super::{Event, assert_lost, calls_find_it_lost, take_down, told_by};
use crate::harness::observed::{SOON, fixed};
use crate::harness::wait::timed;
use crate::harness::{Proxy, Vhost, holds_for, secs, wait_until};

#[test]
fn at_the_limit_of_attempts_the_connection_counts_as_closed() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let proxy = Proxy::to(vhost.node());
    let builder = Connection::builder(proxy.url_for(vhost.name()));
    let builder = builder.recovery_backoff(secs(0.05), secs(0.1));
    let (service, story) = told_by(builder.recovery_attempts(3));
    let mq = &service.mq;
    let consumer = mq.consume("q", |_: Message<u64>| ()).unwrap();
    let waiting = mq.clone();
    let waiter = thread::spawn(move || waiting.wait());

    // A loss that is recovered from takes nothing off the limit.
    proxy.cut();
    story.wait_for_subscriptions(2);
    let before = proxy.accepted();
    let told = story.events().len();
    take_down(&proxy);
    let waited = waiter.join().unwrap().unwrap_err();
    assert!(matches!(waited, Error::ConnectionLost { .. }), "{waited}");
    assert!(waited.to_string().contains("3 attempts"), "{waited}");
    assert!(!waited.to_string().contains("guest"), "{waited}");
    assert_eq!(proxy.accepted(), before + 3);
    let retries = story.pauses();
    let retries: Vec<_> = retries.iter().map(|(_, attempt, _)| *attempt).collect();
    assert!(retries.ends_with(&[2, 3]), "{retries:?}");
    assert!(matches!(story.events()[told], Event::Lost(_)));

    // It stays that way, however well the broker does.
    proxy.refuse(false);
    holds_for(secs(1), "it is not made again", || {
        proxy.accepted() == before + 3
    });
    let health = mq.health();
    assert_eq!(health.status, HealthStatus::Down);
    assert!(health.detail.unwrap().contains("3 attempts"));
    assert_eq!((health.consumers, health.consumers_running), (0, 0));
    assert!(!mq.is_running() && !consumer.is_running());

    let error = mq.publish("", "q", &1).unwrap_err();
    assert!(error.is_refused() && !error.is_unknown(), "{error}");
    assert_eq!(error.into_message().unwrap().body(), b"1");
    let all = mq.publish_all([rungmq::Publish::text("a"), rungmq::Publish::text("b")]);
    assert_eq!(all.len(), 2);
    for result in all {
        assert!(result.unwrap_err().is_refused());
    }
    calls_find_it_lost(mq, &Topology::new().queue(Queue::new("r")));
    let ladder = RetryLadder::new("q", &fixed(2, 1.0), secs(0.5)).unwrap();
    assert_lost(ladder.declare(mq));
    assert_lost(mq.wait());

    let (closed, took) = timed(|| mq.close());
    closed.unwrap();
    let (cancelled, again) = timed(|| consumer.cancel(secs(10)));
    cancelled.unwrap();
    assert!(took < secs(5) && again < secs(5), "{took:?} {again:?}");
    // Also after that close: it was given up, not closed.
    assert_lost(mq.wait());
    wait_until(SOON, "no connection is left", || {
        vhost.list_connections(&["pid"]).is_empty()
    });
}
