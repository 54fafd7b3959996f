//! Tests of copies that do not land, many of them or for long: each message is accounted for.

use amiquip::AmqpValue;
use rungmq::{Ack, Message, RetryPolicy};
use serde_json::json;

use super::{id, send, told};
use crate::harness::observed::{SOON, diary, wait_until_empty};
use crate::harness::wait::let_pass;
use crate::harness::{Vhost, secs, table, wait_until};

#[test]
fn missing_rung_makes_only_its_own_of_400_retries_wait() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let (service, story) = told(&vhost.url());
    // One second after the first attempt, two after the second and third.
    let policy = RetryPolicy::exponential(4, secs(1), secs(2)).unwrap();
    service.declare(&policy);
    for n in 0..400_u64 {
        send(&raw, "q", n, if n % 2 == 0 { 1 } else { 2 });
    }
    let (diary, read) = diary();
    let (release, gate) = crossbeam_channel::bounded::<()>(0);
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        let _ = gate.recv();
        if u64::from(message.attempt()) == 1 + message.payload() % 2 {
            Err("at first")
        } else {
            Ok(())
        }
    };
    let consumer = service.mq.consumer("q").retry_policy(policy);
    let consumer = consumer
        .prefetch(400)
        .concurrency(400)
        .start(handle)
        .unwrap();
    wait_until(SOON, "all of them run", || consumer.in_flight() == 400);
    // It is empty, and remembered as standing.
    raw.delete_queue("q.retry.2s");
    drop(release);
    service.wait_for_consumed("retried", 400);
    service.wait_for_consumed("acked", 400);
    for n in 0..400 {
        let seen = read.of(n);
        let first = 1 + u32::from(n % 2 == 1);
        let attempts: Vec<_> = seen.iter().map(|seen| seen.attempt).collect();
        assert_eq!(attempts, [first, first + 1], "{n}");
        assert_eq!(seen[1].id, id(n));
        // One came home by its rung, the other straight from the consumer.
        let by = if n % 2 == 0 { "acemq.retry" } else { "" };
        assert_eq!(seen[1].exchange, by, "{n}");
        let waited = seen[1].at - seen[0].at;
        assert!(
            waited >= secs(if n % 2 == 0 { 0.9 } else { 1.5 }),
            "{n}: {waited:?}"
        );
    }
    assert_eq!(
        service.counter("acemq.retry.rung.missing", &[("queue", "q")]),
        200
    );
    for reason in ["unroutable", "nacked", "timeout", "lost"] {
        assert_eq!(service.handed_back(reason), 0, "{reason}");
    }
    wait_until(SOON, "nothing is in flight", || consumer.in_flight() == 0);
    wait_until_empty(&vhost, "q");
    assert_eq!(raw.count("q.retry.1s") + raw.count("q.dlq"), 0);
    assert_eq!(story.subscriptions().len(), 1);
}

#[test]
fn delivery_limit_of_5_outlasts_10_s_of_refused_copies() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let (service, story) = told(&vhost.url());
    // What exceeds the limit is gone for good: nothing dead-letters it.
    let queue = ("x-queue-type", AmqpValue::LongString("quorum".to_owned()));
    let limit = ("x-delivery-limit", AmqpValue::LongInt(5));
    raw.queue("q", table([queue, limit]));
    let (diary, read) = diary();
    let handle = move |message: Message<u64>| {
        diary.note(&message);
        Ack::reject("never")
    };
    service.mq.consume("q", handle).unwrap();
    let refusing = json!({"max-length": 0, "overflow": "reject-publish"});
    vhost.set_policy("refuse", "^q\\.dlq$", &refusing);
    send(&raw, "q", 1, 1);
    read.next();
    let_pass(secs(10));
    let ran = read.of(1).len();
    assert!((2..=5).contains(&ran), "{ran}");
    vhost.clear_policy("refuse");
    service.wait_for_consumed("rejected", 1);
    let got = raw.wait_for_get("q.dlq", SOON);
    assert_eq!(got.message_id(), Some(id(1).as_str()));
    assert_eq!(got.header_number("x-acemq-attempt"), Some(1));
    assert!(read.of(1).len() <= 6, "{:?}", read.of(1));
    wait_until_empty(&vhost, "q");
    assert_eq!(story.subscriptions().len(), 1);
}
