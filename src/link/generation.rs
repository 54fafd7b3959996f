//! The mark on everything that belongs to one channel.

use super::{Over, OverSignal};
use crate::transport::Activity;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// One life of a subscription: deliveries, waits and copies made under it are void once it has ended.
///
/// Ending it comes before anything else is done about a loss: waits end at once, and no copy is written any more for a
/// message that the broker already has back. Draining it ends the waits only.
#[derive(Debug)]
pub(crate) struct Generation {
    activity: Activity,
    live: AtomicBool,
    draining: AtomicBool,
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

    /// Whether its connection has been silent for so long that it may be dead already: then no copy is written, because
    /// the broker may have the message back.
    pub(crate) fn is_silent(&self) -> bool {
        self.activity.is_silent()
    }

    /// The channel is gone.
    pub(crate) fn end(&self) {
        self.live.store(false, Ordering::Release);
        self.waits.lock().take();
    }

    /// The channel will be closed: no wait goes on, and nothing waits for a publishing connection that is not there.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.waits.lock().take();
    }

    /// Ready once waits must end.
    pub(crate) fn waits_over(&self) -> &OverSignal {
        &self.waits_over
    }
}
