//! Examples of the library as programs; `worker` as a process of its own, to be killed and to be
//! measured.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use crossbeam_channel::{Receiver, unbounded};
use parking_lot::Mutex;
use serde_json::Value;

use crate::observed::SOON;

/// A running worker; killed when dropped.
pub struct WorkerProcess {
    child: Child,
    events: Receiver<Value>,
    /// Came before an event that was waited for, and has not been waited for itself.
    earlier: VecDeque<Value>,
}

impl WorkerProcess {
    /// Starts it on `url` and waits until it consumes.
    #[track_caller]
    pub fn start(url: &str, args: &[&str]) -> Self {
        let mut child = Command::new(example("worker"))
            .args(["--url", url])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, events) = unbounded();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap();
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        let mut worker = Self {
            child,
            events,
            earlier: VecDeque::new(),
        };
        worker.next("consuming");
        worker
    }

    /// The next event of that name. Those before it wait for their turn: a delivery may come before
    /// `consuming` is said.
    #[track_caller]
    pub fn next(&mut self, event: &str) -> Value {
        if let Some(found) = self
            .earlier
            .iter()
            .position(|value| value["event"] == event)
        {
            return self.earlier.remove(found).unwrap();
        }
        loop {
            let value = self.events.recv_timeout(SOON).expect(event);
            if value["event"] == event {
                return value;
            }
            self.earlier.push_back(value);
        }
    }

    /// Ends it as the kernel would: SIGKILL.
    pub fn kill_9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to close, and waits for its last event.
    #[track_caller]
    pub fn terminate(&mut self) -> Value {
        let pid = self.child.id().to_string();
        let sent = Command::new("sh")
            .args(["-c", "kill -TERM \"$1\"", "sh", &pid])
            .status()
            .unwrap();
        assert!(sent.success());
        let closed = self.next("closed");
        self.child.wait().unwrap();
        closed
    }

    /// A line of `/proc/{pid}/status` that is a number, in kB where it has a unit.
    #[track_caller]
    pub fn status(&self, field: &str) -> u64 {
        status(&self.child.id().to_string(), field)
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A number from `/proc/{process}/status`.
#[track_caller]
pub fn status(process: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text
        .lines()
        .find(|line| line.split(':').next() == Some(field));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    value.and_then(|value| value.parse().ok()).unwrap()
}

/// The program of an example of the library, built by the first test that asks.
#[track_caller]
pub fn example(name: &str) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock();
    let program = built
        .entry(name.to_owned())
        .or_insert_with(|| build_example(name));
    program.clone()
}

/// With the features of `tests/run.sh`, which has built it already: then cargo only looks.
#[track_caller]
fn build_example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--locked", "--workspace"])
        .args(["--all-features", "--example", name, "--target-dir"])
        .arg(profile.parent().unwrap())
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let built = cargo.status().unwrap();
    assert!(built.success(), "the example {name} could not be built");
    profile.join("examples").join(name)
}
