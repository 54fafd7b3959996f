//! Deliveries that workers have started, as seen by the consumer thread and by drains.

use super::Control;
use crate::error::StrandedDelivery;
use crate::message::Opened;
use crate::metrics::{Consumed, Metrics, Outcome, Received};
use crate::time::instant::monotonic;
use crossbeam_channel::Sender;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A delivery that was handed to the workers.
///
/// Shared by its worker, the consumer thread and callers of cancel and close. The flags are
/// independent of each other: each is stored with `Release` and read with `Acquire`, so that a
/// reader also sees what its writer did before. A reader that comes a moment early reports the
/// delivery as it was.
#[derive(Debug, Default)]
pub(crate) struct TrackedDelivery {
    /// Set once, by the worker that takes the delivery.
    start: OnceLock<HandlerStart>,
    /// Its handler is done, and it waits.
    waiting: AtomicBool,
    /// Its handler waits for a drain. `swap` decides which of nested calls restores it.
    excluded: AtomicBool,
    /// Its channel is gone.
    stale: AtomicBool,
}

/// What is known once a handler has started.
#[derive(Debug)]
struct HandlerStart {
    opened: Arc<Opened>,
    at: Instant,
}

impl TrackedDelivery {
    /// Records that a worker has started it.
    pub(crate) fn begin(&self, opened: Arc<Opened>) {
        let at = monotonic();
        let _ = self.start.set(HandlerStart { opened, at });
    }

    /// The message, once a worker has started it.
    pub(crate) fn opened(&self) -> Option<&Arc<Opened>> {
        self.start.get().map(|start| &start.opened)
    }

    /// Records whether its handler is done and it waits for its next attempt or a requeue.
    pub(crate) fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Release);
    }

    /// Records that its channel is gone, so that the broker has requeued it.
    pub(crate) fn mark_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Whether its handler waits for a drain, so that no drain may wait for it.
    pub(crate) fn is_excluded_from_drain(&self) -> bool {
        self.excluded.load(Ordering::Acquire)
    }

    /// Describes it for a drain error. `None` when no worker has started it, when it is excluded
    /// from drains, and when its channel is gone.
    pub(crate) fn stranded(&self, queue: &str) -> Option<StrandedDelivery> {
        if self.is_excluded_from_drain() || self.stale.load(Ordering::Acquire) {
            return None;
        }
        let start = self.start.get()?;
        Some(StrandedDelivery {
            queue: queue.to_owned(),
            message_id: start.opened.envelope.id().to_owned(),
            attempt: start.opened.envelope.attempt(),
            running_for: start.at.elapsed(),
        })
    }
}

/// The started deliveries of one consumer that are not settled yet.
#[derive(Clone, Default)]
pub(crate) struct InFlight(Arc<Mutex<InFlightDeliveries>>);

#[derive(Default)]
struct InFlightDeliveries {
    last: u64,
    by_number: HashMap<u64, Arc<TrackedDelivery>>,
}

impl InFlight {
    /// Number of deliveries in flight.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().by_number.len()
    }

    /// The deliveries that a drain would leave behind now, judged without the consumer thread.
    pub(crate) fn stranded(&self, queue: &str) -> Vec<StrandedDelivery> {
        let deliveries: Vec<Arc<TrackedDelivery>> =
            self.0.lock().by_number.values().cloned().collect();
        // The lock is released here: reading a delivery must not delay workers.
        let running = deliveries
            .iter()
            .filter(|delivery| !delivery.waiting.load(Ordering::Acquire));
        running
            .filter_map(|delivery| delivery.stranded(queue))
            .collect()
    }

    pub(crate) fn begin(
        &self,
        delivery: &Arc<TrackedDelivery>,
        queue: &Arc<str>,
        metrics: &Metrics,
        attempt: u32,
    ) -> InFlightGuard {
        let number = {
            let mut deliveries = self.0.lock();
            deliveries.last += 1;
            let number = deliveries.last;
            deliveries.by_number.insert(number, delivery.clone());
            number
        };
        // Counted with the lock released, because a metrics hook is user code.
        metrics.received(&Received::new(queue, attempt));
        InFlightGuard {
            number,
            in_flight: self.clone(),
            queue: queue.clone(),
            metrics: metrics.clone(),
            outcome: Outcome::Discarded,
            handler_time: None,
        }
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InFlight").field(&self.len()).finish()
    }
}

/// Counts a started delivery as in flight until it is dropped.
///
/// Dropping it reports the outcome to the metrics: the one given to [`end`](Self::end), or
/// [`Outcome::Discarded`].
#[derive(Debug)]
pub(crate) struct InFlightGuard {
    number: u64,
    in_flight: InFlight,
    queue: Arc<str>,
    metrics: Metrics,
    outcome: Outcome,
    /// How long the handler ran; `None` when it did not.
    pub(crate) handler_time: Option<Duration>,
}

