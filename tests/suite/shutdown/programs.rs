//! Tests of the example programs under signals, as an orchestrator sends them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::harness::wait::timed;
use crate::harness::worker_process;

fn example(name: &str) -> Command {
    Command::new(worker_process::example(name))
}

/// A program whose output is read line by line, and that does not outlive its test.
struct Program {
    child: Child,
    stdout: Log,
    stderr: Log,
    readers: Vec<JoinHandle<()>>,
}

impl Program {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdout, stderr) = (Log::default(), Log::default());
        let readers = vec![
            follow(child.stdout.take().unwrap(), &stdout),
            follow(child.stderr.take().unwrap(), &stderr),
        ];
        Self {
            child,
            stdout,
            stderr,
            readers,
        }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Waits for the end; the exit code, and everything that was printed.
    #[track_caller]
    fn end(&mut self) -> (Option<i32>, Vec<String>, Vec<String>) {
        let status = wait_for_status(&mut self.child);
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        (status, self.stdout.lines(), self.stderr.lines())
    }
}

#[track_caller]
fn wait_for_status(child: &mut Child) -> Option<i32> {
    crate::harness::wait_for(LIMIT, "the program ends", || child.try_wait().unwrap()).code()
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn follow(output: impl std::io::Read + Send + 'static, log: &Log) -> JoinHandle<()> {
    let log = log.clone();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            log.add(line);
        }
    })
}

/// The last line of a worker.
#[track_caller]
fn closed(stdout: &[String]) -> Value {
    let line: Value = serde_json::from_str(stdout.last().unwrap()).unwrap();
    assert_eq!(line["event"], "closed", "{line}");
    line
}

#[test]
fn worker_with_a_long_handler_ends_by_its_close_timeout() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic(Q);
    send(&raw, Q, "first", 2);
    send(&raw, Q, "second", 2);
    for _ in 0..2 {
        let mut command = example("worker");
        command
            .args([
                "--url",
                &vhost.url(),
                "--work",
                "60s",
                "--close-timeout",
                "2s",
            ])
            .arg(Q);
        let mut worker = Program::start(command);
        wait_until(LIMIT, "the handler runs", || {
            let lines = worker.stdout.lines();
            lines
                .iter()
                .any(|line| line.contains(r#""event":"delivery""#))
        });
        let ((code, stdout, stderr), took) = timed(|| {
            worker.signal("TERM");
            worker.end()
        });
        assert!(took >= secs(2) && took < secs(2) + 2 * GRACE, "{took:?}");
        assert_eq!(code, Some(1), "{stdout:?} {stderr:?}");
        let closed = closed(&stdout);
        let took = Duration::from_millis(closed["took_ms"].as_u64().unwrap());
        assert!(took >= secs(2) && took < secs(2) + GRACE, "{closed}");
        assert_eq!(closed["stranded"], serde_json::json!({ Q: 1 }));
        assert_eq!(
            closed["error"],
            "the drain did not finish within 2s: 1 delivery was left unsettled and will be redelivered — orders.new (1)"
        );
        raw.wait_for_count(Q, 2, LIMIT);
    }
    comes_back(&raw, Q, &[("first", 2), ("second", 2)]);
}

#[test]
fn a_worker_with_nothing_to_do_ends_at_once_after_sigterm() {
    let vhost = Vhost::new();
    vhost.raw().classic(Q);
    for signal in ["TERM", "INT"] {
        let mut command = example("worker");
        command.args(["--url", &vhost.url(), Q]);
        let mut worker = Program::start(command);
        worker.stdout.wait_for(1);
        let ((code, stdout, _), took) = timed(|| {
            worker.signal(signal);
            worker.end()
        });
        assert!(took < secs(10), "{took:?}");
        assert_eq!(code, Some(0), "{stdout:?}");
        assert_eq!(closed(&stdout)["stranded"], serde_json::json!({}));
        assert_eq!(closed(&stdout)["error"], Value::Null);
    }
}

/// `signal`, consuming [`Q`]; `more` are its further arguments.
fn service(vhost: &Vhost<'_>, more: &[&str]) -> Program {
    let mut command = example("signal");
    command.env("AMQP_URL", vhost.url()).arg(Q).args(more);
    Program::start(command)
}

#[test]
fn the_service_drains_on_a_signal_and_exits_clean() {
    for signal in ["TERM", "INT"] {
        let vhost = Vhost::new();
        let raw = vhost.raw();
        raw.classic(Q);
        let mut service = service(&vhost, &[]);
        raw.wait_for_consumers(Q, 1, LIMIT);
        send(&raw, Q, "1", 2);
        service.stdout.wait_for(1);
        service.signal(signal);
        let (code, stdout, stderr) = service.end();
        assert_eq!(code, Some(0), "{stdout:?} {stderr:?}");
        raw.wait_for_consumers(Q, 0, LIMIT);
        assert_eq!(raw.count(Q), 0);
    }
}

#[test]
fn the_services_exit_code_tells_that_deliveries_were_stranded() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic(Q);
    send(&raw, Q, "1", 2);
    let mut service = service(&vhost, &["60", "1"]);
    service.stdout.wait_for(1);
    let ((code, stdout, stderr), took) = timed(|| {
        service.signal("TERM");
        service.end()
    });
    assert_eq!(code, Some(1), "{stdout:?} {stderr:?}");
    assert!(took >= secs(1) && took < secs(1) + 2 * GRACE, "{took:?}");
    let said = stderr.join("\n");
    assert!(
        said.contains("1 delivery was left unsettled") && said.contains("orders.new (1)"),
        "{said}"
    );
    comes_back(&raw, Q, &[("1", 2)]);
}

#[test]
fn a_second_signal_ends_the_service_at_once() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic(Q);
    send(&raw, Q, "1", 2);
    let mut service = service(&vhost, &["60", "60"]);
    service.stdout.wait_for(1);
    service.signal("TERM");
    service.stderr.wait_for(1);
    let ((code, ..), took) = timed(|| {
        service.signal("TERM");
        service.end()
    });
    assert_eq!(code, Some(130));
    assert!(took < secs(20), "{took:?}");
    comes_back(&raw, Q, &[("1", 2)]);
}

#[test]
fn a_service_that_cannot_start_says_so_by_its_exit_code() {
    let vhost = Vhost::new();
    let mut service = service(&vhost, &[]);
    let (code, _, stderr) = service.end();
    assert_eq!(code, Some(2), "{stderr:?}");
    assert!(stderr.join("\n").contains(Q), "{stderr:?}");
}
