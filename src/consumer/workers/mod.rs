//! The worker pool: threads that take deliveries, run the handler, and sleep short waits.
//!
//! Taking a delivery starts it; a delivery that no worker has taken can be taken back. A worker
//! needs one of `concurrency` permits to take one, and releases the permit while it waits. So the
//! pool grows up to one thread per unsettled delivery, and waiting messages never hold up others.

mod worker;

use super::Control;
use super::in_flight::{InFlight, InFlightGuard, TrackedDelivery};
use crate::handler::calling::Handler;
use crate::link::Generation;
use crate::message::delivery::Delivery;
use crate::metrics::Metrics;
use crate::retry::{Decision, RetryPolicy};
use crate::time::clock::Clock;
use crate::time::threads::{Role, SpawnError};
use crossbeam_channel::Sender;
use log::warn;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A worker's report on one delivery, for the consumer thread.
#[derive(Debug)]
pub(crate) struct WorkerReport {
    pub(crate) tag: u64,
    pub(crate) event: WorkerEvent,
}

/// What happened to a delivery in a worker.
#[derive(Debug)]
pub(crate) enum WorkerEvent {
    /// The handler has answered, or did not have to run.
    Answered {
        decision: Decision,
        in_flight: InFlightGuard,
    },
    /// Its wait is over.
    WaitOver,
    /// A wait for a missing rung is interrupted to check for the rung again.
    RecheckRung,
}

/// Sends the workers' reports on the deliveries of one subscription.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    pub(crate) generation: Arc<Generation>,
    pub(crate) reports: Sender<WorkerReport>,
}

impl Reporter {
    /// Sends a report. After the end of the subscription it is dropped, and its guard counts the
    /// outcome as discarded.
    fn report(&self, tag: u64, event: WorkerEvent) {
        let _ = self.reports.send(WorkerReport { tag, event });
    }
}

/// A delivery to be handled.
#[derive(Debug)]
pub(crate) struct DeliveryJob {
    pub(crate) delivery: Delivery,
    pub(crate) tracked: Arc<TrackedDelivery>,
    pub(crate) reporter: Reporter,
}

/// A wait in place of a missing rung. It needs no permit.
#[derive(Debug)]
pub(crate) struct WaitJob {
    pub(crate) tag: u64,
    pub(crate) until: Instant,
    /// The event to report once the wait is over.
    pub(crate) then: WorkerEvent,
    pub(crate) reporter: Reporter,
}

/// What every worker of a consumer uses.
pub(crate) struct WorkerContext {
    pub(crate) queue: Arc<str>,
    /// For logs and thread names.
    pub(crate) label: Arc<str>,
    pub(crate) policy: RetryPolicy,
    pub(crate) threshold: Duration,
    pub(crate) longest_wait: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    pub(crate) in_flight: InFlight,
    pub(crate) control: Sender<Control>,
    pub(crate) concurrency: usize,
}

/// The handle of the pool. Clones are the same pool.
#[derive(Clone)]
pub(crate) struct WorkerPool(Arc<PoolShared>);

struct PoolShared {
    context: WorkerContext,
    /// Everything that changes. A worker that waits for work does so on `wake` with this lock.
    state: Mutex<PoolState>,
    /// Notified with `state` locked, whenever a worker that waits may have work.
    wake: Arc<Condvar>,
}

#[derive(Default)]
struct PoolState {
    /// Present until the last worker has ended, which drops it: the handler and what it captures
    /// are user code.
    handler: Option<Handler>,
    jobs: VecDeque<DeliveryJob>,
    waits: VecDeque<WaitJob>,
    /// Permits in use.
    running: usize,
    /// Threads that wait on `wake`.
    idle: usize,
    /// Spawned threads that have not looked for work yet.
    starting: usize,
    /// Threads that have been spawned and have not ended.
    threads: usize,
    /// The consumer thread waits for a released permit.
    wake_on_permit: bool,
    /// No worker starts anything any more.
    stopped: bool,
    /// Workers end when there is nothing left to do.
    closed: bool,
}

impl WorkerPool {
    pub(crate) fn new(context: WorkerContext, handler: Handler) -> Self {
        let state = PoolState {
            handler: Some(handler),
            ..PoolState::default()
        };
        Self(Arc::new(PoolShared {
            context,
            state: Mutex::new(state),
            wake: Arc::new(Condvar::new()),
        }))
    }

    /// Queues deliveries for the workers.
    pub(crate) fn push(&self, jobs: impl IntoIterator<Item = DeliveryJob>) {
        self.0.state.lock().jobs.extend(jobs);
        self.ensure_workers();
    }

