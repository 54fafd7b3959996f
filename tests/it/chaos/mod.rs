//! Everything at once: a producer, consuming processes that answer in every way, and a gremlin; in the end every message that
//! was confirmed must be accounted for.
//!
//! A minute by default. `RUNGMQ_CHAOS_SECONDS` makes it longer; `RUNGMQ_CHAOS_SEED` repeats a run, as far as the seed
//! decides it: the plan of each message and the script of all trouble.

mod consumers;
mod gremlin;
mod ledger;
mod producer;
mod script;
mod work;

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rungmq::{Connection, Queue, Topology};

use crate::harness::wait::{Stopwatch, let_pass};
use crate::harness::{Node, Vhost, secs, wait_until};
use crate::observed::{number, unacknowledged};
use consumers::Consumers;
use gremlin::Gremlin;
use ledger::Ledger;
use producer::{Producer, Published};
use script::Script;

/// What RabbitMQ's log says for each message that a rung has sent home while its quorum queue had no leader.
const LEADER_UNKNOWN: &str = "leader not known. Command is dropped";
const QUEUES: [&str; 2] = ["classic", "quorum"];
const PROCESSES: usize = 3;
/// Hand-backs are paced up to a minute, and one that was delivered often waits up to five.
const SETTLES_WITHIN: Duration = Duration::from_secs(400);
/// Two consumers of 16 deliveries at most, each of which may wait in a thread, and the library's own.
const MOST_THREADS: u64 = 32 + 8 + 25;
/// Two consumers of four workers, and the library's own.
const THREADS_AT_REST: u64 = 8 + 25;

#[test]
fn no_message_is_lost_whatever_happens_to_broker_connections_queues_and_consumers() {
    let time =
        secs(from_environment("RUNGMQ_CHAOS_SECONDS").map_or(60.0, |seconds| seconds as f64));
    let seed =
        from_environment("RUNGMQ_CHAOS_SEED").unwrap_or_else(|| rand::random_range(0..1_000_000));
    println!("chaos for {time:?}: RUNGMQ_CHAOS_SEED={seed}");
    let folder = Folder::new(seed);
    let node = Node::start();
    let vhost = Vhost::named(&node, "chaos");
    declare(&vhost.url());
    let copies = copies(&vhost);
    // A quorum queue does not survive a kill within the first second of its life.
    let_pass(secs(3));
    let producer = Producer::start(&vhost.url(), seed, QUEUES);
    let consumers = Consumers::start(&folder.0, &vhost.url(), QUEUES, PROCESSES);
    let gremlin = Gremlin::new(&vhost, &consumers, copies, time);
    let mut faults = Vec::new();
    let published = thread::scope(|scope| {
        scope.spawn(|| gremlin.look_after_consumers());
        let _calm = gremlin.calm_when_dropped();
        let blows = scope.spawn(|| gremlin.blows(Script::new(seed, 1)));
        gremlin.trouble(Script::new(seed, 0));
        blows.join().unwrap();
        heal(&vhost, producer, &mut faults)
    });
    look_at_consumers(&vhost, &consumers, &mut faults);
    let raw = vhost.raw();
    let contents = |suffix: &str| {
        QUEUES
            .map(|queue| raw.drain(&format!("{queue}.{suffix}")))
            .concat()
    };
    let (dead, parked) = (contents("dlq"), contents("parked"));
    let events = gremlin.events();
    let ledger = Ledger::new(published, consumers.diary(), &dead, &parked, &events);
    let dropped = node.log().matches(LEADER_UNKNOWN).count();
    if ledger.without_leader > dropped {
        let lost = ledger.without_leader;
        faults.push(format!(
            "{lost} messages came home without a leader, but only {dropped} were dropped"
        ));
    }
    println!("chaos, seed {seed}, {time:?}:");
    for (name, count) in ledger.counts.iter().chain(&gremlin_counts(&events)) {
        println!("{count:7} {name}");
    }
    faults.extend(ledger.faults);
    if !faults.is_empty() {
        let kept = folder.keep();
        fs::write(kept.join("broker.log"), node.log()).unwrap();
        panic!(
            "chaos, seed {seed}, {time:?}; diaries and logs are in {}\nmissing: {:?}\n{}\n{} faults",
            kept.display(),
            ledger.missing,
            faults.join("\n"),
            faults.len()
        );
    }
}

/// After the last trouble everything must flow again, and every message must end. Returns what was published.
fn heal(vhost: &Vhost<'_>, producer: Producer, faults: &mut Vec<String>) -> Vec<Published> {
    let before = producer.confirmed();
    let clock = Stopwatch::start();
    if !within(secs(60), || producer.confirmed() > before + 20) {
        faults.push("publishing did not go on".to_owned());
    }
    println!("publishing goes on after {:?}", clock.elapsed());
    let (published, slowest) = producer.finish();
    println!("slowest publish: {slowest:?}");
    if slowest > secs(20) {
        faults.push(format!("a publish took {slowest:?}"));
    }
    if let Some(left) = settles(vhost) {
        faults.push(format!("not settled within {SETTLES_WITHIN:?}: {left}"));
    }
    println!("settled after {:?}", clock.elapsed());
    published
}

