//! The consumer of the chaos run (`tests/disasters/chaos`): each message says how it wants to be
//! answered, and what was handled is written to a file before the answer is given, so that a
//! `kill -9` loses no line.
//!
//! ```text
//! chaos_consumer URL DIARY QUEUE...
//! ```
//!
//! stderr is a log. SIGTERM closes within 3 s: exit code 0, or 1 when deliveries were left behind,
//! or 2 when the start failed.

#![allow(
    clippy::disallowed_methods,
    reason = "the diary has the time of day, and slow work takes real time"
)]

use crossbeam_channel::{bounded, select, tick};
use harness::work::{self, Line, Plan, Step, UNDECODABLE, Work};
use rungmq::{Ack, CodecError, Connection, Decode, FatalError, Json, Message};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SLOW: Duration = Duration::from_millis(400);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    env_logger::Builder::new()
        .filter_module("rungmq", log::LevelFilter::Debug)
        .format(|line, record| writeln!(line, "{} {} {}", now(), record.level(), record.args()))
        .init();
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{} the start failed: {error}", now());
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let mut signals = Signals::new([SIGTERM])?;
    let mut arguments = std::env::args().skip(1);
    let (url, diary) = arguments
        .next()
        .zip(arguments.next())
        .ok_or("URL DIARY QUEUE...")?;
    let diary = Arc::new(Diary::open(&diary)?);
    let mq = Connection::builder(url)
        .heartbeat(Duration::from_secs(2))
        .connect_timeout(Duration::from_secs(3))
        .confirm_timeout(Duration::from_secs(3))
        .recovery_backoff(Duration::from_millis(200), Duration::from_secs(2))
        .retry_policy(work::policy()?)
        .retry_threshold(work::THRESHOLD)
        .open()?;
    for queue in arguments {
        let diary = Arc::clone(&diary);
        mq.consumer(queue)
            .codec(Noting(Arc::clone(&diary)))
            .concurrency(4)
            .prefetch(16)
            .start(move |message: Message<Work>| diary.handle(&message))?;
    }
    let (stop, stopped) = bounded(1);
    thread::spawn(move || {
        signals.forever().next();
        let _ = stop.send(());
    });
    let look = tick(Duration::from_millis(500));
    let mut last = String::new();
    loop {
        select! {
            recv(stopped) -> _ => break,
            recv(look) -> _ => {}
        }
        let health = mq.health().to_string();
        if health != last {
            log::info!(target: "rungmq", "health: {health}");
            last = health;
        }
    }
    let closed = mq.close_within(CLOSE_TIMEOUT);
    log::info!(target: "rungmq", "closed: {closed:?}");
    Ok(ExitCode::from(u8::from(closed.is_err())))
}

/// An append-only file; each line is one write.
struct Diary(File);

impl Diary {
    fn open(path: &str) -> std::io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(file))
    }

    fn note(&self, message: &Message<Work>, step: Step) -> std::io::Result<()> {
        self.write(&Line {
            at: now(),
            process: std::process::id(),
            n: message.payload().n,
            attempt: message.attempt(),
            redelivered: message.redelivered(),
            step,
        })
    }

    fn write(&self, line: &Line) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        (&self.0).write_all(&line)
    }

    #[allow(clippy::panic, reason = "some messages ask for one")]
    fn handle(&self, message: &Message<Work>) -> Result<Ack, Box<dyn Error + Send + Sync>> {
        self.note(message, Step::Started)?;
        let plan = message.payload().plan;
        let fails = match plan {
            Plan::Fail(failures) | Plan::Panic(failures) => message.attempt() <= failures,
            Plan::Accept | Plan::Slow | Plan::Undecodable => false,
            Plan::FailAlways | Plan::Fatal | Plan::Reject | Plan::Park => true,
        };
        if plan == Plan::Slow {
            thread::sleep(SLOW);
        }
        if !fails {
            self.note(message, Step::Accepted)?;
            return Ok(Ack::accept());
        }
        self.note(message, Step::Ended)?;
        match plan {
            Plan::Panic(_) => panic!("as planned"),
            Plan::Fatal => Err(FatalError::new("as planned").into()),
            Plan::Reject => Ok(Ack::reject("as planned")),
            Plan::Park => Ok(Ack::park("as planned")),
            _ => Ok(Ack::retry("as planned")),
        }
    }
}

/// JSON; notes what is none, which no handler sees.
struct Noting(Arc<Diary>);

impl Decode<Work> for Noting {
    fn decode(&self, body: &[u8], content_type: Option<&str>) -> Result<Work, CodecError> {
        let text = std::str::from_utf8(body).ok();
        let number = text.and_then(|text| text.strip_suffix(UNDECODABLE)?.parse().ok());
        if let Some(n) = number {
            for step in [Step::Started, Step::Ended] {
                let line = Line {
                    at: now(),
                    process: std::process::id(),
                    n,
                    attempt: 1,
                    redelivered: false,
                    step,
                };
                let noted = self.0.write(&line);
                noted.map_err(|error| CodecError::new(error.to_string()))?;
            }
        }
        Json.decode(body, content_type)
    }
}

fn now() -> u64 {
    let age = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    age.as_millis().try_into().unwrap_or(u64::MAX)
}
