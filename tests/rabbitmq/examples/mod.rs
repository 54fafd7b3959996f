//! The examples as programs: `worker`, the library from the command line, as a black box, and
//! `orders`.

mod orders;
mod starts;
mod worker;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread;

use crossbeam_channel::{Receiver, unbounded};
use serde_json::Value;

use crate::harness::wait_for;
use crate::harness::worker_process::example;

pub(super) const Q: &str = "orders.new";
const LIMIT: std::time::Duration = std::time::Duration::from_secs(30);

/// A running worker; killed when dropped.
struct Worker {
    child: Child,
    lines: Receiver<String>,
    /// Every line so far.
    seen: Vec<Value>,
}

/// What is left of a worker that has ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    lines: Vec<Value>,
    stderr: String,
}

impl Worker {
    /// Starts a worker; `args` are separated by spaces, the queue's name comes last.
    fn start(url: &str, args: &str) -> Self {
        let mut args: Vec<&str> = args.split_whitespace().collect();
        args.extend(["--url", url]);
        Self::start_with(&args)
    }

    fn start_with(args: &[&str]) -> Self {
        let mut child = Command::new(example("worker"))
            .args(args)
            .env_remove("AMQP_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (line, lines) = unbounded();
        thread::spawn(move || {
            for text in stdout.lines() {
                let _ = line.send(text.unwrap());
            }
        });
        Self {
            child,
            lines,
            seen: Vec::new(),
        }
    }

    /// The next line of that event; each line must be one JSON object with an event.
    #[track_caller]
    fn wait_for(&mut self, event: &str) -> Value {
        loop {
            let line = self
                .lines
                .recv_timeout(LIMIT)
                .unwrap_or_else(|error| panic!("no {event}: {error}; so far {:?}", self.seen));
            let value: Value = serde_json::from_str(&line).unwrap();
            self.seen.push(value.clone());
            if value["event"] == event {
                return value;
            }
        }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits for its end.
    #[track_caller]
    fn end(mut self) -> Ended {
        let child = &mut self.child;
        let status = wait_for(LIMIT, "the end of the worker", || child.try_wait().unwrap());
        while let Ok(line) = self.lines.recv_timeout(LIMIT) {
            self.seen.push(serde_json::from_str(&line).unwrap());
        }
        let mut stderr = String::new();
        let mut pipe = self.child.stderr.take().unwrap();
        pipe.read_to_string(&mut stderr).unwrap();
        Ended {
            code: status.code(),
            lines: std::mem::take(&mut self.seen),
            stderr,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// Its last line, which says how it closed.
    #[track_caller]
    fn closed(&self) -> &Value {
        let last = self.lines.last().expect("a line");
        assert_eq!(last["event"], "closed", "{self:?}");
        assert_eq!(self.count("closed"), 1);
        last
    }

    fn count(&self, event: &str) -> usize {
        self.lines
            .iter()
            .filter(|line| line["event"] == event)
            .count()
    }

    /// A number of the last line's metrics; 0 when it is not there.
    fn metric(&self, name: &str) -> i64 {
        self.closed()["metrics"][name].as_i64().unwrap_or(0)
    }
}
