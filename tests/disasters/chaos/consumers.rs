//! The consuming processes and their supervision.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use parking_lot::Mutex;

use super::gremlin::{Event, What};
use super::now_millis;
use crate::harness::secs;
use crate::harness::wait::{Stopwatch, wait_for};
use crate::harness::work::Line;

/// The exit code of `chaos_consumer`.
const START_FAILED: i32 = 2;
/// The close's own limit is 3 s, and a busy machine may take some more.
const CLOSES_WITHIN: Duration = Duration::from_secs(15);

/// `count` processes that consume the same queues.
pub(crate) struct Consumers {
    program: PathBuf,
    folder: PathBuf,
    url: String,
    queues: [&'static str; 2],
    slots: Vec<Mutex<Slot>>,
    failed_starts: Mutex<Vec<Event>>,
    complaints: Mutex<Vec<String>>,
}

struct Slot {
    child: Child,
    /// The gremlin ends this process, or has ended it: supervision leaves it alone.
    on_purpose: bool,
    /// Milliseconds since 1970.
    since: u64,
    most_threads: u64,
    /// Their names, and how many have each.
    named: BTreeMap<String, usize>,
}

impl Consumers {
    /// Diaries and logs go to `folder`.
    pub(crate) fn start(folder: &Path, url: &str, queues: [&'static str; 2], count: usize) -> Self {
        let mut consumers = Self {
            program: env!("CARGO_BIN_EXE_chaos_consumer").into(),
            folder: folder.to_owned(),
            url: url.to_owned(),
            queues,
            slots: Vec::new(),
            failed_starts: Mutex::default(),
            complaints: Mutex::default(),
        };
        for index in 0..count {
            let child = consumers.spawn(index);
            consumers.slots.push(Mutex::new(Slot {
                child,
                on_purpose: false,
                since: now_millis(),
                most_threads: 0,
                named: BTreeMap::new(),
            }));
        }
        consumers
    }

    fn spawn(&self, index: usize) -> Child {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file(index))
            .unwrap();
        Command::new(&self.program)
            .arg(&self.url)
            .arg(self.diary_file(index))
            .args(self.queues)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn log_file(&self, index: usize) -> PathBuf {
        self.folder.join(format!("consumer-{index}.log"))
    }

    fn diary_file(&self, index: usize) -> PathBuf {
        self.folder.join(format!("diary-{index}.jsonl"))
    }

    /// Everything that handlers wrote, in the order of time.
    pub(crate) fn diary(&self) -> Vec<Line> {
        let files = (0..self.count()).filter_map(|index| File::open(self.diary_file(index)).ok());
        let lines = files.flat_map(|file| BufReader::new(file).lines());
        let mut diary: Vec<Line> = lines
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        diary.sort_by_key(|line| line.at);
        diary
    }

    /// Restarts processes that could not start while the broker was away, and measures the others.
    /// Any other end is a fault.
    pub(crate) fn look_after(&self) {
        for (index, slot) in self.slots.iter().enumerate() {
            let mut slot = slot.lock();
            if slot.on_purpose {
                continue;
            }
            match slot.child.try_wait().unwrap() {
                None => {
                    slot.measure();
                }
                Some(status) => {
                    self.ended(&slot, status);
                    if status.code() != Some(START_FAILED) {
                        self.complain(format!("consumer {index} ended by itself: {status}"));
                    }
                    slot.child = self.spawn(index);
                    slot.since = now_millis();
                }
            }
        }
    }

    pub(crate) fn kill_9(&self, index: usize) -> u32 {
        let mut slot = self.slots[index].lock();
        slot.on_purpose = true;
        slot.child.kill().unwrap();
        let status = slot.child.wait().unwrap();
        self.ended(&slot, status);
        slot.child.id()
    }

    /// SIGTERM; it must end within its limit, in whatever state the broker is.
    pub(crate) fn terminate(&self, index: usize) -> u32 {
        let mut slot = self.slots[index].lock();
        slot.on_purpose = true;
        let process = slot.child.id();
        signal(process, "TERM");
        let status = ended(&mut slot.child);
        if let Some(status) = status {
            self.ended(&slot, status);
        }
        match status {
            Some(status) if matches!(status.code(), Some(0..=START_FAILED)) => {}
            // It had only just been started, and did not listen to signals yet.
            Some(status) if status.signal() == Some(15) => {}
            Some(status) => self.complain(format!("consumer {index} closed with {status}")),
            None => {
                self.complain(format!(
                    "consumer {index} (process {process}) did not close within {CLOSES_WITHIN:?}"
                ));
                slot.child.kill().unwrap();
                slot.child.wait().unwrap();
            }
        }
        process
    }

    pub(crate) fn start_again(&self, index: usize) {
        let mut slot = self.slots[index].lock();
        slot.child = self.spawn(index);
        slot.since = now_millis();
        slot.on_purpose = false;
    }

    /// SIGSTOP for a while.
    pub(crate) fn suspend(&self, index: usize, time: Duration) -> u32 {
        let process = self.slots[index].lock().child.id();
        signal(process, "STOP");
        crate::harness::wait::let_pass(time);
        signal(process, "CONT");
        process
    }

    /// The most threads that any process had, with their names, and how many each has now.
    pub(crate) fn threads(&self) -> (u64, String, Vec<u64>) {
        let (mut most, mut named) = (0, String::new());
        let mut now = Vec::new();
        for slot in &self.slots {
            let mut slot = slot.lock();
            now.push(slot.measure());
            if slot.most_threads > most {
                most = slot.most_threads;
                named = format!("{:?}", slot.named);
            }
        }
        (most, named, now)
    }

    /// A start fails while the broker is away, or when a queue is deleted before its binding is
    /// made; what had been received by then goes back.
    fn ended(&self, slot: &Slot, status: ExitStatus) {
        if status.code() == Some(START_FAILED) {
            self.failed_starts.lock().push(Event {
                what: What::StartFailed(slot.child.id()),
                from: slot.since,
                to: now_millis(),
            });
        }
    }

    pub(crate) fn failed_starts(&self) -> Vec<Event> {
        self.failed_starts.lock().clone()
    }

    fn complain(&self, text: String) {
        self.complaints.lock().push(text);
    }

    pub(crate) fn complaints(&self) -> Vec<String> {
        self.complaints.lock().clone()
    }
}

impl Slot {
    fn measure(&mut self) -> u64 {
        let mut named = BTreeMap::new();
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        for task in tasks.into_iter().flatten().flatten() {
            if let Ok(name) = fs::read_to_string(task.path().join("comm")) {
                *named.entry(name.trim_end().to_owned()).or_default() += 1;
            }
        }
        let threads = named.values().sum::<usize>() as u64;
        if threads > self.most_threads {
            self.most_threads = threads;
            self.named = named;
        }
        threads
    }
}

impl Drop for Consumers {
    fn drop(&mut self) {
        for slot in &self.slots {
            let mut slot = slot.lock();
            let _ = slot.child.kill();
            let _ = slot.child.wait();
        }
    }
}

fn signal(process: u32, name: &str) {
    let script = format!("kill -{name} {process} 2>/dev/null");
    // It may have ended by itself.
    let _ = Command::new("sh").args(["-c", &script]).status().unwrap();
}

fn ended(child: &mut Child) -> Option<ExitStatus> {
    let clock = Stopwatch::start();
    wait_for(CLOSES_WITHIN + secs(5), "the end of a consumer", || {
        let status = child.try_wait().unwrap();
        if status.is_some() {
            return Some(status);
        }
        (clock.elapsed() > CLOSES_WITHIN).then_some(None)
    })
}
