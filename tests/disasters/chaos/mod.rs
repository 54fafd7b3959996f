//! The chaos run: a producer, consuming processes that answer in every way, and a gremlin; in the
//! end every message that was confirmed must be accounted for.
//!
//! About a minute by default, the healing included, and always of one seed. `RUNGMQ_CHAOS_SECONDS`
//! makes it longer, of a seed of its own; `RUNGMQ_CHAOS_SEED` repeats a run, as far as the seed
//! decides it: the plan of each message and the script of all trouble.

mod consumers;
mod drops;
mod gremlin;
mod ledger;
mod ledger_selftest;
mod losses;
mod producer;
mod queues;
mod script;
mod story;
mod times;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::wait::{Stopwatch, let_pass};
use crate::harness::{Node, Vhost, secs, wait_until};
use consumers::Consumers;
use gremlin::{Event, Gremlin, What};
use ledger::{Ledger, Seen};
use losses::Lost;
use producer::{Producer, Published};
use queues::{Queues, SOURCES};
use script::Script;

/// What RabbitMQ's log says for each message that a rung has sent home while its quorum queue had
/// no leader.
const LEADER_UNKNOWN: &str = "leader not known. Command is dropped";
/// As part of the suite.
const SECONDS: u64 = 45;
const SEED: u64 = 1;
const PROCESSES: usize = 3;
/// Hand-backs are paced up to a minute, and one that was delivered often waits up to five.
const SETTLES_WITHIN: Duration = Duration::from_secs(400);
/// Two consumers of 16 deliveries at most, each of which may wait in a thread, and the library's
/// own.
const MOST_THREADS: u64 = 32 + 8 + 25;
/// Two consumers of four workers, and the library's own.
const THREADS_AT_REST: u64 = 8 + 25;

#[test]
fn no_message_is_lost_in_chaos() {
    let seconds = from_environment("RUNGMQ_CHAOS_SECONDS");
    let seed = from_environment("RUNGMQ_CHAOS_SEED").unwrap_or_else(|| match seconds {
        Some(_) => rand::random_range(0..1_000_000),
        None => SEED,
    });
    let seconds = seconds.unwrap_or(SECONDS);
    let folder = Folder::new(seed);
    let node = Node::start();
    let run = format!(
        "chaos on RabbitMQ {}, RUNGMQ_CHAOS_SEED={seed} RUNGMQ_CHAOS_SECONDS={seconds}",
        node.version()
    );
    tell(&run);
    let vhost = Vhost::named(&node, "chaos");
    let queues = Queues::declare(&vhost);
    // A quorum queue whose node is killed within the first second of its life never has a leader
    // again.
    let_pass(secs(3));
    let consumers = Consumers::start(&folder.0, &vhost.url(), SOURCES, PROCESSES);
    let producer = Producer::start(&vhost.url(), seed, SOURCES);
    let gremlin = Gremlin::new(&vhost, &queues, &consumers, secs(seconds as f64));
    let mut faults = Vec::new();
    let published = thread::scope(|scope| {
        scope.spawn(|| gremlin.look_after_consumers());
        let _calm = gremlin.calm_when_dropped();
        let blows = scope.spawn(|| gremlin.blows(Script::new(seed, 1)));
        gremlin.trouble(Script::new(seed, 0));
        blows.join().unwrap();
        heal(&queues, producer, &mut faults)
    });
    look_at_consumers(&vhost, &consumers, &mut faults);
    queues.clear_out();
    let events = gremlin.events();
    let (dead, parked) = queues.cleared_out();
    let ledger = Ledger::new(Seen {
        published,
        diary: consumers.diary(),
        dead: &dead,
        parked: &parked,
        events: &events,
        dropped: dropped(&node, &events, &mut faults),
    });
    for line in lines(&ledger, &events) {
        println!("{line}");
    }
    tell(&format!("{run}: {}", summary(&ledger)));
    faults.extend(ledger.faults);
    if !faults.is_empty() {
        let kept = folder.keep();
        fs::write(kept.join("broker.log"), node.log()).unwrap();
        panic!(
            "{run}; diaries and logs are in {}\nmissing: {:?}\n{}\n{} faults",
            kept.display(),
            ledger.missing,
            faults.join("\n"),
            faults.len()
        );
    }
}

/// After the last trouble everything must flow again, and every message must end. Returns what was
/// published.
fn heal(queues: &Queues<'_>, producer: Producer, faults: &mut Vec<String>) -> Vec<Published> {
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
    if let Some(left) = queues.settle(SETTLES_WITHIN) {
        faults.push(format!("not settled within {SETTLES_WITHIN:?}: {left}"));
    }
    println!("settled after {:?}", clock.elapsed());
    published
}

/// For each kill: how many messages the quorum queue has dropped at the start after it.
fn dropped(node: &Node, events: &[Event], faults: &mut Vec<String>) -> Vec<usize> {
    let log = node.log();
    // Before and after the first start of all there was no kill.
    let starts = log.split("Starting RabbitMQ").skip(2);
    let dropped: Vec<_> = starts
        .map(|start| start.matches(LEADER_UNKNOWN).count())
        .collect();
    let kills = events
        .iter()
        .filter(|event| event.what == What::BrokerKilled);
    let kills = kills.count();
    if dropped.len() != kills {
        let starts = dropped.len();
        faults.push(format!(
            "{kills} kills, but {starts} more starts in the log"
        ));
    }
    dropped
}

/// All must be there and at rest; then they are ended.
fn look_at_consumers(vhost: &Vhost<'_>, consumers: &Consumers, faults: &mut Vec<String>) {
    let raw = vhost.raw();
    for queue in SOURCES {
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

/// What the run came to, one count a line.
fn lines(ledger: &Ledger, events: &[Event]) -> Vec<String> {
    let mut done = BTreeMap::new();
    for event in events {
        *done.entry(event.what.name()).or_insert(0) += 1;
        if let What::Deleted(queues) = &event.what {
            *done.entry("empty queues deleted, each").or_insert(0) += queues.len();
        }
    }
    let done = done
        .iter()
        .map(|(name, n)| format!("{n:7} gremlin: {name}"));
    let counts = ledger.counts.iter();
    let counts = counts.map(|(name, n)| format!("{n:7} {name}"));
    let again = ledger.delivered_again.iter();
    let again = again.map(|(cause, n)| format!("{n:7} delivered again: {cause}"));
    let lost = Lost::ALL.map(|lost| format!("{:7} {}", ledger.lost_to(lost), lost.name()));
    done.chain(counts).chain(again).chain(lost).collect()
}

/// Also when the test harness captures what passing tests print: a run that cannot be repeated is
/// worth little.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn summary(ledger: &Ledger) -> String {
    let again: usize = ledger.delivered_again.values().sum();
    let [without_leader, unwritten, with_queue] = Lost::ALL.map(|lost| ledger.lost_to(lost));
    format!(
        "{} confirmed, {} accepted, {} dead, {} parked, {again} delivered again, lost by the broker \
         {without_leader} (no leader) + {unwritten} (unwritten) + {with_queue} (with its queue), {} missing, {} faults",
        ledger.count_of("published: confirmed"),
        ledger.count_of("ended: accepted"),
        ledger.count_of("ended: in the dead-letter queue"),
        ledger.count_of("ended: parked"),
        ledger.missing.len(),
        ledger.faults.len(),
    )
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
