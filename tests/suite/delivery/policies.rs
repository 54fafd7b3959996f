//! Tests of an operator's policy over the rungs.

use rungmq::{Ack, Message, RetryPolicy};
use serde_json::{Value, json};

use super::{LIMIT, LONG_RUNG, Q, Seen, Stage, by_long_rung, by_rung};
use crate::harness::wait::timed;
use crate::harness::{secs, wait_until};

fn over_the_rungs(stage: &Stage, definition: &Value) {
    stage.vhost.set_policy("ops", "[.]retry[.]", definition);
}

fn applies_to(stage: &Stage, rung: &str) -> bool {
    let row = stage.vhost.queue(rung, &["policy"]);
    row.is_some_and(|row| row["policy"] == "ops")
}

#[test]
fn shorter_policy_ttl_returns_early_with_right_attempts() {
    let stage = Stage::new();
    over_the_rungs(&stage, &json!({"message-ttl": 300}));
    // Two waits of a minute each would pass every limit of this test.
    let policy = RetryPolicy::fixed(3, secs(60)).unwrap();
    let attempts = stage.retrying(&policy, Message::attempt);
    wait_until(LIMIT, "the policy applies", || {
        applies_to(&stage, "orders.new.retry.1m")
    });
    stage.send("1");
    let dead = stage.dead();
    assert_eq!(
        dead.header_text("x-acemq-error"),
        Some("gave up after 3 attempts: no stock")
    );
    assert_eq!(attempts.all(), [1, 2, 3]);
    stage.settled(&[("retried", 2), ("dead_lettered", 1)]);
}

#[test]
fn a_rung_that_expired_costs_no_retry() {
    let stage = Stage::new();
    over_the_rungs(&stage, &json!({"expires": 300}));
    let attempts = stage.retrying(&by_rung(3), Message::attempt);
    // Remembered, for the consumer has declared it; and gone.
    wait_until(LIMIT, "the rung has expired", || {
        !stage
            .vhost
            .queue_names()
            .iter()
            .any(|name| name.contains(".retry."))
    });
    stage.send("1");
    assert_eq!(stage.dead().header_number("x-acemq-attempt"), Some(3));
    assert_eq!(attempts.all(), [1, 2, 3]);
    stage.settled(&[("retried", 2), ("dead_lettered", 1)]);
    // The first time by the copy that came back, the second time by asking.
    let snapshot = stage.snapshot();
    let missing = snapshot.counter("acemq.retry.rung.missing", &[("queue", Q)]);
    assert_eq!(missing, 2);
    let returned = [("exchange", ""), ("outcome", "unroutable")];
    assert_eq!(snapshot.counter("acemq.publish.total", &returned), 1);
}

#[test]
fn full_rung_requeues_paced_until_it_takes_the_message() {
    let stage = Stage::new();
    over_the_rungs(
        &stage,
        &json!({"max-length": 1, "overflow": "reject-publish"}),
    );
    let calls = Seen::default();
    let seen = calls.clone();
    stage
        .consumer(&by_long_rung(2))
        .start(move |message: Message<u32>| {
            seen.push((*message.payload(), message.attempt(), message.redelivered()));
            Ack::retry("no stock")
        })
        .unwrap();
    wait_until(LIMIT, "the policy applies", || {
        applies_to(&stage, LONG_RUNG)
    });
    stage.send("1");
    stage.raw.wait_for_count(LONG_RUNG, 1, LIMIT);
    stage.send("2");
    calls.wait_for(2);
    let (_, took) = timed(|| calls.wait_for(4));
    // A pause of 1 s and one of 2 s, and what it takes to notice.
    assert!(took >= secs(2.5), "{took:?}");
    stage.vhost.clear_policy("ops");
    stage.raw.wait_for_count(LONG_RUNG, 2, LIMIT);
    let calls = calls.all();
    assert_eq!(calls[..2], [(1, 1, false), (2, 1, false)]);
    assert!(
        calls[2..].iter().all(|call| *call == (2, 1, true)),
        "requeued with its attempt unchanged: {calls:?}"
    );
    let handed_back = calls.len() as u64 - 2;
    stage.settled(&[("retried", 2), ("handed_back", handed_back)]);
    let nacked = [("queue", Q), ("reason", "nacked")];
    let snapshot = stage.snapshot();
    assert_eq!(
        snapshot.counter("acemq.retry.handed.back", &nacked),
        handed_back
    );
    let refused = [("exchange", ""), ("outcome", "refused")];
    assert_eq!(
        snapshot.counter("acemq.publish.total", &refused),
        handed_back
    );
}
