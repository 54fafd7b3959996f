//! The embedded broker against a real one: whatever a program does, both of them show the same.
//!
//! A [`program`] is made at random from a seed, and [`run`] takes it through both brokers. One that shows a difference is
//! [made smaller](shrink) and printed. What RabbitMQ itself does one way or the other, depending on which of its processes is
//! faster, is found by running the program again: once both agree, nothing is wrong.
//!
//! * `RUNGMQ_DIFFERENTIAL_URLS`: virtual hosts of a real broker that belong to this test alone, separated by spaces; as many
//!   programs run at a time.
//! * `RUNGMQ_DIFFERENTIAL_SEED`: the first seed; the default is 1.
//! * `RUNGMQ_DIFFERENTIAL_PROGRAMS`: how many programs, each with the seed after that of the one before.

mod client;
mod generate;
mod peer;
mod program;
mod run;
mod seat;
mod show;
mod shrink;
mod side;

use parking_lot::Mutex;
use program::Program;
use run::{Disagreement, Real, Verdict};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How many programs are run unless the environment says otherwise.
const PROGRAMS: u64 = 150;

/// How long the real broker may take for what follows from a step.
const LIMIT: Duration = Duration::from_secs(5);

/// The same while a program is made smaller: what is too slow once is only not small enough.
const SHORT_LIMIT: Duration = Duration::from_millis(800);

/// How often a program is run that shows a difference.
const RUNS: usize = 5;

#[test]
fn the_embedded_broker_does_what_rabbitmq_does() {
    let number = |name: &str, default: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap(),
        Err(_) => default,
    };
    let first = number("RUNGMQ_DIFFERENTIAL_SEED", 1);
    let programs = number("RUNGMQ_DIFFERENTIAL_PROGRAMS", PROGRAMS);
    let tally = campaign(first, programs);
    println!("{tally:?}");
    let agreed = tally.agreed.load(Ordering::Relaxed);
    assert!(
        agreed * 2 > programs,
        "only {agreed} of {programs} programs agreed"
    );
    let failures: Vec<String> = tally.failures.into_inner();
    assert!(
        failures.is_empty(),
        "{} of {programs} programs differ:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// What came of many programs.
#[derive(Debug, Default)]
struct Tally {
    agreed: AtomicU64,
    open: AtomicU64,
    /// They agreed when they were run again, or what was left of them did.
    later: AtomicU64,
    failures: Mutex<Vec<String>>,
}

fn campaign(first: u64, programs: u64) -> Tally {
    let urls = std::env::var("RUNGMQ_DIFFERENTIAL_URLS")
        .expect("RUNGMQ_DIFFERENTIAL_URLS: a virtual host of a real broker for each thread");
    let tally = Tally::default();
    let next = AtomicU64::new(first);
    let worker = |url: &str| {
        let mut real = Real::at(url);
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + programs {
                return;
            }
            examine(&mut real, seed, &tally);
            let run = seed + 1 - first;
            if run.is_multiple_of(100) {
                println!("{run} of {programs} programs from seed {first}: {tally:?}");
            }
        }
    };
    thread::scope(|scope| {
        for (number, url) in urls.split_whitespace().enumerate() {
            let named = thread::Builder::new().name(format!("differential-{number}"));
            let worker = &worker;
            named.spawn_scoped(scope, move || worker(url)).unwrap();
        }
    });
    tally
}

fn examine(real: &mut Real, seed: u64, tally: &Tally) {
    let program = generate::program(seed);
    for run in 0..RUNS {
        match real.run(&program, LIMIT) {
            Verdict::Agreed if run == 0 => tally.agreed.fetch_add(1, Ordering::Relaxed),
            Verdict::Open if run == 0 => tally.open.fetch_add(1, Ordering::Relaxed),
            Verdict::Agreed | Verdict::Open => tally.later.fetch_add(1, Ordering::Relaxed),
            Verdict::Disagreed(disagreement) => {
                if run == 0 {
                    println!("seed {seed} differs, and is run again:\n{disagreement}");
                }
                continue;
            }
        };
        return;
    }
    let mut fails = |program: &Program| disagreement(real, program).is_some();
    let small = shrink::shrunk(program, &mut fails);
    let Some(disagreement) = disagreement(real, &small) else {
        // What differed before agrees now: it is up to chance on the real broker.
        println!("seed {seed} comes to this, which differs by chance:\n{small}");
        tally.later.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let failure = format!("seed {seed} on {}:\n{disagreement}", real.profile());
    println!("{failure}");
    tally.failures.lock().push(failure);
}

/// The difference that a program shows twice.
fn disagreement(real: &mut Real, program: &Program) -> Option<Disagreement> {
    let mut last = None;
    for _ in 0..2 {
        match real.run(program, SHORT_LIMIT) {
            Verdict::Disagreed(disagreement) => last = Some(disagreement),
            Verdict::Agreed | Verdict::Open => return None,
        }
    }
    last
}
