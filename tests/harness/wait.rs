//! Waiting for something to become true, always with a limit.
#![allow(
    clippy::disallowed_methods,
    reason = "a test waits for the real broker in real time; only here"
)]

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const POLL: Duration = Duration::from_millis(20);

/// `n` seconds; fractions are welcome.
pub fn secs(n: impl Into<f64>) -> Duration {
    Duration::from_secs_f64(n.into())
}

/// Waits until `condition` holds; panics, naming `what`, when it does not within `limit`.
#[track_caller]
pub fn wait_until(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(limit, what, || condition().then_some(()));
}

/// Waits until `probe` gives a value and returns it; panics, naming `what`, when it does not within
/// `limit`.
#[track_caller]
pub fn wait_for<T>(limit: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(POLL);
    }
}

/// Waits until `probe` gives `wanted`; panics with the last value otherwise.
#[track_caller]
pub fn wait_for_value<T: PartialEq + Debug>(
    limit: Duration,
    what: &str,
    wanted: &T,
    mut probe: impl FnMut() -> T,
) {
    let start = Instant::now();
    loop {
        let value = probe();
        if value == *wanted {
            return;
        }
        assert!(
            start.elapsed() < limit,
            "not within {limit:?}: {what} is {value:?}, should be {wanted:?}"
        );
        thread::sleep(POLL);
    }
}

/// Checks over the whole of `time` that `condition` keeps holding.
#[track_caller]
pub fn holds_for(time: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < time {
        assert!(
            condition(),
            "after {:?} no longer true: {what}",
            start.elapsed()
        );
        thread::sleep(POLL);
    }
}

/// Lets `time` pass: for a moment that nothing marks.
pub fn let_pass(time: Duration) {
    thread::sleep(time);
}

/// The machine's wall clock, in ms since 1970.
pub fn epoch_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_millis().try_into().unwrap()
}

/// Calls `work` and says how long it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = work();
    (value, start.elapsed())
}

/// A clock that the closures of a test share.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
