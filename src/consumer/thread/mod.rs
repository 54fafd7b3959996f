//! The consumer thread's life: declare, subscribe, serve, and again after every loss, until it is stopped.

use super::in_flight::InFlight;
use super::subscription::deliveries::Memory;
use super::subscription::{Ending, Intake};
use super::workers::{Pool, Work};
use super::{Consumer, Context, Control, End, Registrar, Services, Settings, Shared, share};
use crate::error::Error;
use crate::handler::calling::Handler;
use crate::link::{Backoff, Over, Uplink};
use crate::metrics::Subscribed;
use crate::retry::Rung;
use crate::time::clock::Timer;
use crate::time::deadline::Deadline;
use crate::time::instant::later;
use crate::time::threads::{self, Role};
use crate::transport::Failure;
use crossbeam_channel::{Receiver, Select, Sender, TryRecvError, bounded, unbounded};
use log::{info, warn};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between tries to subscribe again over a connection that is up.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Starts a consumer and waits until it consumes, or has been refused.
pub(crate) fn start(
    connection: &dyn Registrar,
    settings: Settings,
    handler: Handler,
) -> Result<Consumer, Error> {
    let (services, uplink) = connection.services()?;
    let (control, inbox) = unbounded();
    let (over, ended) = Over::new();
    let (busy, quiet) = Over::new();
    let in_flight = InFlight::default();
    let work = Work {
        queue: settings.queue.clone(),
        label: settings.label.clone(),
        policy: settings.policy.clone(),
        threshold: settings.threshold,
        longest_wait: settings.longest_wait,
        clock: services.clock.clone(),
        metrics: services.metrics.clone(),
        in_flight: in_flight.clone(),
        control: control.clone(),
        concurrency: settings.concurrency,
    };
    let consumer = Consumer(Arc::new(Shared {
        queue: settings.queue.clone(),
        control,
        pool: Pool::new(work, handler),
        in_flight,
        running: AtomicBool::new(false),
        generation: Mutex::new(None),
        busy: Mutex::new(Some(busy)),
        quiet,
        ended,
        end: Mutex::new(None),
        cancelled: AtomicBool::new(false),
        reported: AtomicBool::new(false),
        deadline: Mutex::new(None),
        recovered: Mutex::new(None),
        down: Mutex::new(Vec::new()),
        trouble: Mutex::new(None),
    }));
    let limit = services.call_timeout;
    let label = settings.label.clone();
    let clock = services.clock.clone();
    let (started, outcome) = bounded(1);
    let thread = ConsumerThread {
        shared: consumer.0.clone(),
        settings,
        services,
        inbox,
        memory: Memory::default(),
        started: Some(started),
    };
    // Known before it starts, so that a close that comes meanwhile finds it.
    connection.register(&consumer);
    let run = move || {
        thread.run(uplink);
        drop(over);
    };
    clock
        .spawn(
            Role::Owner,
            format!("rungmq-consumer-{label}"),
            Box::new(run),
        )
        .inspect_err(|_| consumer.0.pool.close())?;
    await_start(&consumer, &outcome, limit)?;
    Ok(consumer)
}

fn await_start(
    consumer: &Consumer,
    outcome: &Receiver<Result<(), Error>>,
    limit: Duration,
) -> Result<(), Error> {
    // Every call of the start has this limit of its own; together they may take longer.
    match outcome.recv_timeout(limit.saturating_mul(4)) {
        Ok(started) => started,
        Err(_) => {
            // Should the subscription come about after all, it finds this and starts nothing.
            consumer.stop(Deadline::within(Duration::ZERO));
            Err(Error::Timeout {
                action: format!("consuming {:?}", consumer.queue()),
            })
        }
    }
}

struct ConsumerThread {
    settings: Settings,
    services: Services,
    shared: Arc<Shared>,
    inbox: Receiver<Control>,
    memory: Memory,
    /// Until the first subscription lives: whoever waits for it.
    started: Option<Sender<Result<(), Error>>>,
}

/// What to do after a subscription has ended.
enum Next {
    Again(Uplink),
    Stopped,
}

impl ConsumerThread {
    fn run(mut self, uplink: Uplink) {
        self.serve(uplink);
        self.shared.running.store(false, Ordering::Release);
        self.shared.pool.close();
    }

