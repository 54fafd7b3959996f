//! The generation of a subscription: the mark of everything that belongs to one channel.

use super::{Over, OverSignal};
use crate::transport::Activity;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// One generation of a subscription: when it ends, its deliveries, waits and copies are void.
///
/// The consumer thread ends it before it does anything else about a loss, so that no copy is
/// written for a message that the broker has already requeued. Draining it ends only the waits.
#[derive(Debug)]
pub(crate) struct Generation {
    activity: Activity,
    /// Cleared once, with `Release`, and read with `Acquire`: a thread that sees it cleared also
    /// sees what the ending thread wrote before. A write that races with the end is a duplicate at
    /// worst.
    live: AtomicBool,
    /// Set once, with `Release`, and read with `Acquire`, as `live`.
    draining: AtomicBool,
    /// Taken by the first of `end` and `drain`. Its drop makes `waits_over` ready, after the flag
    /// of the caller is set.
    waits: Mutex<Option<Over>>,
    waits_over: OverSignal,
}

impl Generation {
    pub(crate) fn new(activity: Activity) -> Self {
        let (waits, waits_over) = Over::new();
        Self {
            activity,
            live: AtomicBool::new(true),
            draining: AtomicBool::new(false),
            waits: Mutex::new(Some(waits)),
            waits_over,
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether its connection has been silent for so long that it may be dead. No copy is written
    /// then, because the broker may have requeued the message.
    pub(crate) fn is_silent(&self) -> bool {
        self.activity.is_silent()
    }

    /// Ends the generation: its channel is gone.
    pub(crate) fn end(&self) {
        self.live.store(false, Ordering::Release);
        self.waits.lock().take();
    }

    /// Ends the waits: the channel is about to close. Copies no longer wait for the publishing
    /// connection to come up.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.waits.lock().take();
    }

    /// Ready once the waits have to end.
    pub(crate) fn waits_over(&self) -> &OverSignal {
        &self.waits_over
    }
}
