//! Running a test in a process of its own, where no other test's threads disturb.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::harness::Vhost;
use crate::harness::wait::wait_for_value;

/// Set in such a process, to what it needs to know.
const ALONE: &str = "RUNGMQ_TEST_ALONE";

/// Runs the test `name` (its path and name) again in a process of its own, and there, in place of everything else, `body`.
///
/// `prepare` runs on this side. It gives what the other side needs to know, and what must live until it has ended.
#[track_caller]
pub(crate) fn alone<T>(name: &str, prepare: impl FnOnce() -> (String, T), body: impl FnOnce(&str)) {
    if let Ok(argument) = std::env::var(ALONE) {
        return body(&argument);
    }
    let name = name.strip_prefix("it::").unwrap_or(name);
    let (argument, _alive) = prepare();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, argument)
        .output()
        .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "alone: {said}");
    assert!(said.contains("1 passed"), "there is no test {name}: {said}");
}

/// The threads of this process that belong to the library or to the client below it.
pub(crate) fn library_threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let mut names: Vec<_> = names
        .map(|name| name.trim_end().to_owned())
        .filter(|name| name.starts_with("rungmq") || name.starts_with("amiquip"))
        .collect();
    names.sort();
    names
}

/// For a test that has a broker of its own on the other side.
pub(crate) fn nothing() -> (String, ()) {
    (String::new(), ())
}

/// On the shared broker, with [`Q`](super::Q): gives the URL of a virtual host.
#[track_caller]
pub(crate) fn a_queue() -> (String, Vhost<'static>) {
    let vhost = Vhost::new();
    vhost.raw().classic(super::Q);
    (vhost.url(), vhost)
}

/// Waits until exactly these threads of the library are left.
#[track_caller]
pub(crate) fn threads_left(expected: &[&str]) {
    let expected: Vec<_> = expected.iter().map(|name| (*name).to_owned()).collect();
    let limit = Duration::from_secs(5);
    wait_for_value(limit, "threads left", &expected, library_threads);
}
