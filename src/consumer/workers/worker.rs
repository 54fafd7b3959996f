//! One worker thread: takes work from the pool, runs the handler, and sleeps short waits.

use super::{DeliveryJob, NextJob, PoolShared, Reporter, WorkerContext, WorkerEvent};
use crate::consumer::Control;
use crate::consumer::in_flight::with_current_handler;
use crate::handler::calling::{Handler, panicked};
use crate::link::is_over;
use crate::message::Opened;
use crate::message::envelope::Envelope;
use crate::message::id::new_id;
use crate::retry::{Decision, Verdict, Wait, decide};
use crate::time::instant::later;
use crate::time::threads;
use crossbeam_channel::Select;
use log::warn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl PoolShared {
    /// Works until the pool is closed, or has more threads than permits and no work for this one.
    pub(super) fn run(&self) {
        let mut state = self.state.lock();
        state.starting -= 1;
        loop {
            match state.next(self.context.concurrency) {
                Some(next) => {
                    drop(state);
                    match next {
                        NextJob::Delivery(job, handler) => self.serve(job, &handler),
                        NextJob::Wait(wait) => {
                            self.wait(wait.tag, wait.until, wait.then, &wait.reporter)
                        }
                    }
                    state = self.state.lock();
                }
                // Surplus threads end: they were spawned for waits.
                None if state.closed || state.threads > self.context.concurrency => break,
                None => {
                    state.idle += 1;
                    let concurrency = self.context.concurrency;
                    threads::wait(&self.wake, &mut state, |state| {
                        state.closed || state.wanted(concurrency) > 0
                    });
                    state.idle -= 1;
                }
            }
        }
        state.threads -= 1;
        let last = state.closed && state.threads == 0;
        // The handler is dropped with the lock released: dropping it runs user code.
        let handler = state.handler.take_if(|_| last);
        drop(state);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(handler))) {
            let text = panicked(panic);
            warn!("{}: dropping the handler {text}", self.context.label);
        }
    }

    /// Runs the handler, reports the decision, and sleeps a short wait.
    fn serve(&self, job: DeliveryJob, handler: &Handler) {
        let DeliveryJob {
            delivery,
            tracked,
            reporter,
        } = job;
        // Rule 3: the delivery was requeued by the broker when its channel ended.
        if !reporter.generation.is_live() {
            self.release_permit();
            return;
        }
        let tag = delivery.tag;
        let clock = &self.context.clock;
        let envelope = Envelope::read(
            &delivery.properties,
            &delivery.headers,
            &delivery.routing_key,
            clock.epoch_millis(),
            new_id,
        );
        let attempt = envelope.attempt();
        let opened = Arc::new(Opened::new(delivery, envelope));
        tracked.begin(opened.clone());
        let WorkerContext {
            queue,
            metrics,
            in_flight,
            control,
            ..
        } = &self.context;
        let mut guard = in_flight.begin(&tracked, queue, metrics, attempt);
        let begin = clock.now();
        // The handler catches the user's panics. This catches the library's own: Rule 18, a
        // delivery is never lost to a panic.
        let verdict = with_current_handler(&tracked, control, || {
            catch_unwind(AssertUnwindSafe(|| handler(&opened)))
        })
        .unwrap_or_else(|panic| Verdict::Retry {
            reason: panicked(panic),
            fatal: false,
        });
        let ran = !matches!(verdict, Verdict::Undecodable { .. });
        guard.handler_time = ran.then(|| clock.now().saturating_duration_since(begin));
        // Measured after the handler: a message may grow too old while it is handled.
        let age = opened.envelope.age(clock.epoch_millis());
        drop(opened);
        let decision = decide(
            verdict,
            &self.context.policy,
            attempt,
            age,
            self.context.threshold,
        );
        let wait = match decision {
            Decision::Retry(Wait::Thread(delay)) if !delay.is_zero() => {
                Some(self.capped_delay(delay))
            }
            _ => None,
        };
        // Set before the permit is released, so that a drain does not count it as running.
        if wait.is_some() {
            tracked.set_waiting(true);
        }
        self.release_permit();
        let answered = clock.now();
        reporter.report(
            tag,
            WorkerEvent::Answered {
                decision,
                in_flight: guard,
            },
        );
        if let Some(wait) = wait {
            self.wait(tag, later(answered, wait), WorkerEvent::WaitOver, &reporter);
        }
    }

    /// Sleeps until `until`, then reports `then`. Ends silently with the waits of its generation.
    fn wait(&self, tag: u64, until: Instant, then: WorkerEvent, reporter: &Reporter) {
        let timer = self.context.clock.at(until);
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

    /// Applies jitter to `delay` and caps it.
    fn capped_delay(&self, delay: Duration) -> Duration {
        let WorkerContext {
            policy,
            longest_wait,
            label,
            ..
        } = &self.context;
        let wait = policy.jittered(delay, self.context.clock.chance());
        if wait > *longest_wait {
            warn!(
                "{label}: in-consumer retry delay capped at {longest_wait:?} (the policy asked for \
                 {wait:?})"
            );
        }
        wait.min(*longest_wait)
    }

    /// Returns the permit of this worker.
    fn release_permit(&self) {
        let mut state = self.state.lock();
        state.running -= 1;
        if std::mem::take(&mut state.wake_on_permit) {
            let _ = self.context.control.send(Control::Wake);
        }
    }
}
