//! The workers: threads that take deliveries, run the handler, and sleep the short waits.
//!
//! Taking a delivery is starting it: what nobody has taken can still be taken back. A worker needs one of `concurrency`
//! permits to take one, and gives it back while it waits; so the pool grows, up to a thread for every delivery there can
//! be, and messages that wait never stop healthy ones.

use super::Control;
use super::in_flight::{InFlight, Started, Task, handling};
use crate::handler::calling::{Handler, panicked};
use crate::link::{Generation, is_over};
use crate::message::Opened;
use crate::message::delivery::Delivery;
use crate::message::envelope::Envelope;
use crate::message::wire::new_id;
use crate::metrics::Metrics;
use crate::retry::{Decision, RetryPolicy, Verdict, Wait, decide};
use crate::time::clock::Clock;
use crate::time::instant::later;
use crate::time::threads::{self, Role, SpawnError};
use crossbeam_channel::{Select, Sender};
use log::warn;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a worker tells the consumer thread.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) tag: u64,
    pub(crate) news: News,
}

#[derive(Debug)]
pub(crate) enum News {
    Answered {
        decision: Decision,
        started: Started,
    },
    WaitOver,
    /// A wait for a missing rung asks for it again.
    AskAgain,
}

/// Where the workers' reports on the deliveries of one subscription go.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    pub(crate) generation: Arc<Generation>,
    pub(crate) reports: Sender<Report>,
}

impl Reporter {
    /// When nobody listens any more the subscription is over, and what is reported is dropped, which counts it.
    fn report(&self, tag: u64, news: News) {
        drop(self.reports.send(Report { tag, news }));
    }
}

/// A delivery for a worker.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) delivery: Delivery,
    pub(crate) task: Arc<Task>,
    pub(crate) reporter: Reporter,
}

/// A wait for a worker, in place of a rung that is missing. It needs no permit.
#[derive(Debug)]
pub(crate) struct WaitJob {
    pub(crate) tag: u64,
    pub(crate) until: Instant,
    /// What to report when it is over.
    pub(crate) then: News,
    pub(crate) reporter: Reporter,
}

/// What workers need to know.
pub(crate) struct Work {
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
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    work: Work,
    state: Mutex<State>,
    wake: Arc<Condvar>,
}

#[derive(Default)]
struct State {
    /// Until the last worker has ended: it is the user's, and so is what it drops.
    handler: Option<Handler>,
    jobs: VecDeque<Job>,
    waits: VecDeque<WaitJob>,
    /// Permits in use.
    running: usize,
    idle: usize,
    /// Started, and not yet come to look for work.
    starting: usize,
    threads: usize,
    /// Somebody wants to be told when a permit is given back.
    permit_wanted: bool,
    /// Nothing is started any more.
    shut: bool,
    closed: bool,
}

impl Pool {
    pub(crate) fn new(work: Work, handler: Handler) -> Self {
        let state = State {
            handler: Some(handler),
            ..State::default()
        };
        Self(Arc::new(Shared {
            work,
            state: Mutex::new(state),
            wake: Arc::new(Condvar::new()),
        }))
    }

    pub(crate) fn push(&self, jobs: impl IntoIterator<Item = Job>) {
        self.0.state.lock().jobs.extend(jobs);
        self.provide_workers();
    }

    pub(crate) fn push_wait(&self, wait: WaitJob) {
        self.0.state.lock().waits.push_back(wait);
        self.provide_workers();
    }

    /// Wakes or starts as many workers as there is work for.
    pub(crate) fn provide_workers(&self) {
        let mut state = self.0.state.lock();
        let wanted = state.wanted(self.0.work.concurrency);
        for _ in 0..wanted.min(state.idle) {
            self.0.wake.notify_one();
        }
        for _ in 0..state.missing(self.0.work.concurrency) {
            if let Err(error) = self.start_worker(&mut state) {
                warn!(
                    "{}: no further worker thread could be started: {error}",
                    self.0.work.queue
                );
                return;
            }
        }
    }

    fn start_worker(&self, state: &mut State) -> Result<(), SpawnError> {
        let shared = self.0.clone();
        let name = format!("rungmq-worker-{}", self.0.work.label);
        let run = Box::new(move || shared.run());
        self.0.work.clock.spawn(Role::Worker, name, run)?;
        state.threads += 1;
        state.starting += 1;
        Ok(())
    }

    /// From now on no worker starts anything.
    pub(crate) fn shut(&self) {
        self.0.state.lock().shut = true;
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.0.state.lock().shut
    }

    /// Whether a handler could be started now. If not, the consumer thread is told to look again when one can.
    pub(crate) fn has_permit(&self) -> bool {
        let mut state = self.0.state.lock();
        let free = state.running < self.0.work.concurrency;
        state.permit_wanted = !free;
        free
    }

    /// Takes back every delivery that no worker has taken, in order.
    pub(crate) fn take_back(&self) -> Vec<Job> {
        self.0.state.lock().jobs.drain(..).collect()
    }

    /// Lets the workers end, each after what it is doing. The last one drops the handler, which may hold the last handle of
    /// the connection.
    pub(crate) fn close(&self) {
        let mut state = self.0.state.lock();
        state.shut = true;
        state.closed = true;
        state.waits.clear();
        self.0.wake.notify_all();
        if state.threads == 0
            && let Err(error) = self.start_worker(&mut state)
        {
            warn!(
                "{}: the handler is dropped with the last handle of its consumer, because {error}",
                self.0.work.queue
            );
        }
    }
}

