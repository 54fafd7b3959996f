//! Tests of each way a handler can end, and of where its message is afterwards.

use std::io;
use std::panic::panic_any;
use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use rungmq::{Ack, ConsumerBuilder, FatalError, Message, naming};
use serde_json::Value;

use super::{LIMIT, Seen, Stage, soon};
use crate::harness::{logs, wait_until};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
#[error("the warehouse could not reserve it")]
struct ReserveError(#[source] FatalError);

#[derive(Debug, thiserror::Error)]
enum StockError {
    #[error("no stock")]
    Empty(#[from] io::Error),
    #[error(transparent)]
    Fatal(#[from] FatalError),
}

/// A queue of the given name with one message in it, and its consumer: three attempts, 20 ms apart.
fn of<'s>(stage: &'s Stage, queue: &str) -> ConsumerBuilder<'s> {
    stage.raw.quorum(queue);
    stage
        .raw
        .send(queue, "1", amiquip::AmqpProperties::default());
    stage.mq.consumer(queue).retry_policy(soon(3))
}

#[test]
fn a_message_is_accepted_by_every_answer_that_says_so() {
    let stage = Stage::bare();
    of(&stage, "unit").start(|_: Message<Value>| {}).unwrap();
    of(&stage, "ack")
        .start(|_: Message<Value>| Ack::accept())
        .unwrap();
    of(&stage, "ok-unit")
        .start(|_: Message<Value>| Ok::<_, BoxError>(()))
        .unwrap();
    of(&stage, "ok-ack")
        .start(|_: Message<Value>| Ok::<_, anyhow::Error>(Ack::accept()))
        .unwrap();
    of(&stage, "ok-string-error")
        .start(|_: Message<Value>| Ok::<_, String>(()))
        .unwrap();
    for queue in ["unit", "ack", "ok-unit", "ok-ack", "ok-string-error"] {
        stage.settled_in(queue, &[("acked", 1)]);
        for aside in [
            naming::dead_letter_queue(queue),
            naming::parked_queue(queue),
        ] {
            assert_eq!(stage.raw.count(&aside), 0, "{aside}");
        }
    }
}

/// Checks that the message is in `{queue}.dlq`, after three attempts or after the first.
#[track_caller]
fn assert_dead(stage: &Stage, queue: &str, attempt: i64, reason: &str) {
    let dead = stage
        .raw
        .wait_for_get(&naming::dead_letter_queue(queue), LIMIT);
    assert_eq!(dead.header_text("x-acemq-error"), Some(reason), "{queue}");
    assert_eq!(
        dead.header_number("x-acemq-attempt"),
        Some(attempt),
        "{queue}"
    );
    assert_eq!(dead.text(), "1");
    assert_eq!(stage.raw.count(&naming::parked_queue(queue)), 0, "{queue}");
}

#[test]
fn an_error_is_a_retry_and_its_message_ends_in_the_dead_letter() {
    let stage = Stage::bare();
    let no_stock = || io::Error::other("the shelf is bare");
    of(&stage, "ack-text")
        .start(|_: Message<Value>| Ack::retry("no stock"))
        .unwrap();
    of(&stage, "ack-error")
        .start(move |_: Message<Value>| Ack::retry(no_stock()))
        .unwrap();
    of(&stage, "nothing")
        .start(|_: Message<Value>| Ack::retry(""))
        .unwrap();
    of(&stage, "string")
        .start(|_: Message<Value>| Err::<(), _>("no stock".to_owned()))
        .unwrap();
    of(&stage, "boxed")
        .start(move |_: Message<Value>| Err::<Ack, BoxError>(no_stock().into()))
        .unwrap();
    of(&stage, "anyhow")
        .start(move |_: Message<Value>| Err::<(), _>(anyhow::Error::new(no_stock())))
        .unwrap();
    of(&stage, "anyhow-context")
        .start(move |_: Message<Value>| {
            Err::<(), _>(no_stock())
                .context("reserving apples")
                .context("order 7")
        })
        .unwrap();
    of(&stage, "thiserror")
        .start(move |_: Message<Value>| Err::<(), StockError>(no_stock().into()))
        .unwrap();
    of(&stage, "ok-retry")
        .start(|_: Message<Value>| Ok::<_, anyhow::Error>(Ack::retry("not yet")))
        .unwrap();
    for (queue, described) in [
        ("ack-text", "no stock"),
        ("ack-error", "the shelf is bare"),
        ("nothing", "no reason given"),
        ("string", "no stock"),
        ("boxed", "the shelf is bare"),
        ("anyhow", "the shelf is bare"),
        (
            "anyhow-context",
            "order 7: reserving apples: the shelf is bare",
        ),
        ("thiserror", "no stock: the shelf is bare"),
        ("ok-retry", "not yet"),
    ] {
        let reason = format!("gave up after 3 attempts: {described}");
        assert_dead(&stage, queue, 3, &reason);
        stage.settled_in(queue, &[("retried", 2), ("dead_lettered", 1)]);
    }
}

#[test]
fn a_fatal_error_spends_no_attempt_however_it_was_said() {
    let stage = Stage::bare();
    let fatal = || FatalError::new("there are no unicorns");
    of(&stage, "bare")
        .start(move |_: Message<Value>| Err::<(), _>(fatal()))
        .unwrap();
    of(&stage, "boxed")
        .start(move |_: Message<Value>| Err::<(), BoxError>(fatal().into()))
        .unwrap();
    of(&stage, "anyhow")
        .start(move |_: Message<Value>| Err::<(), _>(anyhow::Error::new(fatal())))
        .unwrap();
    of(&stage, "anyhow-context")
        .start(move |_: Message<Value>| {
            Err::<(), _>(fatal())
                .context("reserving")
                .context("order 7")
        })
        .unwrap();
    of(&stage, "thiserror-source")
        .start(move |_: Message<Value>| Err::<(), _>(ReserveError(fatal())))
        .unwrap();
    of(&stage, "thiserror-transparent")
        .start(move |_: Message<Value>| Err::<(), _>(StockError::from(fatal())))
        .unwrap();
    of(&stage, "ack-retry")
        .start(move |_: Message<Value>| Ack::retry(fatal()))
        .unwrap();
    of(&stage, "caused")
        .start(|_: Message<Value>| {
            Err::<(), _>(FatalError::caused_by(
                "the quantity is no number",
                io::Error::other("invalid digit"),
            ))
        })
        .unwrap();
    let plain = "FatalError: there are no unicorns";
    for (queue, described) in [
        ("bare", plain.to_owned()),
        ("boxed", plain.to_owned()),
        ("anyhow", plain.to_owned()),
        ("anyhow-context", format!("order 7: reserving: {plain}")),
        (
            "thiserror-source",
            format!("the warehouse could not reserve it: {plain}"),
        ),
        ("thiserror-transparent", plain.to_owned()),
        ("ack-retry", plain.to_owned()),
        (
            "caused",
            "FatalError: the quantity is no number: invalid digit".to_owned(),
        ),
    ] {
        assert_dead(
            &stage,
            queue,
            1,
            &format!("retrying cannot help: {described}"),
        );
        stage.settled_in(queue, &[("dead_lettered", 1)]);
    }
}

#[test]
fn a_rejected_message_is_a_dead_letter_at_once() {
    let stage = Stage::bare();
    of(&stage, "text")
        .start(|_: Message<Value>| Ack::reject("no such product"))
        .unwrap();
    of(&stage, "nothing")
        .start(|_: Message<Value>| Ack::reject(""))
        .unwrap();
    // It ends the message anyway, so that the outcome stays what the handler said.
    of(&stage, "fatal")
        .start(|_: Message<Value>| Ok::<_, BoxError>(Ack::reject(FatalError::new("never"))))
        .unwrap();
    for (queue, described) in [
        ("text", "no such product"),
        ("nothing", "no reason given"),
        ("fatal", "FatalError: never"),
    ] {
        assert_dead(
            &stage,
            queue,
            1,
            &format!("rejected by the handler: {described}"),
        );
        stage.settled_in(queue, &[("rejected", 1)]);
    }
}

#[test]
fn a_parked_message_waits_for_a_person() {
    let stage = Stage::bare();
    of(&stage, "text")
        .start(|_: Message<Value>| Ack::park("who is this?"))
        .unwrap();
    of(&stage, "error")
        .start(|_: Message<Value>| Ack::park(anyhow::anyhow!("bare").context("odd")))
        .unwrap();
    of(&stage, "fatal")
        .start(|_: Message<Value>| Ack::park(FatalError::new("never")))
        .unwrap();
    for (queue, described) in [
        ("text", "who is this?"),
        ("error", "odd: bare"),
        ("fatal", "FatalError: never"),
    ] {
        let parked = stage.raw.wait_for_get(&naming::parked_queue(queue), LIMIT);
        let reason = format!("parked by the handler: {described}");
        assert_eq!(parked.header_text("x-acemq-error"), Some(reason.as_str()));
        assert_eq!(parked.header_number("x-acemq-attempt"), Some(1));
        stage.settled_in(queue, &[("parked", 1)]);
        assert_eq!(stage.raw.count(&naming::dead_letter_queue(queue)), 0);
    }
}

#[test]
fn each_message_set_aside_has_one_debug_line_without_its_body() {
    logs::capture();
    let stage = Stage::bare();
    let send = |queue: &str, id: &str, body: &str| {
        stage.raw.quorum(queue);
        let properties = amiquip::AmqpProperties::default().with_message_id(id.to_owned());
        stage.raw.send(queue, body, properties);
    };
    let consume = |queue: &str| {
        let consumer = stage.mq.consumer(queue).retry_policy(soon(1));
        consumer
            .start(|_: Message<u32>| Ack::retry("no\nstock"))
            .unwrap();
    };
    send("logged-dead", "debug-line-dead", "1");
    consume("logged-dead");
    stage.settled_in("logged-dead", &[("dead_lettered", 1)]);
    send("logged-parked", "debug-line-parked", "\"quoted-body\"");
    consume("logged-parked");
    stage.settled_in("logged-parked", &[("parked", 1)]);
    for (id, line) in [
        (
            "debug-line-dead",
            r"logged-dead: debug-line-dead was dead-lettered: gave up after 1 attempts: no\nstock",
        ),
        (
            "debug-line-parked",
            "logged-parked: debug-line-parked was parked: could not be decoded",
        ),
    ] {
        let lines = || {
            let mut lines = logs::captured_with(log::Level::Debug, id);
            lines.retain(|line| line.starts_with("DEBUG rungmq"));
            lines
        };
        wait_until(LIMIT, "it is logged", || !lines().is_empty());
        let lines = lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].ends_with(line), "{lines:?}");
    }
}

