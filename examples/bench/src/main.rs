//! Measures rungmq beside its own foundation (amiquip by hand) and beside lapin (async).
//!
//! ```text
//! cargo run --release -p rungmq-bench -- [--url URL] [--messages N] [--rounds N]
//!     [--only consume|retry|publish] [--sides ours,raw,lapin] [--json [FILE]]
//! ```
//!
//! All contenders run in turn (A B C, then C B A, …) in one process on one broker, each with a new
//! queue. The result is the median of the rounds; only the ratios mean anything on another
//! machine. The column `medians` is the ratio of the medians, to which the target applies, and `by
//! round` the median of the ratios within each round. A missed target prints `MISSED` and does not
//! fail the run.
//!
//! # Equal work
//!
//! Within a comparison every contender causes the same work on the wire and in the broker:
//!
//! * Messages have 1 KiB, are persistent, and carry the properties and headers that rungmq writes
//!   (module `message`). Each run has a durable classic queue of its own.
//! * TCP_NODELAY is set on every client's socket; RabbitMQ sets it on its side by default.
//! * After each run the queue must hold exactly what the scenario leaves: nothing after `consume`
//!   and `retry`, every message after `publish`.
//!
//! What differs belongs to the client: its threads, its connections (rungmq publishes on a second
//! one), and how it groups its frames. rungmq also decodes each body and reads the envelope; the
//! other two do not.
//!
//! **consume**: a handler that does nothing consumes a backlog, prefetch 500. Every message is
//! delivered once and acknowledged once. amiquip and lapin write one `basic.ack` for each message.
//! rungmq decides on each message separately too, but writes acknowledgements of adjacent
//! deliveries that are ready at the same time as one frame (`multiple`). The clock runs from the
//! first delivery until the channel is closed, so that the broker has seen every acknowledgement.
//!
//! **retry**: every message fails once, prefetch 500. For its first delivery, a mandatory
//! persistent copy goes to the end of the message's own queue, and the delivery is acknowledged
//! after the copy's confirm. The delivery of the copy is acknowledged. The copy has the same
//! headers on every side: the next attempt, the original exchange and the original routing key are
//! new in it. So each message costs two deliveries, one confirmed publish and two
//! acknowledgements; the unit is messages a second that have come through all of that. The clock
//! is that of `consume`. Contenders named `256 in flight` have up to 256 copies unconfirmed, which
//! is also the limit of rungmq's publisher; `serial` awaits each confirm before it takes the next
//! delivery.
//!
//! **publish**: confirmed messages a second, not mandatory, from the first publish until the last
//! confirm. Compared are contenders with the same number of messages unconfirmed: one thread that
//! calls `publish_with` beside one in flight (`serial`), 16 such threads beside 16 in flight, and
//! one call of `publish_all` beside 256 in flight. Connections and channels are open before the
//! clock starts.

mod admin;
mod lapin_side;
mod message;
mod options;
mod ours;
mod raw;
mod report;

use admin::Admin;
use anyhow::{Context, Result, ensure};
use options::Options;
use report::{Measured, Target};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::runtime::{Builder, Runtime};

/// The prefetch of every consumer.
pub(crate) const PREFETCH: u16 = 500;
/// How many publishes a contender `256 in flight` has unconfirmed: the limit of rungmq's publisher.
pub(crate) const IN_FLIGHT: usize = 256;
const BODY_BYTES: usize = 1024;

/// Runs a contender against a queue with so many messages; returns messages a second.
type Run = fn(&Bench, &str, usize) -> Result<f64>;

/// One program that takes part, in one scenario.
struct Contender {
    scenario: &'static str,
    side: &'static str,
    name: &'static str,
    /// Runs with `messages / divisor`: to await each confirm is an order of magnitude slower.
    divisor: usize,
    run: Run,
}

#[rustfmt::skip]
const CONTENDERS: &[Contender] = &[
    Contender { scenario: "consume", side: "ours",  name: "ours",                   divisor: 1, run: ours::consume },
    Contender { scenario: "consume", side: "raw",   name: "amiquip",                divisor: 1, run: raw::consume },
    Contender { scenario: "consume", side: "lapin", name: "lapin",                  divisor: 1, run: lapin_side::consume },
    Contender { scenario: "retry",   side: "ours",  name: "ours, 8 workers",        divisor: 1, run: ours::retry },
    Contender { scenario: "retry",   side: "raw",   name: "amiquip, 256 in flight", divisor: 1, run: raw::retry_256 },
    Contender { scenario: "retry",   side: "lapin", name: "lapin, 256 in flight",   divisor: 1, run: lapin_side::retry },
    Contender { scenario: "retry",   side: "raw",   name: "amiquip, serial",        divisor: 8, run: raw::retry_serial },
    Contender { scenario: "publish", side: "ours",  name: "ours, 1 thread",         divisor: 8, run: ours::publish_1 },
    Contender { scenario: "publish", side: "raw",   name: "amiquip, serial",        divisor: 8, run: raw::publish_serial },
    Contender { scenario: "publish", side: "ours",  name: "ours, 16 threads",       divisor: 1, run: ours::publish_16 },
    Contender { scenario: "publish", side: "raw",   name: "amiquip, 16 in flight",  divisor: 1, run: raw::publish_16 },
    Contender { scenario: "publish", side: "ours",  name: "ours, publish_all",      divisor: 1, run: ours::publish_all },
    Contender { scenario: "publish", side: "raw",   name: "amiquip, 256 in flight", divisor: 1, run: raw::publish_256 },
];