/// All must be there and at rest; then they are ended.
fn look_at_consumers(vhost: &Vhost<'_>, consumers: &Consumers, faults: &mut Vec<String>) {
    let raw = vhost.raw();
    for queue in QUEUES {
        let all_there = || {
            consumers.look_after();
            raw.consumers(queue) == PROCESSES as u32
        };
        if !within(secs(60), all_there) {
            let there = raw.consumers(queue);
            faults.push(format!("{queue} has {there} consumers of {PROCESSES}"));
        }
    }
    let (most, named, now) = consumers.threads();
    println!("threads: {most} at most, {now:?} at rest");
    if most > MOST_THREADS || now.iter().any(|now| *now > THREADS_AT_REST) {
        faults.push(format!(
            "threads: {most} at most ({named}), {now:?} at rest"
        ));
    }
    for index in 0..PROCESSES {
        consumers.terminate(index);
    }
    faults.extend(consumers.complaints());
}

fn declare(url: &str) {
    let mq = Connection::open(url).unwrap();
    let policy = work::policy().unwrap();
    let queue = |name| {
        Queue::new(name)
            .dead_letter()
            .retry(&policy)
            .retry_threshold(work::THRESHOLD)
    };
    Topology::new()
        .queue(queue("classic").classic())
        // RabbitMQ 4 has a limit of 20, and counts what comes back from killed consumers and lost connections.
        .queue(queue("quorum").argument("x-delivery-limit", 10_000))
        .apply(&mq)
        .unwrap();
    mq.close().unwrap();
}

/// The names of all rungs, dead-letter and parked queues.
fn copies(vhost: &Vhost<'_>) -> Vec<String> {
    let mut names = vhost.queue_names();
    names.retain(|name| name.contains('.'));
    assert_eq!(names.len(), 8, "{names:?}");
    names
}

/// Waits until no message is in the source queues, in a rung or with a consumer; or what is left when the limit is over.
fn settles(vhost: &Vhost<'_>) -> Option<String> {
    let clock = Stopwatch::start();
    let mut empty_since = Stopwatch::start();
    let mut left = String::new();
    // Counts of quorum queues lag by seconds.
    wait_until(SETTLES_WITHIN + secs(60), "settled or given up", || {
        let rows = vhost.list_queues(&["name", "messages"]);
        let in_queues = |row: &&crate::harness::Row| {
            let name = row["name"].as_str().unwrap();
            !name.ends_with(".dlq") && !name.ends_with(".parked") && number(row, "messages") > 0
        };
        let queues: Vec<_> = rows.iter().filter(in_queues).collect();
        let unacknowledged = unacknowledged(vhost);
        if !queues.is_empty() || unacknowledged > 0 {
            left = format!("{queues:?}, unacknowledged {unacknowledged}");
            empty_since = Stopwatch::start();
        } else if empty_since.elapsed() > secs(5) {
            left.clear();
            return true;
        }
        clock.elapsed() > SETTLES_WITHIN
    });
    Some(left).filter(|left| !left.is_empty())
}

/// Whether it happens in time.
fn within(limit: Duration, mut happens: impl FnMut() -> bool) -> bool {
    let clock = Stopwatch::start();
    let mut happened = false;
    wait_until(limit + secs(60), "happened or given up", || {
        happened = happens();
        happened || clock.elapsed() > limit
    });
    happened
}

fn gremlin_counts(events: &[gremlin::Event]) -> std::collections::BTreeMap<String, usize> {
    let mut counts = std::collections::BTreeMap::new();
    for event in events {
        *counts
            .entry(format!("gremlin: {}", event.what.name()))
            .or_default() += 1;
        if let gremlin::What::Deleted(queues) = event.what {
            *counts
                .entry("gremlin: queues deleted".to_owned())
                .or_default() += queues;
        }
    }
    counts
}

/// For diaries and logs; kept only when something was wrong.
struct Folder(PathBuf);

impl Folder {
    fn new(seed: u64) -> Self {
        let path = PathBuf::from(format!(
            "/tmp/rungmq-chaos-{seed}-{:08x}",
            rand::random::<u32>()
        ));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn keep(&self) -> PathBuf {
        fs::write(self.0.join("keep"), "").unwrap();
        self.0.clone()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.0.join("keep").exists() && !thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

fn from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {value}")),
    )
}

/// Milliseconds since 1970: what two processes can compare.
#[allow(
    clippy::disallowed_methods,
    reason = "the diary of another process has the time of day"
)]
fn now_millis() -> u64 {
    let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    age.as_millis().try_into().unwrap()
}