impl State {
    /// How many workers could start something now.
    fn wanted(&self, concurrency: usize) -> usize {
        if self.shut {
            return 0;
        }
        self.waits.len()
            + self
                .jobs
                .len()
                .min(concurrency.saturating_sub(self.running))
    }

    /// How many workers have to be started for that.
    fn missing(&self, concurrency: usize) -> usize {
        self.wanted(concurrency)
            .saturating_sub(self.idle + self.starting)
    }

    fn next(&mut self, concurrency: usize) -> Option<Next> {
        if self.shut {
            return None;
        }
        if let Some(wait) = self.waits.pop_front() {
            return Some(Next::Wait(wait));
        }
        if self.running < concurrency {
            let handler = self.handler.clone()?;
            let job = self.jobs.pop_front()?;
            self.running += 1;
            return Some(Next::Job(job, handler));
        }
        None
    }
}

#[allow(clippy::large_enum_variant, reason = "nearly all of them are jobs")]
enum Next {
    Job(Job, Handler),
    Wait(WaitJob),
}

impl Shared {
    /// A worker's life.
    fn run(&self) {
        let mut state = self.state.lock();
        state.starting -= 1;
        loop {
            match state.next(self.work.concurrency) {
                Some(next) => {
                    drop(state);
                    match next {
                        Next::Job(job, handler) => self.serve(job, &handler),
                        Next::Wait(wait) => {
                            self.wait(wait.tag, wait.until, wait.then, &wait.reporter)
                        }
                    }
                    state = self.state.lock();
                }
                None if state.closed || state.threads > self.work.concurrency => break,
                None => {
                    state.idle += 1;
                    let concurrency = self.work.concurrency;
                    threads::wait(&self.wake, &mut state, |state| {
                        state.closed || state.wanted(concurrency) > 0
                    });
                    state.idle -= 1;
                }
            }
        }
        state.threads -= 1;
        let last = state.closed && state.threads == 0;
        let handler = state.handler.take_if(|_| last);
        drop(state);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(handler))) {
            let text = panicked(panic);
            warn!("{}: the handler was dropped and {text}", self.work.label);
        }
    }

    /// Runs the handler, reports the decision, and sleeps the wait if it is a short one.
    fn serve(&self, job: Job, handler: &Handler) {
        let Job {
            delivery,
            task,
            reporter,
        } = job;
        if !reporter.generation.is_live() {
            self.give_permit_back();
            return;
        }
        let tag = delivery.tag;
        let clock = &self.work.clock;
        let envelope = Envelope::read(
            &delivery.properties,
            &delivery.headers,
            &delivery.routing_key,
            clock.epoch_millis(),
            new_id,
        );
        let attempt = envelope.attempt();
        let opened = Arc::new(Opened::new(delivery, envelope));
        task.begin(opened.clone());
        let Work {
            queue,
            metrics,
            in_flight,
            control,
            ..
        } = &self.work;
        let mut started = in_flight.begin(&task, queue, metrics, attempt);
        let begin = clock.now();
        // The handler catches the user's panics; this is for one of our own, which must not cost the delivery either.
        let verdict = handling(&task, control, || {
            catch_unwind(AssertUnwindSafe(|| handler(&opened)))
        })
        .unwrap_or_else(|panic| Verdict::Retry {
            reason: panicked(panic),
            fatal: false,
        });
        let ran = !matches!(verdict, Verdict::Undecodable { .. });
        started.handler_time = ran.then(|| clock.now().saturating_duration_since(begin));
        let age = opened.envelope.age(clock.epoch_millis());
        drop(opened);
        let decision = decide(
            verdict,
            &self.work.policy,
            attempt,
            age,
            self.work.threshold,
        );
        let wait = match decision {
            Decision::Retry(Wait::Thread(delay)) if !delay.is_zero() => Some(self.jittered(delay)),
            _ => None,
        };
        if wait.is_some() {
            task.set_waiting(true);
        }
        self.give_permit_back();
        let answered = clock.now();
        reporter.report(tag, News::Answered { decision, started });
        if let Some(wait) = wait {
            self.wait(tag, later(answered, wait), News::WaitOver, &reporter);
        }
    }

    fn wait(&self, tag: u64, until: Instant, then: News, reporter: &Reporter) {
        let timer = self.work.clock.at(until);
        let over = reporter.generation.waits_over();
        loop {
            let mut select = Select::new();
            select.recv(&timer);
            select.recv(over);
            threads::ready(select, None);
            if is_over(over) {
                return;
            }
            if timer.is_due() {
                return reporter.report(tag, then);
            }
        }
    }

    fn jittered(&self, delay: Duration) -> Duration {
        let Work {
            policy,
            longest_wait,
            label,
            ..
        } = &self.work;
        let wait = policy.jittered(delay, self.work.clock.chance());
        if wait > *longest_wait {
            warn!(
                "{label}: a retry waits {longest_wait:?} instead of {wait:?}: no longer in the consumer"
            );
        }
        wait.min(*longest_wait)
    }

    fn give_permit_back(&self) {
        let mut state = self.state.lock();
        state.running -= 1;
        if std::mem::take(&mut state.permit_wanted) {
            drop(self.work.control.send(Control::LookAgain));
        }
    }
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
            then: News::WaitOver,
            reporter: Reporter {
                generation: Arc::new(Generation::new(Activity::new(Duration::ZERO))),
                reports,
            },
        }
    }

    #[test]
    fn a_worker_that_is_on_its_way_is_not_started_twice() {
        let mut state = State::default();
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
