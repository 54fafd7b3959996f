//! Tests of handlers that answer while their consumer drains.

use std::thread;

use crossbeam_channel::bounded;
use rungmq::{Ack, FatalError, Message, RetryPolicy, naming};
use serde_json::Value;

use super::{LIMIT, LONG_RUNG, Q, Seen, Stage, by_long_rung, soon};

/// Lets the handler answer once the drain has begun, on a connection that has never published.
fn answered_in_a_drain(
    policy: &RetryPolicy,
    answer: impl Fn() -> Result<Ack, FatalError> + Send + Sync + 'static,
) -> Stage {
    // A quorum queue counts a cancelled consumer until it has settled everything.
    let stage = Stage::classic();
    stage.send("1");
    let (open, gate) = bounded::<()>(0);
    let started = Seen::default();
    let seen = started.clone();
    let consumer = stage
        .consumer(policy)
        .start(move |message: Message<Value>| {
            seen.push(message.attempt());
            let _ = gate.recv();
            answer()
        })
        .unwrap();
    started.wait_for(1);
    let stopping = consumer.clone();
    let stop = thread::spawn(move || stopping.cancel(LIMIT));
    // No longer a consumer for the broker: the drain has begun.
    stage.raw.wait_for_consumers(Q, 0, LIMIT);
    drop(open);
    stop.join().unwrap().unwrap();
    assert_eq!(consumer.in_flight(), 0);
    stage
}

#[test]
fn a_message_is_set_aside_during_a_drain_as_at_any_time() {
    let stage = answered_in_a_drain(&soon(3), || Ok(Ack::reject("no")));
    assert_eq!(
        stage.dead().header_text("x-acemq-error"),
        Some("rejected by the handler: no")
    );
    stage.settled(&[("rejected", 1)]);

    let stage = answered_in_a_drain(&soon(3), || Err(FatalError::new("never")));
    assert_eq!(
        stage.dead().header_text("x-acemq-error"),
        Some("retrying cannot help: FatalError: never")
    );
    stage.settled(&[("dead_lettered", 1)]);

    let stage = answered_in_a_drain(&soon(3), || Ok(Ack::park("hm")));
    assert_eq!(stage.parked().header_number("x-acemq-attempt"), Some(1));
    stage.settled(&[("parked", 1)]);

    let stage = answered_in_a_drain(&soon(3), || Ok(Ack::accept()));
    stage.settled(&[("acked", 1)]);
}

#[test]
fn a_retry_goes_on_during_a_drain_unless_it_would_wait_here() {
    let stage = answered_in_a_drain(&by_long_rung(2), || Ok(Ack::retry("no stock")));
    let rung = stage.raw.wait_for_get(LONG_RUNG, LIMIT);
    assert_eq!(rung.header_number("x-acemq-attempt"), Some(2));
    stage.settled(&[("retried", 1)]);

    let at_once = RetryPolicy::fixed(2, std::time::Duration::ZERO).unwrap();
    let stage = answered_in_a_drain(&at_once, || Ok(Ack::retry("no stock")));
    let again = stage.raw.wait_for_get(Q, LIMIT);
    assert_eq!(again.header_number("x-acemq-attempt"), Some(2));
    stage.settled_counts(&[("retried", 1)]);

    let stage = answered_in_a_drain(&soon(2), || Ok(Ack::retry("no stock")));
    let back = stage.raw.wait_for_get(Q, LIMIT);
    assert_eq!(back.header("x-acemq-attempt"), None, "as it came");
    assert!(back.redelivered);
    stage.settled_counts(&[("handed_back", 1)]);
    assert_eq!(stage.raw.count(&naming::dead_letter_queue(Q)), 0);
}
