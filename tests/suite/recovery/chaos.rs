//! Test of connections that are closed at random: every message is accounted for.

use std::collections::HashMap;

use rungmq::{Ack, Message};

use super::{id, one_consumer, send, told, wait_until_up};
use crate::harness::observed::{SOON, diary, fixed, unacknowledged, wait_until_empty};
use crate::harness::wait::let_pass;
use crate::harness::{Vhost, secs, wait_until};

/// Even ones are retried once and accepted then, odd ones rejected.
const MESSAGES: u64 = 1000;

#[test]
fn random_connection_closes_lose_no_retry_and_no_dead_letter() {
    let vhost = Vhost::new();
    let (service, story) = told(&vhost.url());
    let policy = fixed(2, 1.0);
    service.declare(&policy);
    let raw = vhost.raw();
    for n in 0..MESSAGES {
        send(&raw, "q", n, 1);
    }
    drop(raw);
    let (diary, read) = diary();
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        // So that it takes long enough to be interrupted.
        let_pass(secs(0.01));
        match message.payload() % 2 {
            0 if message.attempt() == 1 => Ack::retry("once"),
            0 => Ack::accept(),
            _ => Ack::reject("never"),
        }
    };
    let consumer = service.mq.consumer("q").retry_policy(policy);
    let consumer = consumer.prefetch(100).concurrency(4).start(handle).unwrap();
    let handled = || service.consumed("retried") + service.consumed("rejected");
    let mut closings = 0;
    while handled() < MESSAGES - 100 && closings < 8 {
        let (before, n) = (handled(), story.subscriptions().len());
        wait_until(SOON, "it goes on", || handled() > before + 40);
        let_pass(secs(rand::random_range(0.0..0.2)));
        vhost.close_connections();
        closings += 1;
        story.wait_for_subscriptions(n + 1);
    }
    assert!(closings >= 2, "{closings}");

    wait_until_up(&service.mq);
    let raw = vhost.raw();
    wait_until(SOON, "nothing is left to handle", || {
        raw.count("q") + raw.count("q.retry.1s") == 0
            && unacknowledged(&vhost) == 0
            && consumer.in_flight() == 0
    });
    // On its way from the rung to the queue a message is counted in neither.
    wait_until(SOON, "every retry was handled again", || {
        let mut even = (0..MESSAGES).step_by(2);
        even.all(|n| read.attempts(n).contains(&2))
    });
    wait_until_empty(&vhost, "q");
    let mut dead: HashMap<String, usize> = HashMap::new();
    for got in raw.drain("q.dlq") {
        assert_eq!(got.header_number("x-acemq-attempt"), Some(1));
        *dead
            .entry(got.message_id().unwrap().to_owned())
            .or_default() += 1;
    }
    let mut doubled = 0;
    for n in 0..MESSAGES {
        let seen = read.of(n);
        let first = seen.iter().filter(|seen| seen.attempt == 1).count();
        let second = seen.len() - first;
        assert!(seen.iter().all(|seen| seen.attempt <= 2), "{seen:?}");
        assert!(seen.iter().all(|seen| seen.id == id(n)));
        // A message that comes again was delivered before: only the library's copies are new.
        let fresh = |attempt| {
            let fresh = seen
                .iter()
                .filter(|seen| !seen.redelivered && seen.attempt == attempt);
            fresh.count()
        };
        assert!(fresh(1) <= 1, "{seen:?}");
        let copies = if n % 2 == 0 {
            assert!(second >= 1, "{n} was never handled again: {seen:?}");
            fresh(2)
        } else {
            assert_eq!(second, 0, "{seen:?}");
            let copies = dead.remove(&id(n)).unwrap_or(0);
            assert!(copies >= 1, "{n} is lost: {seen:?}");
            copies
        };
        // One copy for each time that the original was handled.
        assert!(copies <= first, "{n}: {copies} copies, {seen:?}");
        doubled += copies.saturating_sub(1);
    }
    assert!(dead.is_empty(), "{dead:?}");
    // Only what was under way when a connection was closed can be doubled.
    assert!(
        doubled <= closings * 100,
        "{doubled} of {closings} closings"
    );
    one_consumer(&vhost, "q");
}
