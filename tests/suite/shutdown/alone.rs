//! Runs a test in a process of its own, without the threads of other tests.

use std::fs;
use std::process::Command;

use crate::harness::wait::wait_for_value;
use crate::harness::{IN_PROCESS, Proxy, Vhost};

/// Set in such a process, to what it needs to know.
const ALONE: &str = "RUNGMQ_TEST_ALONE";

/// The name of a test of this module, as [`alone`] wants it.
macro_rules! full_name {
    ($test:ident) => {
        concat!(module_path!(), "::", stringify!($test))
    };
}
pub(crate) use full_name;

/// Runs the test of this [`full_name`] again in a process of its own, where it runs `body` only.
///
/// `prepare` runs on this side, or on the other one where the broker is in the process. It gives
/// what the other side needs to know, and what must live until that has ended.
#[track_caller]
pub(crate) fn alone<T>(name: &str, prepare: impl FnOnce() -> (String, T), body: impl FnOnce(&str)) {
    if let Ok(argument) = std::env::var(ALONE) {
        // What that side has prepared is not to be seen from here.
        let here = IN_PROCESS.then(prepare);
        let argument = here.as_ref().map_or(&argument, |(argument, _)| argument);
        return body(argument);
    }
    let (_, name) = name.split_once("::").unwrap();
    let prepared = (!IN_PROCESS).then(prepare);
    let argument = prepared.as_ref().map_or("", |(argument, _)| argument);
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
        // An embedded broker's, which outlives its clients like any other.
        .filter(|name| !name.starts_with("rungmq-memory"))
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

/// Where a virtual host of the shared broker is, for [`through_a_proxy`] on the other side.
pub(crate) fn address(vhost: Vhost<'static>) -> (String, Vhost<'static>) {
    let address = format!("{} {}", vhost.node().port(), vhost.name());
    (address, vhost)
}

/// A proxy to the virtual host at `address`, and its URL.
#[track_caller]
pub(crate) fn through_a_proxy(address: &str) -> (Proxy, String) {
    let (port, vhost) = address.split_once(' ').unwrap();
    let proxy = Proxy::to_port(port.parse().unwrap());
    let url = proxy.url_for(vhost);
    (proxy, url)
}

/// Waits until exactly these threads of the library are left.
#[track_caller]
pub(crate) fn threads_left(expected: &[&str]) {
    let expected: Vec<_> = expected.iter().map(|name| (*name).to_owned()).collect();
    wait_for_value(super::LIMIT, "threads left", &expected, library_threads);
}