#[rustfmt::skip]
const TARGETS: &[Target] = &[
    Target { scenario: "consume", ours: "ours",              against: "amiquip",                at_least: 1.2 },
    Target { scenario: "consume", ours: "ours",              against: "lapin",                  at_least: 2.2 },
    Target { scenario: "retry",   ours: "ours, 8 workers",   against: "amiquip, 256 in flight", at_least: 1.1 },
    Target { scenario: "retry",   ours: "ours, 8 workers",   against: "lapin, 256 in flight",   at_least: 1.1 },
    Target { scenario: "retry",   ours: "ours, 8 workers",   against: "amiquip, serial",        at_least: 3.0 },
    Target { scenario: "publish", ours: "ours, 1 thread",    against: "amiquip, serial",        at_least: 1.0 },
    Target { scenario: "publish", ours: "ours, 16 threads",  against: "amiquip, 16 in flight",  at_least: 1.0 },
    Target { scenario: "publish", ours: "ours, publish_all", against: "amiquip, 256 in flight", at_least: 0.95 },
];

fn main() -> Result<()> {
    let Some(options) = Options::from_args(std::env::args().skip(1))? else {
        return Ok(());
    };
    let contenders: Vec<&Contender> = CONTENDERS
        .iter()
        .filter(|c| {
            options
                .only
                .as_deref()
                .is_none_or(|only| only == c.scenario)
        })
        .filter(|c| options.sides.iter().any(|side| side == c.side))
        .collect();
    let bench = Bench::new(&options.url)?;
    let mut admin = Admin::open(&options.url).context(
        "cannot connect to RabbitMQ (--url or AMQP_URL, default localhost); to start one: \
         docker run --rm -p 5672:5672 rabbitmq:4",
    )?;

    let mut measured: Vec<Measured> = contenders
        .iter()
        .map(|c| Measured::new(c.scenario, c.name))
        .collect();
    for round in 0..=options.rounds {
        // Round 0 warms up the broker, the page cache and lapin's threads; it does not count.
        let messages = if round == 0 {
            options.messages / 4
        } else {
            options.messages
        };
        let mut turns: Vec<_> = contenders.iter().zip(&mut measured).collect();
        if round % 2 == 0 {
            // Each contender slows the next one by what it leaves for the broker to finish.
            turns.reverse();
        }
        for (contender, measured) in turns {
            let rate = bench
                .measure(
                    &mut admin,
                    contender,
                    (messages / contender.divisor).max(2 * usize::from(PREFETCH)),
                )
                .with_context(|| format!("{}: {}", contender.scenario, contender.name))?;
            eprintln!(
                "round {round}  {:8} {:24} {rate:>9.0}/s",
                contender.scenario, contender.name
            );
            if round > 0 {
                measured.per_second.push(rate);
            }
        }
    }

    let ratios = report::ratios(&measured, TARGETS);
    print!("{}", report::table(&measured, &ratios));
    let json = report::json(options.messages, options.rounds, &measured, &ratios);
    match options.json {
        Some(file) => std::fs::write(&file, json + "\n").with_context(|| file.clone())?,
        None => println!("\n{json}"),
    }
    Ok(())
}

/// What all contenders share: where the broker is, and the message.
pub(crate) struct Bench {
    pub(crate) url: String,
    pub(crate) body: String,
    /// lapin's threads, which start before anything is measured.
    pub(crate) runtime: Runtime,
}

impl Bench {
    fn new(url: &str) -> Result<Self> {
        let runtime = Builder::new_multi_thread().enable_all().build();
        Ok(Self {
            url: url.to_owned(),
            // A JSON string, so that a consumer can decode it.
            body: format!("\"{}\"", "x".repeat(BODY_BYTES - 2)),
            runtime: runtime.context("tokio did not start")?,
        })
    }

    /// Runs the contender on a new queue and checks what is left in it. Always deletes the queue.
    fn measure(&self, admin: &mut Admin, contender: &Contender, messages: usize) -> Result<f64> {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let queue = format!("rungmq.bench.{}.{nanos}", std::process::id());
        let publishes = contender.scenario == "publish";
        admin.declare(&queue)?;
        if !publishes {
            admin.fill(&queue, self.body.as_bytes(), messages)?;
        }
        let rate = (contender.run)(self, &queue, messages);
        let left = admin.count(&queue);
        admin.delete(&queue)?;
        let (rate, left) = (rate?, left?);
        let expected = if publishes { messages } else { 0 };
        ensure!(
            left == expected,
            "{left} messages are left in the queue, not {expected}"
        );
        Ok(rate)
    }
}

/// Messages a second since `start`.
pub(crate) fn per_second(messages: usize, start: Instant) -> f64 {
    messages as f64 / start.elapsed().as_secs_f64()
}