    fn serve(&mut self, mut uplink: Uplink) {
        let clock = self.services.clock.clone();
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let began = clock.now();
            let ended = catch_unwind(AssertUnwindSafe(|| self.subscribe_and_serve(&uplink)));
            let trouble = match ended.unwrap_or_else(|_| Err(self.panicked())) {
                Ok(Ending::Drained(_)) => {
                    info!("{}: consuming ended", self.settings.label);
                    return;
                }
                Ok(Ending::Died(failure)) => failure.to_string(),
                Ok(Ending::Cancelled) => {
                    "the broker cancelled the consumer: its queue was deleted or moved".to_owned()
                }
                Err(error) => match self.started.take() {
                    Some(started) => {
                        drop(started.send(Err(error)));
                        return;
                    }
                    None => error.to_string(),
                },
            };
            backoff.lasted(clock.now().saturating_duration_since(began));
            warn!("{}: not consuming: {trouble}", self.settings.label);
            self.shared.running.store(false, Ordering::Release);
            *self.shared.trouble.lock() = Some(trouble);
            if self.shared.pool.is_shut() {
                // Whether it has come already or not: there was a stop.
                *self.shared.end.lock() = Some(End::default());
                return;
            }
            match self.next(uplink, &mut backoff) {
                Next::Again(next) => uplink = next,
                Next::Stopped => {
                    *self.shared.end.lock() = Some(End::default());
                    return;
                }
            }
        }
    }

    /// A panic on this thread counts as the loss of its channel.
    fn panicked(&self) -> Error {
        if let Some(generation) = &*self.shared.generation.lock() {
            generation.end();
        }
        self.shared.pool.take_back();
        self.services.publisher.look_again();
        let action = format!("the queue {:?} was consumed", self.settings.queue);
        Error::broker(
            action,
            Failure::Lost("the consumer thread panicked".to_owned()),
        )
    }

    /// Waits until there is a link to subscribe over, the pause is over, and a handler could run.
    fn next(&self, mut uplink: Uplink, backoff: &mut Backoff) -> Next {
        let clock = &self.services.clock;
        // A lost link was lost by itself; what ends on a link that is up is paced.
        let mut pause = if uplink.link.is_gone() {
            Timer::never()
        } else {
            clock.at(later(clock.now(), backoff.pause(clock.chance())))
        };
        let mut paused = false;
        loop {
            if let Some(recovered) = self.shared.recovered.lock().take() {
                uplink = recovered;
                paused = true;
                pause = Timer::never();
            }
            if paused && !uplink.link.is_gone() && self.shared.pool.has_permit() {
                return Next::Again(uplink);
            }
            let mut select = Select::new();
            select.recv(&self.inbox);
            select.recv(&pause);
            threads::ready(select, None);
            match self.inbox.try_recv() {
                Ok(Control::LookAgain) | Err(TryRecvError::Empty) => {}
                Ok(Control::Stop(_)) | Err(TryRecvError::Disconnected) => return Next::Stopped,
            }
            if pause.is_due() {
                paused = true;
            }
        }
    }

    fn subscribe_and_serve(&mut self, uplink: &Uplink) -> Result<Ending, Error> {
        let Self {
            settings,
            services,
            shared,
            inbox,
            memory,
            started,
        } = self;
        let queue = &settings.queue;
        let refused = |failure| {
            Error::broker(
                format!("the queue {queue:?} could not be consumed"),
                failure,
            )
        };
        // Before the checks, which take a channel too: so there is always one left for declarations.
        let channel = uplink
            .link
            .open_channel(services.call_timeout)
            .map_err(refused)?;
        share::check_source(&uplink.admin, queue)?;
        if settings.declare {
            let again = started.is_none();
            memory.down = share::declare(&uplink.admin, queue, &settings.ladder, again)?;
            shared.show_down(&memory.down);
            let rungs = settings.ladder.rungs().iter().map(Rung::delay);
            memory.rungs = rungs.collect();
        }
        // Should it hang in one of these calls, which have no limit, that is what health shows.
        *shared.trouble.lock() = Some("the broker has not answered the subscription".to_owned());
        channel.set_prefetch(settings.prefetch).map_err(refused)?;
        let subscription = channel.subscribe(queue).map_err(refused)?;
        info!("consuming {}", settings.label);
        *shared.trouble.lock() = None;
        shared.running.store(true, Ordering::Release);
        services.metrics.subscribed(&Subscribed::new(queue));
        if let Some(started) = started.take() {
            drop(started.send(Ok(())));
        }
        let context = Context {
            settings,
            services,
            uplink,
        };
        let intake = Intake::new(
            context,
            shared,
            inbox,
            memory,
            channel.as_ref(),
            subscription.as_ref(),
        );
        let ending = intake.run();
        if let Ending::Drained(stranded) = &ending {
            // Before the polite close: a broker that has fallen silent holds that up, and a cancel returns meanwhile.
            let stranded = stranded.clone();
            *shared.end.lock() = Some(End { stranded });
        }
        shared.running.store(false, Ordering::Release);
        drop(subscription);
        drop(channel.close());
        Ok(ending)
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests;
