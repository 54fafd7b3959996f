//! How fast is rungmq beside its own foundation (amiquip by hand) and beside lapin (async)?
//!
//! ```text
//! cargo run --release -p rungmq-bench -- [--url URL] [--messages N] [--rounds N] [--only consume|retry|publish]
//!                                        [--sides ours,raw,lapin] [--json [FILE]]
//! ```
//!
//! All sides run in turn (A B C A B C …) in one process on one broker, every queue is new, and what counts is the median of
//! the rounds: only the ratios mean anything on another machine. The same bytes cross the wire on every side: 1 KiB
//! persistent messages with the headers rungmq writes, on durable classic queues, TCP_NODELAY set everywhere.
//!
//! * **consume**: a backlog is consumed by a handler that does nothing, prefetch 500, one acknowledgement a message. The clock
//!   runs from the first delivery until the channel is closed, so that the broker has seen every acknowledgement.
//! * **retry**: every message fails; a mandatory copy is published and confirmed, then the original is acknowledged. The unit
//!   is one such retry a second. amiquip and lapin copy to a second queue. Ours copies to the message's own queue, so the second
//!   deliveries are kept out of the measurement: `ours::retry` says how.
//! * **publish**: confirmed messages a second. `serial` waits for each confirm before the next publish.

mod lapin_side;
mod ours;
mod raw;
mod report;

use anyhow::{Context, Result, bail};
use report::{Measured, Target};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What every side is measured with.
pub(crate) const PREFETCH: u16 = 500;
pub(crate) const IN_FLIGHT: usize = 256;
const BODY_BYTES: usize = 1024;

type Run = fn(&Bench, &Queues, usize) -> Result<f64>;

/// One program that takes part, in one scenario.
struct Contender {
    scenario: &'static str,
    side: &'static str,
    name: &'static str,
    /// Runs with `messages / divisor`: those that wait for each message are an order of magnitude slower.
    divisor: usize,
    run: Run,
}

#[rustfmt::skip]
const CONTENDERS: &[Contender] = &[
    Contender { scenario: "consume", side: "ours",  name: "ours",                divisor: 1, run: ours::consume },
    Contender { scenario: "consume", side: "raw",   name: "amiquip",             divisor: 1, run: raw::consume },
    Contender { scenario: "consume", side: "lapin", name: "lapin",               divisor: 1, run: lapin_side::consume },
    Contender { scenario: "retry",   side: "ours",  name: "ours, 8 workers",     divisor: 1, run: ours::retry },
    Contender { scenario: "retry",   side: "raw",   name: "amiquip, 256 in flight", divisor: 1, run: raw::retry_in_flight },
    Contender { scenario: "retry",   side: "raw",   name: "amiquip, serial",     divisor: 8, run: raw::retry_serial },
    Contender { scenario: "retry",   side: "lapin", name: "lapin, 256 in flight", divisor: 1, run: lapin_side::retry },
    Contender { scenario: "publish", side: "ours",  name: "ours, 1 thread",      divisor: 8, run: ours::publish_1 },
    Contender { scenario: "publish", side: "raw",   name: "amiquip, serial",     divisor: 8, run: raw::publish_serial },
    Contender { scenario: "publish", side: "ours",  name: "ours, 16 threads",    divisor: 1, run: ours::publish_16 },
    Contender { scenario: "publish", side: "raw",   name: "amiquip, 256 in flight", divisor: 1, run: raw::publish_in_flight },
];

