//! The main job in one file: a queue with a retry policy, a handler that fails in every way, and where each order ended.
//!
//! ```text
//! AMQP_URL=amqp://guest:guest@localhost:5672 cargo run --example orders
//! ```

use anyhow::{Context, Result};
use rungmq::{
    Ack, Connection, ExchangeKind, FatalError, Message, Publish, Queue, RetryPolicy, Topology,
    naming,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Order {
    item: String,
    /// How many times the warehouse is closed before it takes this order.
    failures: u32,
}

fn main() -> Result<()> {
    let url =
        std::env::var("AMQP_URL").unwrap_or_else(|_| "amqp://guest:guest@localhost:5672".into());
    let mq = Connection::open(&url).context(
        "no broker; start one with `docker run --rm -p 5672:5672 rabbitmq:4`, or set AMQP_URL",
    )?;

    // Four attempts. The waits of 0.5 s and 1 s are spent in the consumer; the one of 2 s reaches the threshold: a rung.
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
            println!("attempt {attempt}: {}{from}", order.item);
            reserve(order, attempt)?; // An error is a retry; a FatalError goes to the dead-letter queue.
            let _ = shipped.send((order.item.clone(), format!("shipped on attempt {attempt}")));
            Ok::<_, anyhow::Error>(Ack::accept())
        })?;

    for (item, failures) in [("apples", 0), ("pears", 2), ("quinces", 3), ("unicorns", 0)] {
        mq.publish(
            "orders-events",
            "order.placed",
            &Order {
                item: item.into(),
                failures,
            },
        )?;
    }
    // Not an order at all: the handler never sees it.
    let note = Publish::bytes("two melons, please").content_type("application/json");
    mq.publish_with(note.exchange("orders-events").routing_key("order.placed"))?;

    // Apples, pears and quinces are shipped in the end.
    let mut table = Vec::new();
    while table.len() < 3 {
        table.push(
            ends.recv_timeout(Duration::from_secs(20))
                .context("an order is missing")?,
        );
    }
    consumer.cancel(Duration::from_secs(5))?;
    for queue in [
        naming::dead_letter_queue("orders.new"),
        naming::parked_queue("orders.new"),
    ] {
        while let Some(message) = mq.pull(&queue)? {
            let reason = message.envelope().error().unwrap_or("no reason");
            let body = String::from_utf8_lossy(message.payload()).into_owned();
            table.push((body, format!("{queue}: {reason}")));
        }
    }
    println!();
    for (order, end) in table {
        println!("{order:36} {end}");
    }
    Ok(mq.close()?)
}

fn reserve(order: &Order, attempt: u32) -> Result<()> {
    if order.item == "unicorns" {
        return Err(FatalError::new("there are no unicorns").into());
    }
    anyhow::ensure!(attempt > order.failures, "the warehouse is closed");
    Ok(())
}
