//! The library from the command line: consumes queues, answers every delivery as its options say,
//! and prints events on stdout.
//!
//! ```text
//! cargo run --example worker -- \
//!     --declare --policy exponential:5:1s:60s --answer fail-first:2 orders.new
//! ```
//!
//! The events are JSON lines (`events.rs`); `--help` lists the options (`options.rs`). SIGTERM,
//! SIGINT, `--count` and `--for` close the connection within `--close-timeout`. The exit code is 0,
//! 1 if the close failed, or 2 if the start failed.

#![allow(
    clippy::disallowed_methods,
    reason = "the simulated work takes real time, and the report has the real time of the close"
)]

mod events;
mod options;

use crossbeam_channel::{Receiver, Sender, after, bounded, never, select, tick};
use events::Event;
use options::{Answer, Options, QueueType};
use rungmq::metrics::{Observer, Registry, Subscribed};
use rungmq::{Ack, Connection, Consumer, FatalError, Message, Queue, Topology};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    env_logger::init();
    let options = match Options::from_args(std::env::args_os().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{}", options::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprintln!("worker: {problem}; --help lists the options");
            return ExitCode::from(2);
        }
    };
    let worker = match Worker::start(options) {
        Ok(worker) => worker,
        Err(error) => {
            eprintln!("worker: {}", with_causes(&*error));
            return ExitCode::from(2);
        }
    };
    worker.run()
}

/// The messages of an error and its causes, joined by `: `.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// How often the worker checks the connection's health for changes.
const HEALTH_INTERVAL: Duration = Duration::from_millis(100);

/// Prints each subscription, including those after a loss.
struct Subscriptions;

impl Observer for Subscriptions {
    fn subscribed(&self, event: &Subscribed) {
        Event::Consuming {
            queue: event.queue(),
        }
        .print();
    }
}

struct Worker {
    options: Options,
    mq: Connection,
    registry: Registry,
    stop: Receiver<()>,
}

impl Worker {
    fn start(options: Options) -> Result<Self, Box<dyn Error>> {
        let (stopper, stop) = bounded(1);
        // Registered first: from here on a signal does not end the process by itself.
        stop_on_signals(stopper.clone())?;
        let registry = Registry::new();
        let mut connection = Connection::builder(&options.url)
            .observer(registry.clone())
            .observer(Subscriptions);
        if let Some(limit) = options.confirm_timeout {
            connection = connection.confirm_timeout(limit);
        }
        let mq = connection.open()?;
        if options.declare {
            declare(&mq, &options)?;
        }
        let handled = Arc::new(AtomicU64::new(0));
        for queue in &options.queues {
            consume(&mq, queue, &options, &handled, &stopper)?;
        }
        Ok(Self {
            options,
            mq,
            registry,
            stop,
        })
    }

    /// Runs until a signal, `--count` or `--for`, then closes the connection.
    fn run(self) -> ExitCode {
        let time_is_up = self.options.run_for.map_or_else(never, after);
        let check = tick(HEALTH_INTERVAL);
        let mut last = None;
        loop {
            select! {
                recv(self.stop) -> _ => break,
                recv(time_is_up) -> _ => break,
                recv(check) -> _ => {}
            }
            let health = self.mq.health();
            let seen = Some((health.status, health.detail.clone()));
            if seen != last {
                Event::health(&health).print();
                last = seen;
            }
        }
        let start = Instant::now();
        let result = self.mq.close_within(self.options.close_timeout);
        let took_ms = start.elapsed().as_millis();
        let error = result.err();
        Event::closed(took_ms, error.as_ref(), &self.registry).print();
        ExitCode::from(u8::from(error.is_some()))
    }
}

fn stop_on_signals(stopper: Sender<()>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    thread::spawn(move || {
        for _ in signals.forever() {
            let _ = stopper.try_send(());
        }
    });
    Ok(())
}

fn declare(mq: &Connection, options: &Options) -> Result<(), rungmq::Error> {
    let mut topology = Topology::new();
    for name in &options.queues {
        let queue = Queue::new(name)
            .dead_letter()
            .retry(&options.policy)
            .retry_threshold(options.threshold);
        topology = topology.queue(match options.queue_type {
            QueueType::Quorum => queue,
            QueueType::Classic => queue.classic(),
        });
    }
    topology.apply(mq)
}

fn consume(
    mq: &Connection,
    queue: &str,
    options: &Options,
    handled: &Arc<AtomicU64>,
    stopper: &Sender<()>,
) -> Result<Consumer, rungmq::Error> {
    let mut consumer = mq
        .consumer(queue)
        .retry_policy(options.policy.clone())
        .retry_threshold(options.threshold);
    if let Some(concurrency) = options.concurrency {
        consumer = consumer.concurrency(concurrency);
    }
    if let Some(prefetch) = options.prefetch {
        consumer = consumer.prefetch(prefetch);
    }
    let simulated = Simulated {
        queue: queue.to_owned(),
        options: options.clone(),
        handled: Arc::clone(handled),
        stopper: stopper.clone(),
    };
    consumer.start(move |message: Message<Value>| simulated.handle(&message))
}

/// The handler: prints the delivery, simulates work, and answers as the options say.
struct Simulated {
    queue: String,
    options: Options,
    handled: Arc<AtomicU64>,
    stopper: Sender<()>,
}

impl Simulated {
    fn handle(&self, message: &Message<Value>) -> Result<Ack, FatalError> {
        Event::delivery(&self.queue, message).print();
        if !self.options.work.is_zero() {
            thread::sleep(self.options.work);
        }
        let (id, attempt) = (message.envelope().id(), message.envelope().attempt());
        // A panicking handler does not return, so it prints no `handled`; `--count` includes it.
        if self.options.answer != Answer::Panic {
            Event::Handled { id, attempt }.print();
        }
        let handled = self.handled.fetch_add(1, Ordering::Relaxed) + 1;
        if self.options.count.is_some_and(|count| handled >= count) {
            let _ = self.stopper.try_send(());
        }
        self.answer(attempt)
    }

    #[allow(clippy::panic, reason = "`--answer panic` asks for one")]
    fn answer(&self, attempt: u32) -> Result<Ack, FatalError> {
        let reason = self.options.reason.clone();
        Ok(match self.options.answer {
            Answer::Accept => Ack::accept(),
            Answer::FailFirst(failures) if attempt > failures => Ack::accept(),
            Answer::Retry | Answer::FailFirst(_) => Ack::retry(reason),
            Answer::Reject => Ack::reject(reason),
            Answer::Park => Ack::park(reason),
            Answer::Fatal => return Err(FatalError::new(reason)),
            Answer::Panic => panic!("{reason}"),
        })
    }
}
