//! One delivery on its way through a worker, seen from outside.

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

/// What everybody may know about a delivery that was handed to the workers.
#[derive(Debug, Default)]
pub(crate) struct Task {
    beginning: OnceLock<Beginning>,
    waiting: AtomicBool,
    unwaited: AtomicBool,
    stale: AtomicBool,
}

#[derive(Debug)]
struct Beginning {
    opened: Arc<Opened>,
    at: Instant,
}

impl Task {
    /// A worker has taken it.
    pub(crate) fn begin(&self, opened: Arc<Opened>) {
        let at = monotonic();
        let _ = self.beginning.set(Beginning { opened, at });
    }

    /// The message, once a worker has taken it.
    pub(crate) fn opened(&self) -> Option<&Arc<Opened>> {
        self.beginning.get().map(|beginning| &beginning.opened)
    }

    /// Whether its handler is done, and it waits for its next attempt or to be handed back.
    pub(crate) fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Release);
    }

    /// Its channel is gone: the broker has it back already.
    pub(crate) fn become_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Its handler waits for a drain, so that no drain may wait for it.
    pub(crate) fn is_unwaited(&self) -> bool {
        self.unwaited.load(Ordering::Acquire)
    }

    /// `None` while no worker has taken it, when nobody waits for it, and when its channel is gone.
    pub(crate) fn stranded(&self, queue: &str) -> Option<StrandedDelivery> {
        if self.is_unwaited() || self.stale.load(Ordering::Acquire) {
            return None;
        }
        let beginning = self.beginning.get()?;
        Some(StrandedDelivery {
            queue: queue.to_owned(),
            message_id: beginning.opened.envelope.id().to_owned(),
            attempt: beginning.opened.envelope.attempt(),
            running_for: beginning.at.elapsed(),
        })
    }
}

/// The started deliveries of one consumer whose fate is not known yet.
#[derive(Clone, Default)]
pub(crate) struct InFlight(Arc<Mutex<Tasks>>);

#[derive(Default)]
struct Tasks {
    last: u64,
    tasks: HashMap<u64, Arc<Task>>,
}

impl InFlight {
    pub(crate) fn len(&self) -> usize {
        self.0.lock().tasks.len()
    }

    /// Those that a drain would leave behind now, as far as can be seen from outside.
    pub(crate) fn stranded(&self, queue: &str) -> Vec<StrandedDelivery> {
        let tasks: Vec<Arc<Task>> = self.0.lock().tasks.values().cloned().collect();
        let running = tasks
            .iter()
            .filter(|task| !task.waiting.load(Ordering::Acquire));
        running.filter_map(|task| task.stranded(queue)).collect()
    }

    pub(crate) fn begin(
        &self,
        task: &Arc<Task>,
        queue: &Arc<str>,
        metrics: &Metrics,
        attempt: u32,
    ) -> Started {
        let number = {
            let mut tasks = self.0.lock();
            tasks.last += 1;
            let number = tasks.last;
            tasks.tasks.insert(number, task.clone());
            number
        };
        metrics.received(&Received::new(queue, attempt));
        Started {
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

/// A started delivery, counted until its fate is known. Dropped without one, its outcome was thrown away.
#[derive(Debug)]
pub(crate) struct Started {
    number: u64,
    in_flight: InFlight,
    queue: Arc<str>,
    metrics: Metrics,
    outcome: Outcome,
    pub(crate) handler_time: Option<Duration>,
}

impl Started {
    pub(crate) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let consumed = Consumed::new(&self.queue, self.outcome, self.handler_time);
        self.metrics.consumed(&consumed);
        self.in_flight.0.lock().tasks.remove(&self.number);
    }
}

thread_local! {
    /// What this thread, a worker, is handling. It is a fact about the thread, so it cannot live anywhere else.
    static HANDLING: RefCell<Option<(Arc<Task>, Sender<Control>)>> = const { RefCell::new(None) };
}

/// Runs the handler of `task` on this thread.
pub(crate) fn handling<R>(
    task: &Arc<Task>,
    control: &Sender<Control>,
    handle: impl FnOnce() -> R,
) -> R {
    HANDLING.set(Some((task.clone(), control.clone())));
    let result = handle();
    HANDLING.set(None);
    result
}

/// The mark that a call has made on the delivery whose handler makes the call.
#[must_use]
pub(crate) struct Unwaited {
    in_handler: bool,
    /// Unless an earlier call had made it.
    marked: Option<(Arc<Task>, Sender<Control>)>,
}

impl Unwaited {
    pub(crate) fn is_in_handler(&self) -> bool {
        self.in_handler
    }

    /// Whether the handler belongs to the consumer with this `control`.
    pub(crate) fn is_of(&self, control: &Sender<Control>) -> bool {
        let marked = self.marked.as_ref();
        marked.is_some_and(|(_, own)| own.same_channel(control))
    }

    /// The call is over and has not ended the handler's own consumer, whose drain, when it comes, waits for it as for any.
    pub(crate) fn lift(self) {
        if let Some((task, _)) = self.marked {
            task.unwaited.store(false, Ordering::Release);
        }
    }
}

/// When this thread runs a handler, its delivery is not waited for by any drain: it is about to wait for one itself.
pub(crate) fn do_not_wait_for_this_handler() -> Unwaited {
    HANDLING.with_borrow(|handling| {
        let mark = |(task, control): &(Arc<Task>, Sender<Control>)| {
            let marked = !task.unwaited.swap(true, Ordering::AcqRel);
            drop(control.send(Control::LookAgain));
            marked.then(|| (task.clone(), control.clone()))
        };
        Unwaited {
            in_handler: handling.is_some(),
            marked: handling.as_ref().and_then(mark),
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

    fn task(id: &str) -> Arc<Task> {
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
        let task = Arc::new(Task::default());
        task.begin(Arc::new(Opened::new(delivery, envelope)));
        task
    }

    #[test]
    fn stranded_is_what_runs_unless_it_waits_or_its_channel_is_gone() {
        let (in_flight, queue) = (InFlight::default(), Arc::from("q"));
        let tasks = ["runs", "waits", "stale", "closes"].map(task);
        let metrics = Metrics::default();
        let started = tasks
            .each_ref()
            .map(|task| in_flight.begin(task, &queue, &metrics, 1));
        let [_runs, waits, stale, closes] = &tasks;
        waits.set_waiting(true);
        stale.become_stale();
        closes.unwaited.store(true, Ordering::Release);
        assert_eq!(in_flight.len(), 4);
        let stranded = in_flight.stranded("q");
        assert_eq!(stranded.len(), 1, "{stranded:?}");
        assert_eq!(stranded[0].message_id, "runs");
        drop(started);
        assert_eq!(in_flight.stranded("q"), []);
    }
}
