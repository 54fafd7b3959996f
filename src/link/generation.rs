//! The mark on everything that belongs to one channel.

use super::{Over, OverSignal};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// One life of a subscription: deliveries, waits and copies made under it are void once it has ended.
///
/// Ending it comes before anything else is done about a loss: waits end at once, and no copy is written any more for a
/// message that the broker already has back.
#[derive(Debug)]
pub(crate) struct Generation {
    live: AtomicBool,
    draining: AtomicBool,
    over: Mutex<Option<Over>>,
    ended: OverSignal,
}

impl Generation {
    pub(crate) fn new() -> Self {
        let (over, ended) = Over::new();
        Self { live: AtomicBool::new(true), draining: AtomicBool::new(false), over: Mutex::new(Some(over)), ended }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.live.store(false, Ordering::Release);
        self.over.lock().take();
    }

    /// From now on nothing waits for a publishing connection that is not there.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Ready once the generation has ended.
    pub(crate) fn ended(&self) -> &OverSignal {
        &self.ended
    }
}