    /// Queues a wait for the workers.
    pub(crate) fn push_wait(&self, wait: WaitJob) {
        self.0.state.lock().waits.push_back(wait);
        self.ensure_workers();
    }

    /// Wakes or spawns as many workers as there is work for.
    pub(crate) fn ensure_workers(&self) {
        let mut state = self.0.state.lock();
        let wanted = state.wanted(self.0.context.concurrency);
        // Waking more than there is work for would only make them sleep again.
        for _ in 0..wanted.min(state.idle) {
            self.0.wake.notify_one();
        }
        for _ in 0..state.missing(self.0.context.concurrency) {
            if let Err(error) = self.start_worker(&mut state) {
                warn!("{}: no further worker: {error}", self.0.context.queue);
                // Rule 20: the next call tries again.
                return;
            }
        }
    }

    fn start_worker(&self, state: &mut PoolState) -> Result<(), SpawnError> {
        let shared = self.0.clone();
        let name = format!("rungmq-worker-{}", self.0.context.label);
        let run = Box::new(move || shared.run());
        self.0.context.clock.spawn(Role::Worker, name, run)?;
        // The lock is held: a new worker begins by taking it, and finds itself counted.
        state.threads += 1;
        state.starting += 1;
        Ok(())
    }

    /// Stops the pool: no worker starts anything from now on.
    pub(crate) fn stop(&self) {
        self.0.state.lock().stopped = true;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.state.lock().stopped
    }

    /// Whether a handler could start now. If not, the next released permit wakes the consumer
    /// thread.
    pub(crate) fn has_permit(&self) -> bool {
        let mut state = self.0.state.lock();
        let free = state.running < self.0.context.concurrency;
        state.wake_on_permit = !free;
        free
    }

    /// Takes back every delivery that no worker has taken, in order of arrival.
    pub(crate) fn take_unstarted(&self) -> Vec<DeliveryJob> {
        self.0.state.lock().jobs.drain(..).collect()
    }

    /// Ends each worker after its current work. The last one drops the handler, which may hold the
    /// last handle of the connection.
    pub(crate) fn close(&self) {
        let mut state = self.0.state.lock();
        state.stopped = true;
        state.closed = true;
        // A wait that is not taken yet has nothing left to report to.
        state.waits.clear();
        self.0.wake.notify_all();
        // Without a worker, spawn one to drop the handler: Rule 17.
        if state.threads == 0
            && let Err(error) = self.start_worker(&mut state)
        {
            warn!(
                "{}: the handler is dropped with the last handle of its consumer: {error}",
                self.0.context.queue
            );
        }
    }
}

impl PoolState {
    /// How many workers could start something now.
    fn wanted(&self, concurrency: usize) -> usize {
        if self.stopped {
            return 0;
        }
        self.waits.len()
            + self
                .jobs
                .len()
                .min(concurrency.saturating_sub(self.running))
    }

    /// How many workers have to be spawned for that.
    fn missing(&self, concurrency: usize) -> usize {
        self.wanted(concurrency)
            .saturating_sub(self.idle + self.starting)
    }

    /// Takes the next work, with a permit when it is a delivery.
    fn next(&mut self, concurrency: usize) -> Option<NextJob> {
        if self.stopped {
            return None;
        }
        // Waits first: they need no permit, and their time is already running.
        if let Some(wait) = self.waits.pop_front() {
            return Some(NextJob::Wait(wait));
        }
        if self.running < concurrency {
            let handler = self.handler.clone()?;
            let job = self.jobs.pop_front()?;
            self.running += 1;
            return Some(NextJob::Delivery(job, handler));
        }
        None
    }
}

/// What a worker does next.
#[allow(clippy::large_enum_variant, reason = "nearly all of them are jobs")]
enum NextJob {
    Delivery(DeliveryJob, Handler),
    Wait(WaitJob),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::instant::monotonic;
    use crate::transport::Activity;
    use crossbeam_channel::unbounded;

    fn wait() -> WaitJob {
        let (reports, _) = unbounded();
        WaitJob {
            tag: 1,
            until: monotonic(),
            then: WorkerEvent::WaitOver,
            reporter: Reporter {
                generation: Arc::new(Generation::new(Activity::new(Duration::ZERO))),
                reports,
            },
        }
    }

    #[test]
    fn starting_workers_count_as_provided() {
        let mut state = PoolState::default();
        state.waits.push_back(wait());
        assert_eq!(state.missing(4), 1);
        state.starting = 1;
        assert_eq!(state.missing(4), 0);
        state.waits.push_back(wait());
        assert_eq!(state.missing(4), 1);
        state.idle = 1;
        assert_eq!(state.missing(4), 0);
    }
}