impl InFlightGuard {
    /// Ends it with this outcome.
    pub(crate) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let consumed = Consumed::new(&self.queue, self.outcome, self.handler_time);
        self.metrics.consumed(&consumed);
        // Removed last: when nothing is in flight, the metrics are complete.
        self.in_flight.0.lock().by_number.remove(&self.number);
    }
}

/// The delivery a handler runs for, and the inbox of its consumer.
type CurrentHandler = (Arc<TrackedDelivery>, Sender<Control>);

thread_local! {
    /// The delivery that this thread handles, and its consumer; `None` outside of a handler.
    static CURRENT_HANDLER: RefCell<Option<CurrentHandler>> = const { RefCell::new(None) };
}

/// Runs `handle` with `delivery` as the current one of this thread.
pub(crate) fn with_current_handler<R>(
    delivery: &Arc<TrackedDelivery>,
    control: &Sender<Control>,
    handle: impl FnOnce() -> R,
) -> R {
    CURRENT_HANDLER.set(Some((delivery.clone(), control.clone())));
    // `handle` catches panics, so the value is always reset.
    let result = handle();
    CURRENT_HANDLER.set(None);
    result
}

/// Excludes a delivery from every drain until it is dropped. Rule 16.
#[must_use]
pub(crate) struct DrainExclusion {
    in_handler: bool,
    /// The delivery and its consumer; `None` when no handler runs here, or when an outer call has
    /// excluded the delivery already and restores it.
    excluded: Option<CurrentHandler>,
}

impl DrainExclusion {
    /// Whether the call was made inside a handler.
    pub(crate) fn is_in_handler(&self) -> bool {
        self.in_handler
    }

    /// Whether this exclusion is on a delivery of the consumer with this `control`.
    pub(crate) fn is_of(&self, control: &Sender<Control>) -> bool {
        let excluded = self.excluded.as_ref();
        excluded.is_some_and(|(_, own)| own.same_channel(control))
    }

    /// Makes the exclusion permanent. The call has stopped the handler's own consumer, and that
    /// drain goes on after the call returns.
    pub(crate) fn keep(mut self) {
        self.excluded = None;
    }
}

impl Drop for DrainExclusion {
    fn drop(&mut self) {
        if let Some((delivery, _)) = &self.excluded {
            delivery.excluded.store(false, Ordering::Release);
        }
    }
}

/// Excludes the delivery that this thread handles, if any, because its handler is about to wait for
/// a drain itself.
pub(crate) fn exclude_current_handler_from_drain() -> DrainExclusion {
    CURRENT_HANDLER.with_borrow(|current| {
        let exclude = |(delivery, control): &CurrentHandler| {
            let first = !delivery.excluded.swap(true, Ordering::AcqRel);
            // A drain that is already waiting for this delivery checks again.
            let _ = control.send(Control::Wake);
            first.then(|| (delivery.clone(), control.clone()))
        };
        DrainExclusion {
            in_handler: current.is_some(),
            excluded: current.as_ref().and_then(exclude),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::delivery::Delivery;
    use crate::message::envelope::Envelope;
    use crate::message::headers::Headers;
    use crate::message::headers::Properties;

    fn delivery(id: &str) -> Arc<TrackedDelivery> {
        let delivery = Delivery {
            tag: 1,
            redelivered: false,
            exchange: String::new(),
            routing_key: "q".to_owned(),
            properties: Properties::default(),
            headers: Headers::new(),
            body: Arc::default(),
        };
        let (properties, headers) = (&delivery.properties, &delivery.headers);
        let envelope = Envelope::read(properties, headers, "q", 0, || id.to_owned());
        let tracked = Arc::new(TrackedDelivery::default());
        tracked.begin(Arc::new(Opened::new(delivery, envelope)));
        tracked
    }

    #[test]
    fn stranded_lists_running_deliveries_only() {
        let (in_flight, queue) = (InFlight::default(), Arc::from("q"));
        let deliveries = ["runs", "waits", "stale", "closes"].map(delivery);
        let metrics = Metrics::default();
        let guards = deliveries
            .each_ref()
            .map(|delivery| in_flight.begin(delivery, &queue, &metrics, 1));
        let [_runs, waits, stale, closes] = &deliveries;
        waits.set_waiting(true);
        stale.mark_stale();
        closes.excluded.store(true, Ordering::Release);
        assert_eq!(in_flight.len(), 4);
        let stranded = in_flight.stranded("q");
        assert_eq!(stranded.len(), 1, "{stranded:?}");
        assert_eq!(stranded[0].message_id, "runs");
        drop(guards);
        assert_eq!(in_flight.stranded("q"), []);
    }
}