#[test]
fn a_panic_is_a_retry_with_its_text() {
    let stage = Stage::bare();
    of(&stage, "str")
        .start(|_: Message<Value>| -> Ack { panic!("out of cheese") })
        .unwrap();
    of(&stage, "string")
        .start(|message: Message<Value>| -> Ack { panic!("attempt {} failed", message.attempt()) })
        .unwrap();
    of(&stage, "payload")
        .start(|_: Message<Value>| -> Ack { panic_any(7_u8) })
        .unwrap();
    // The lock is parking_lot's, which knows no poisoning: the next attempt gets it.
    let (lock, held) = (Arc::new(Mutex::new(0)), Seen::default());
    let (lock_in, held_in) = (lock.clone(), held.clone());
    of(&stage, "guard")
        .start(move |_: Message<Value>| -> Ack {
            let mut guard = lock_in.lock();
            *guard += 1;
            held_in.push(*guard);
            panic!("with the lock held")
        })
        .unwrap();
    for (queue, text) in [
        ("str", "panicked: out of cheese"),
        ("string", "panicked: attempt 3 failed"),
        ("payload", "panicked: with a non-string payload"),
        ("guard", "panicked: with the lock held"),
    ] {
        assert_dead(
            &stage,
            queue,
            3,
            &format!("gave up after 3 attempts: {text}"),
        );
        stage.settled_in(queue, &[("retried", 2), ("dead_lettered", 1)]);
    }
    assert_eq!(held.all(), [1, 2, 3]);
    assert_eq!(*lock.lock(), 3);
}

/// Its `Display` is the user's code as well.
#[derive(Debug)]
struct PanicsWhenShown;

impl std::fmt::Display for PanicsWhenShown {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("no words for this")
    }
}

impl std::error::Error for PanicsWhenShown {}

/// Panics again when it is dropped.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[test]
fn errors_and_payloads_that_panic_themselves_cost_no_delivery() {
    let stage = Stage::bare();
    of(&stage, "shown")
        .start(|_: Message<Value>| Err::<(), _>(PanicsWhenShown))
        .unwrap();
    of(&stage, "dropped")
        .start(|_: Message<Value>| -> Ack { panic_any(PanicsWhenDropped) })
        .unwrap();
    for (queue, text) in [
        ("shown", "reason could not be shown"),
        ("dropped", "panicked: with a non-string payload"),
    ] {
        assert_dead(
            &stage,
            queue,
            3,
            &format!("gave up after 3 attempts: {text}"),
        );
        stage.settled_in(queue, &[("retried", 2), ("dead_lettered", 1)]);
        // The worker is alive: it takes the next one.
        stage
            .raw
            .send(queue, "2", amiquip::AmqpProperties::default());
        stage.settled_in(queue, &[("retried", 4), ("dead_lettered", 2)]);
    }
}
