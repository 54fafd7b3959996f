//! rungmq, as a service would use it.

use crate::{Bench, PREFETCH, Queues, per_second};
use anyhow::{Context, Result, ensure};
use crossbeam_channel::{Receiver, bounded};
use rungmq::{Ack, Connection, Message, Publish, RetryPolicy};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// A handler that does nothing, in one worker. Unlike the other two sides, ours also decodes the body and reads the envelope.
pub(crate) fn consume(bench: &Bench, queues: &Queues, messages: usize) -> Result<f64> {
    let mq = Connection::open(&bench.url)?;
    let (done, all_done) = bounded(1);
    let start = Arc::new(OnceLock::new());
    let handled = AtomicUsize::new(0);
    let first = Arc::clone(&start);
    let consumer = mq
        .consumer(&queues.source)
        .prefetch(PREFETCH.into())
        .start(move |_: Message<String>| {
            first.get_or_init(Instant::now);
            if handled.fetch_add(1, Ordering::Relaxed) + 1 == messages {
                let _ = done.try_send(());
            }
        })?;
    wait(&all_done)?;
    consumer.cancel(LIMIT)?;
    let rate = per_second(messages, *start.get().context("no message")?);
    mq.close()?;
    Ok(rate)
}

/// Every message fails once: its copy goes to the end of its own queue, and is accepted when it comes back.
///
/// The fair unit is one retry, that is: take a delivery, publish a copy, have it confirmed, acknowledge the original. The
/// other sides stop after that, while ours would also be charged for delivering the copies again. So the clock stops when
/// the first copy arrives. The queue is first in, first out: at that moment the broker has handed out all the originals, and with
/// a prefetch of 500 at most 499 of them can be unsettled beside the copy. The rest were retried, and only they are counted:
/// the figure is a lower bound, by 2 % with 20 000 messages. The copies are then consumed off the clock, each exactly once.
pub(crate) fn retry(bench: &Bench, queues: &Queues, messages: usize) -> Result<f64> {
    let mq = Connection::open(&bench.url)?;
    let (done, all_done) = bounded(1);
    let start = Arc::new(OnceLock::new());
    let end = Arc::new(OnceLock::new());
    let accepted = AtomicUsize::new(0);
    let (first, first_copy) = (Arc::clone(&start), Arc::clone(&end));
    let consumer = mq
        .consumer(&queues.source)
        .concurrency(8)
        .prefetch(PREFETCH.into())
        .retry_policy(RetryPolicy::fixed(2, Duration::ZERO)?)
        .start(move |message: Message<String>| {
            if message.envelope().attempt() == 1 {
                first.get_or_init(Instant::now);
                return Ack::retry("the benchmark says so");
            }
            first_copy.get_or_init(Instant::now);
            if accepted.fetch_add(1, Ordering::Relaxed) + 1 == messages {
                let _ = done.try_send(());
            }
            Ack::accept()
        })?;
    wait(&all_done)?;
    consumer.cancel(LIMIT)?;
    mq.close()?;
    let start: &Instant = start.get().context("no message")?;
    let end: &Instant = end.get().context("no copy")?;
    let unsettled_at_most = usize::from(PREFETCH) - 1;
    Ok((messages - unsettled_at_most) as f64 / end.duration_since(*start).as_secs_f64())
}

/// Publishing from one thread: each call waits for its confirm.
pub(crate) fn publish_1(bench: &Bench, queues: &Queues, messages: usize) -> Result<f64> {
    publish(bench, queues, messages, 1)
}

/// Publishing from sixteen threads at once: at most sixteen messages are unconfirmed, amiquip's loop has 256.
pub(crate) fn publish_16(bench: &Bench, queues: &Queues, messages: usize) -> Result<f64> {
    publish(bench, queues, messages, 16)
}

fn publish(bench: &Bench, queues: &Queues, messages: usize, threads: usize) -> Result<f64> {
    let mq = Connection::open(&bench.url)?;
    // The second socket is opened by the first publish.
    publish_one(&mq, bench, queues)?;
    let left = AtomicUsize::new(messages);
    let failure = Mutex::new(None);
    let take = || {
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            .is_ok()
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while take() {
                    if let Err(error) = publish_one(&mq, bench, queues) {
                        *failure
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                        return;
                    }
                }
            });
        }
    });
    let rate = per_second(messages, start);
    mq.close()?;
    match failure
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
    {
        Some(error) => Err(error),
        None => Ok(rate),
    }
}

/// The body is the same bytes as on the other sides.
fn publish_one(mq: &Connection, bench: &Bench, queues: &Queues) -> Result<()> {
    let message = Publish::bytes(bench.body.clone().into_bytes())
        .routing_key(&queues.source)
        .mandatory(false);
    mq.publish_with(message)?;
    Ok(())
}

fn wait(done: &Receiver<()>) -> Result<()> {
    ensure!(
        done.recv_timeout(LIMIT).is_ok(),
        "not done within {LIMIT:?}"
    );
    Ok(())
}
