//! A queue with a retry policy, a handler that fails in every way, and a table of where each order
//! ended.
//!
//! Without `AMQP_URL` the program runs on the embedded broker and advances its clock. With it, the
//! program runs on RabbitMQ in real time:
//!
//! ```text
//! AMQP_URL=amqp://guest:guest@localhost:5672 cargo run --example orders
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "the output shows the time of each attempt"
)]

use anyhow::{Context, Result};
use rungmq::testing::{MemoryBroker, TestClock};
use rungmq::{
    Ack, Connection, ExchangeKind, FatalError, Message, Publish, Queue, RetryPolicy, Topology,
    naming,
};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

#[derive(Serialize, Deserialize)]
struct Order {
    item: String,
    /// The number of attempts that fail before the warehouse accepts the order.
    failures: u32,
}

fn main() -> Result<()> {
    let clock = TestClock::new();
    let embedded = MemoryBroker::with_clock(&clock);
    let (began, test_clock) = (Instant::now(), clock.clone());
    let rabbitmq = std::env::var("AMQP_URL").ok().filter(|url| !url.is_empty());
    let on_rabbitmq = rabbitmq.is_some();
    if !on_rabbitmq {
        say("On the embedded broker, with its test clock. Set AMQP_URL to run on RabbitMQ.\n");
    }
    let mq = Connection::open(rabbitmq.unwrap_or_else(|| embedded.url())).context(
        "cannot connect to AMQP_URL; to start RabbitMQ: docker run --rm -p 5672:5672 rabbitmq:4",
    )?;

    // Four attempts. The delays of 0.5 s and 1 s are spent in the consumer. The delay of 2 s
    // reaches the threshold, so it is spent in a rung, a retry queue on the broker.
    let policy = RetryPolicy::exponential(4, Duration::from_millis(500), Duration::from_secs(2))?;
    let threshold = Duration::from_secs(2);
    Topology::new()
        .exchange("orders-events", ExchangeKind::Topic)
        .queue(
            Queue::new("orders.new")
                .dead_letter()
                .retry(&policy)
                .retry_threshold(threshold),
        )
        .bind("orders.new", "orders-events", "order.#")
        .apply(&mq)?;

    let (shipped, ends) = crossbeam_channel::unbounded();
    let consumer = mq
        .consumer("orders.new")
        .retry_policy(policy)
        .retry_threshold(threshold)
        .start(move |message: Message<Order>| {
            let (order, attempt) = (message.payload(), message.envelope().attempt());
            let rung = message.exchange() == naming::RETRY_EXCHANGE;
            let from = if rung { ", back from its rung" } else { "" };
            let passed = if on_rabbitmq {
                began.elapsed()
            } else {
                test_clock.elapsed()
            };
            let seconds = passed.as_secs_f64();
            say(format_args!(
                "{seconds:4.1} s, attempt {attempt}: {}{from}",
                order.item
            ));
            reserve(order, attempt)?; // An error is a retry, a FatalError a dead letter.
            let end = format!("shipped on attempt {attempt}");
            let _ = shipped.send((message.id().to_owned(), order.item.clone(), end));
            Ok::<_, anyhow::Error>(Ack::accept())
        })?;

    // The ids of this run's orders: an interrupted run may have left messages in the queues.
    let mut open = HashSet::new();
    for (item, failures) in [("apples", 0), ("pears", 2), ("quinces", 3), ("unicorns", 0)] {
        let envelope = mq.publish(
            "orders-events",
            "order.placed",
            &Order {
                item: item.into(),
                failures,
            },
        )?;
        open.insert(envelope.id().to_owned());
    }
    // This body does not decode to an order: the message is parked and the handler does not run.
    let note = Publish::bytes("two melons, please").content_type("application/json");
    let envelope = mq.publish_with(note.exchange("orders-events").routing_key("order.placed"))?;
    open.insert(envelope.id().to_owned());

    if !on_rabbitmq {
        clock.advance_until_idle();
    }
    // Apples, pears and quinces are shipped.
    let mut table = Vec::new();
    while table.len() < 3 {
        let (id, order, end) = ends
            .recv_timeout(Duration::from_secs(20))
            .context("an order is missing")?;
        if open.remove(&id) {
            table.push((order, end));
        }
    }
    consumer.cancel(Duration::from_secs(5))?;
    for queue in [
        naming::dead_letter_queue("orders.new"),
        naming::parked_queue("orders.new"),
    ] {
        while let Some(message) = mq.pull(&queue)? {
            let reason = message.envelope().error().unwrap_or("no reason");
            let body = String::from_utf8_lossy(message.payload()).into_owned();
            if open.remove(message.id()) {
                table.push((body, format!("{queue}: {reason}")));
            }
        }
    }
    say("");
    for (order, end) in table {
        say(format_args!("{order:36} {end}"));
    }
    Ok(mq.close()?)
}

/// Prints a line, ignoring errors: `println!` panics on a closed pipe, as with `| head`.
fn say(line: impl fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn reserve(order: &Order, attempt: u32) -> Result<()> {
    if order.item == "unicorns" {
        return Err(FatalError::new("there are no unicorns").into());
    }
    anyhow::ensure!(attempt > order.failures, "the warehouse is closed");
    Ok(())
}
