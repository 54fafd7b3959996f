//! The skeleton of a service: consumers run while the main thread waits. A first signal drains
//! them, a second one ends the process immediately.
//!
//! ```text
//! cargo run --example signal -- orders.new         # then Ctrl-C, or kill -TERM
//! cargo run --example signal -- orders.new 60 5    # handlers of 60 s, a drain of 5 s: exit code 1
//! ```
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | after a signal, every started delivery was settled |
//! | 1 | after a signal, deliveries were left behind; the broker delivers them again |
//! | 2 | the service could not start |
//! | 3 | the connection gave up reconnecting |
//! | 130 | a second signal ended the drain |

#![allow(
    clippy::disallowed_methods,
    reason = "the simulated work takes real time"
)]

use crossbeam_channel::{Receiver, bounded};
use rungmq::{Connection, Message};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// Below the orchestrator's grace period: Kubernetes kills 30 s after its SIGTERM.
const DRAIN: Duration = Duration::from_secs(20);

/// The result of `close_within`.
type Closed = Result<(), rungmq::Error>;
/// Receives the channel of the close's result when a signal starts the close.
type Closing = Receiver<Receiver<Closed>>;

const USAGE: &str = "\
signal [QUEUE [WORK [DRAIN]]]    consumes until SIGINT or SIGTERM, then drains
  QUEUE   an existing queue, default orders.new
  WORK    seconds of work in each handler, default 0
  DRAIN   seconds for handlers to finish after the signal, default 20
AMQP_URL is the broker's URL, default amqp://guest:guest@localhost:5672.
Exit codes: 0 drained; 1 deliveries were left behind; 2 could not start; 3 the connection gave up
reconnecting; 130 a second signal.";

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help" || argument == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let (mq, closing) = match start() {
        Ok(started) => started,
        Err(error) => {
            eprintln!("could not start: {error}");
            return ExitCode::from(2);
        }
    };
    if let Err(error) = mq.wait() {
        eprintln!("the broker is gone: {error}");
        return ExitCode::from(3);
    }
    // Without a signal, a handler has closed the connection and has received the result.
    let closed = closing
        .try_recv()
        .ok()
        .and_then(|closed| closed.recv().ok());
    match closed {
        Some(Err(error)) => {
            eprintln!("{error}");
            ExitCode::from(1)
        }
        _ => {
            eprintln!("drained");
            ExitCode::SUCCESS
        }
    }
}

fn start() -> Result<(Connection, Closing), Box<dyn Error>> {
    let url =
        std::env::var("AMQP_URL").unwrap_or_else(|_| "amqp://guest:guest@localhost:5672".into());
    let mut arguments = std::env::args().skip(1);
    let queue = arguments.next().unwrap_or_else(|| "orders.new".into());
    let work = seconds(arguments.next(), Duration::ZERO)?;
    let drain = seconds(arguments.next(), DRAIN)?;
    // Registered before the connection opens, so that a signal during `open` is not lost.
    let signals = Signals::new([SIGINT, SIGTERM])?;
    let mq = Connection::open(&url)?;
    mq.consume(&queue, move |message: Message<Value>| {
        println!("{}: {}", message.id(), message.payload());
        thread::sleep(work);
    })?;
    let closing = close_on_signal(mq.clone(), signals, drain);
    Ok((mq, closing))
}

fn seconds(argument: Option<String>, default: Duration) -> Result<Duration, Box<dyn Error>> {
    argument.map_or(Ok(default), |text| Ok(Duration::from_secs(text.parse()?)))
}

/// The first signal closes the connection, the second one ends the process immediately.
fn close_on_signal(mq: Connection, mut signals: Signals, drain: Duration) -> Closing {
    let (begin, closing) = bounded(1);
    thread::spawn(move || {
        let mut signals = signals.forever();
        signals.next();
        eprintln!("draining for at most {drain:?}; a second signal exits immediately");
        let (result, closed) = bounded(1);
        // The send fails if `wait` has returned already, with the receiver dropped.
        let _ = begin.send(closed);
        // `close_within` blocks, and this thread waits for the second signal.
        thread::spawn(move || result.send(mq.close_within(drain)));
        signals.next();
        std::process::exit(130);
    });
    closing
}
