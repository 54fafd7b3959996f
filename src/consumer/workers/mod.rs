//! The workers: threads that take deliveries, run the handler, and sleep the short waits.
//!
//! Taking a delivery is starting it: what nobody has taken can still be taken back. A worker needs one of `concurrency`
//! permits to take one, and gives it back while it waits; so the pool grows, up to a thread for every delivery there can
//! be, and messages that wait never stop healthy ones.

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

/// What a worker tells the consumer thread.
#[derive(Debug)]
pub(crate) struct WorkerReport {
    pub(crate) tag: u64,
    pub(crate) event: WorkerEvent,
}

#[derive(Debug)]
pub(crate) enum WorkerEvent {
    Answered {
        decision: Decision,
        in_flight: InFlightGuard,
    },
    WaitOver,
    /// A wait for a missing rung asks for it again.
    RecheckRung,
}

/// Where the workers' reports on the deliveries of one subscription go.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    pub(crate) generation: Arc<Generation>,
    pub(crate) reports: Sender<WorkerReport>,
}

impl Reporter {
    /// When nobody listens any more the subscription is over, and what is reported is dropped, which counts it.
    fn report(&self, tag: u64, event: WorkerEvent) {
        drop(self.reports.send(WorkerReport { tag, event }));
    }
}

/// A delivery for a worker.
#[derive(Debug)]
pub(crate) struct DeliveryJob {
    pub(crate) delivery: Delivery,
    pub(crate) tracked: Arc<TrackedDelivery>,
    pub(crate) reporter: Reporter,
}

/// A wait for a worker, in place of a rung that is missing. It needs no permit.
#[derive(Debug)]
pub(crate) struct WaitJob {
    pub(crate) tag: u64,
    pub(crate) until: Instant,
    /// What to report when it is over.
    pub(crate) then: WorkerEvent,
    pub(crate) reporter: Reporter,
}

/// What workers need to know.
pub(crate) struct WorkerContext {
    pub(crate) queue: Arc<str>,
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

#[derive(Clone)]
pub(crate) struct WorkerPool(Arc<PoolShared>);

struct PoolShared {
    context: WorkerContext,
    state: Mutex<PoolState>,
    wake: Arc<Condvar>,
}

#[derive(Default)]
struct PoolState {
    /// Until the last worker has ended: it is the user's, and so is what it drops.
    handler: Option<Handler>,
    jobs: VecDeque<DeliveryJob>,
    waits: VecDeque<WaitJob>,
    /// Permits in use.
    running: usize,
    idle: usize,
    /// InFlightGuard, and not yet come to look for work.
    starting: usize,
    threads: usize,
    /// Somebody wants to be told when a permit is given back.
    wake_on_permit: bool,
    /// Nothing is in_flight any more.
    stopped: bool,
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

    pub(crate) fn push(&self, jobs: impl IntoIterator<Item = DeliveryJob>) {
        self.0.state.lock().jobs.extend(jobs);
        self.ensure_workers();
    }

    pub(crate) fn push_wait(&self, wait: WaitJob) {
        self.0.state.lock().waits.push_back(wait);
        self.ensure_workers();
    }

    /// Wakes or starts as many workers as there is work for.
    pub(crate) fn ensure_workers(&self) {
        let mut state = self.0.state.lock();
        let wanted = state.wanted(self.0.context.concurrency);
        for _ in 0..wanted.min(state.idle) {
            self.0.wake.notify_one();
        }
        for _ in 0..state.missing(self.0.context.concurrency) {
            if let Err(error) = self.start_worker(&mut state) {
                warn!(
                    "{}: no further worker thread could be in_flight: {error}",
                    self.0.context.queue
                );
                return;
            }
        }
    }

    fn start_worker(&self, state: &mut PoolState) -> Result<(), SpawnError> {
        let shared = self.0.clone();
        let name = format!("rungmq-worker-{}", self.0.context.label);
        let run = Box::new(move || shared.run());
        self.0.context.clock.spawn(Role::Worker, name, run)?;
        state.threads += 1;
        state.starting += 1;
        Ok(())
    }

    /// From now on no worker starts anything.
    pub(crate) fn stop(&self) {
        self.0.state.lock().stopped = true;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.state.lock().stopped
    }

    /// Whether a handler could be in_flight now. If not, the consumer thread is told to look again when one can.
    pub(crate) fn has_permit(&self) -> bool {
        let mut state = self.0.state.lock();
        let free = state.running < self.0.context.concurrency;
        state.wake_on_permit = !free;
        free
    }

    /// Takes back every delivery that no worker has taken, in order.
    pub(crate) fn take_unstarted(&self) -> Vec<DeliveryJob> {
        self.0.state.lock().jobs.drain(..).collect()
    }

    /// Lets the workers end, each after what it is doing. The last one drops the handler, which may hold the last handle of
    /// the connection.
    pub(crate) fn close(&self) {
        let mut state = self.0.state.lock();
        state.stopped = true;
        state.closed = true;
        state.waits.clear();
        self.0.wake.notify_all();
        if state.threads == 0
            && let Err(error) = self.start_worker(&mut state)
        {
            warn!(
                "{}: the handler is dropped with the last handle of its consumer, because {error}",
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

    /// How many workers have to be in_flight for that.
    fn missing(&self, concurrency: usize) -> usize {
        self.wanted(concurrency)
            .saturating_sub(self.idle + self.starting)
    }

    fn next(&mut self, concurrency: usize) -> Option<NextJob> {
        if self.stopped {
            return None;
        }
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
    fn a_worker_that_is_on_its_way_is_not_started_twice() {
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
