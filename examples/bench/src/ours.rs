//! rungmq, as a service uses it.

use crate::message::{CONTENT_TYPE, KIND, ORIGIN};
use crate::{Bench, PREFETCH, per_second};
use anyhow::{Context, Result, anyhow, ensure};
use crossbeam_channel::{Receiver, bounded};
use rungmq::{Ack, Connection, Message, Publish, RetryPolicy};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// A handler that does nothing, in one worker.
pub(crate) fn consume(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    let mq = open(bench)?;
    let (done, all_done) = bounded(1);
    let start = Arc::new(OnceLock::new());
    let handled = AtomicUsize::new(0);
    let first = Arc::clone(&start);
    let consumer =
        mq.consumer(queue)
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

/// A handler that fails each message once, in eight workers. The retry has no delay.
pub(crate) fn retry(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    let mq = open(bench)?;
    let (done, all_done) = bounded(1);
    let start = Arc::new(OnceLock::new());
    let accepted = AtomicUsize::new(0);
    let first = Arc::clone(&start);
    let consumer = mq
        .consumer(queue)
        .concurrency(8)
        .prefetch(PREFETCH.into())
        .retry_policy(RetryPolicy::fixed(2, Duration::ZERO)?)
        .start(move |message: Message<String>| {
            if message.envelope().attempt() == 1 {
                first.get_or_init(Instant::now);
                return Ack::retry("the benchmark says so");
            }
            if accepted.fetch_add(1, Ordering::Relaxed) + 1 == messages {
                let _ = done.try_send(());
            }
            Ack::accept()
        })?;
    wait(&all_done)?;
    consumer.cancel(LIMIT)?;
    let rate = per_second(messages, *start.get().context("no message")?);
    mq.close()?;
    Ok(rate)
}

/// One thread, which waits for the confirm of each publish.
pub(crate) fn publish_1(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    publish(bench, queue, messages, 1)
}

/// Sixteen such threads on one connection.
pub(crate) fn publish_16(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    publish(bench, queue, messages, 16)
}

fn publish(bench: &Bench, queue: &str, messages: usize, threads: usize) -> Result<f64> {
    let mq = open_to_publish(bench)?;
    let left = AtomicUsize::new(messages);
    let is_one_left = || {
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            .is_ok()
    };
    let caller = || -> Result<()> {
        while is_one_left() {
            mq.publish_with(message(bench, queue))?;
        }
        Ok(())
    };
    let start = Instant::now();
    thread::scope(|scope| {
        let callers: Vec<_> = (0..threads).map(|_| scope.spawn(caller)).collect();
        callers
            .into_iter()
            .try_for_each(|caller| caller.join().map_err(|_| anyhow!("a caller panicked"))?)
    })?;
    let rate = per_second(messages, start);
    mq.close()?;
    Ok(rate)
}

/// All messages in one call.
pub(crate) fn publish_all(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    let mq = open_to_publish(bench)?;
    let start = Instant::now();
    for result in mq.publish_all((0..messages).map(|_| message(bench, queue))) {
        result?;
    }
    let rate = per_second(messages, start);
    mq.close()?;
    Ok(rate)
}

fn open(bench: &Bench) -> Result<Connection> {
    Ok(Connection::builder(&bench.url).origin(ORIGIN).open()?)
}

/// The first publish opens the connection that publishes; this one goes to no queue.
fn open_to_publish(bench: &Bench) -> Result<Connection> {
    let mq = open(bench)?;
    mq.publish_with(message(bench, "rungmq.bench.no-such-queue"))?;
    Ok(mq)
}

fn message(bench: &Bench, queue: &str) -> Publish {
    Publish::bytes(bench.body.as_bytes())
        .content_type(CONTENT_TYPE)
        .routing_key(queue)
        .kind(KIND)
}

fn wait(done: &Receiver<()>) -> Result<()> {
    ensure!(
        done.recv_timeout(LIMIT).is_ok(),
        "not done within {LIMIT:?}"
    );
    Ok(())
}
