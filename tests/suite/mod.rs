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
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::harness::wait::{Stopwatch, wait_for};
use crate::harness::{IN_PROCESS, Node};

/// Nodes that a test is done with; the next one takes them over, as a start takes seconds.
static FREE_NODES: Mutex<Vec<Node>> = Mutex::new(Vec::new());

/// A node for one test alone, to freeze or to raise an alarm on.
///
/// A test that kills its node or changes its configuration starts one with [`Node::start`].
struct BorrowedNode(Option<Node>);

impl BorrowedNode {
    #[track_caller]
    fn take() -> Self {
        let free = FREE_NODES.lock().unwrap_or_else(PoisonError::into_inner);
        let node = { free }.pop();
        Self(Some(node.unwrap_or_else(Node::start)))
    }
}

impl Deref for BorrowedNode {
    type Target = Node;

    fn deref(&self) -> &Node {
        self.0.as_ref().expect("a node until the drop")
    }
}

impl Drop for BorrowedNode {
    fn drop(&mut self) {
        // What a failed test leaves behind is not known, and an embedded broker keeps its queues.
        let reusable = !IN_PROCESS && !thread::panicking();
        if let Some(node) = self.0.take().filter(|_| reusable) {
            node.thaw();
            node.memory_alarm(false);
            let mut free = FREE_NODES.lock().unwrap_or_else(PoisonError::into_inner);
            free.push(node);
        }
    }
}

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