#[rustfmt::skip]
const TARGETS: &[Target] = &[
    Target { scenario: "consume", ours: "ours",             against: "amiquip",                at_least: 1.0 },
    Target { scenario: "consume", ours: "ours",             against: "lapin",                  at_least: 1.5 },
    Target { scenario: "retry",   ours: "ours, 8 workers",  against: "amiquip, 256 in flight", at_least: 0.7 },
    Target { scenario: "retry",   ours: "ours, 8 workers",  against: "amiquip, serial",        at_least: 3.0 },
    Target { scenario: "retry",   ours: "ours, 8 workers",  against: "lapin, 256 in flight",   at_least: 1.0 },
    Target { scenario: "publish", ours: "ours, 1 thread",   against: "amiquip, serial",        at_least: 0.9 },
    Target { scenario: "publish", ours: "ours, 16 threads", against: "amiquip, 256 in flight", at_least: 0.8 },
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
    let bench = Bench::new(&options.url);
    let mut admin = raw::Admin::open(&options.url).context(
        "cannot connect to RabbitMQ (--url or AMQP_URL, default localhost); to start one: \
         docker run --rm -p 5672:5672 rabbitmq:4",
    )?;

    let mut measured: Vec<Measured> = contenders
        .iter()
        .map(|c| Measured::new(c.scenario, c.name))
        .collect();
    for round in 0..=options.rounds {
        // Round 0 warms up: the broker's code, the page cache, lapin's threads. It is short and does not count.
        let messages = if round == 0 {
            options.messages / 4
        } else {
            options.messages
        };
        for (contender, measured) in contenders.iter().zip(&mut measured) {
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
}

/// The queues of one run. They are new for each one.
pub(crate) struct Queues {
    /// Consumed from, or published to.
    pub(crate) source: String,
    /// Where amiquip and lapin send their copies.
    pub(crate) copies: String,
}

impl Bench {
    fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            // A JSON string, so that a consumer can decode it.
            body: format!("\"{}\"", "x".repeat(BODY_BYTES - 2)),
        }
    }

    /// Makes and fills the queues, runs the contender, and deletes the queues, whatever came of it.
    fn measure(
        &self,
        admin: &mut raw::Admin,
        contender: &Contender,
        messages: usize,
    ) -> Result<f64> {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let source = format!("rungmq.bench.{}.{nanos}", std::process::id());
        let queues = Queues {
            copies: format!("{source}.copies"),
            source,
        };
        admin.declare(&queues)?;
        if contender.scenario != "publish" {
            admin.fill(&queues.source, self.body.as_bytes(), messages)?;
        }
        let rate = (contender.run)(self, &queues, messages);
        admin.delete(&queues)?;
        rate
    }
}

/// Messages a second since `start`.
pub(crate) fn per_second(messages: usize, start: Instant) -> f64 {
    messages as f64 / start.elapsed().as_secs_f64()
}

struct Options {
    url: String,
    messages: usize,
    rounds: usize,
    only: Option<String>,
    sides: Vec<String>,
    json: Option<String>,
}

impl Options {
    /// `None` after `--help`.
    fn from_args(args: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut options = Self {
            url: std::env::var("AMQP_URL")
                .unwrap_or_else(|_| "amqp://guest:guest@localhost:5672".into()),
            messages: 20_000,
            rounds: 5,
            only: None,
            sides: ["ours", "raw", "lapin"].map(String::from).into(),
            json: None,
        };
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--url" => options.url = value()?,
                "--messages" => options.messages = number(&arg, &value()?)?,
                "--rounds" => options.rounds = number(&arg, &value()?)?,
                "--only" => {
                    let only = value()?;
                    if !CONTENDERS.iter().any(|c| c.scenario == only) {
                        bail!("--only is consume, retry or publish, not {only}");
                    }
                    options.only = Some(only);
                }
                "--sides" => {
                    options.sides = value()?.split(',').map(String::from).collect();
                    if let Some(side) = options
                        .sides
                        .iter()
                        .find(|s| !CONTENDERS.iter().any(|c| c.side == **s))
                    {
                        bail!("--sides is a list of ours, raw and lapin, not {side}");
                    }
                }
                "--json" => {
                    options.json = args
                        .next_if(|next| !next.starts_with("--"))
                        .filter(|file| file != "-")
                }
                "--help" | "-h" => {
                    println!(
                        "bench [--url URL] [--messages N] [--rounds N] [--only consume|retry|publish]\n      \
                         [--sides ours,raw,lapin] [--json [FILE]]"
                    );
                    return Ok(None);
                }
                _ => bail!("unknown argument {arg}; --help lists them"),
            }
        }
        Ok(Some(options))
    }
}

fn number(option: &str, text: &str) -> Result<usize> {
    match text.parse() {
        Ok(0) | Err(_) => bail!("{option} needs a whole number of at least 1, not {text}"),
        Ok(number) => Ok(number),
    }
}
