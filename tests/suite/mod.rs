//! The scenarios for any broker; `tests/rabbitmq` and `tests/embedded` include this folder.
//!
//! Each of the two provides `crate::harness`, the kit over its broker.

mod delivery;
mod harness_selftest;
mod load;
mod publishing;
mod recovery;
mod retries;
mod shutdown;
mod topology;

use std::fmt::Debug;
use std::time::Duration;

use crate::harness::wait::{Stopwatch, wait_for};

/// Waits until `probe` has given the same value for half a second, and returns it.
///
/// A connection opens channels and ends threads in the background; a count that is to be compared
/// with a later one is taken once that has settled.
#[track_caller]
fn steady<T: PartialEq + Debug>(what: &str, mut probe: impl FnMut() -> T) -> T {
    let mut last = (probe(), Stopwatch::start());
    wait_for(
        Duration::from_secs(30),
        &format!("{what} stay the same"),
        || {
            let value = probe();
            if value != last.0 {
                last = (value, Stopwatch::start());
                return None;
            }
            (last.1.elapsed() >= Duration::from_millis(500)).then_some(())
        },
    );
    last.0
}
