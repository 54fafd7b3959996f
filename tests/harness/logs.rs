//! Keeps what is logged, down to trace, so that a test can say what must never be.

use std::collections::VecDeque;
use std::sync::Once;

use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;

/// So many lines are kept; the oldest go first.
const KEPT: usize = 200_000;

static LINES: Mutex<VecDeque<(Level, String)>> = Mutex::new(VecDeque::new());

/// Starts keeping the logs of all tests of this process; called again it does nothing.
pub fn capture() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_boxed_logger(Box::new(Keep)).expect("no test installs a logger of its own");
        log::set_max_level(LevelFilter::Trace);
    });
}

/// Every line so far, as `LEVEL target: text`. Other tests log too: look for something of your own.
pub fn captured() -> Vec<String> {
    capture();
    LINES.lock().iter().map(|(_, line)| line.clone()).collect()
}

/// The lines of `level` or worse that contain `text`.
pub fn captured_with(level: Level, text: &str) -> Vec<String> {
    capture();
    let lines = LINES.lock();
    lines
        .iter()
        .filter(|(of, line)| *of <= level && line.contains(text))
        .map(|(_, line)| line.clone())
        .collect()
}

struct Keep;

impl Log for Keep {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.target().starts_with("mio")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = format!("{} {}: {}", record.level(), record.target(), record.args());
        let mut lines = LINES.lock();
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back((record.level(), line));
    }

    fn flush(&self) {}
}
