//! The consumer thread's life: declare, subscribe, serve, close.

use super::handler::Handler;
use super::intake::{Ending, Intake};
use super::pool::{Pool, Work};
use super::settling::Memory;
use super::{Consumer, Control, End, Registrar, Services, Settings, Shared, share};
use crate::error::Error;
use crate::link::Over;
use crate::shutdown::Deadline;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use log::{info, warn};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Starts a consumer and waits until it consumes, or has been refused.
pub(super) fn start(
    connection: &dyn Registrar,
    settings: Settings,
    handler: Handler,
) -> Result<Consumer, Error> {
    let services = connection.services()?;
    let (control, inbox) = unbounded();
    let (over, ended) = Over::new();
    let consumer = Consumer(Arc::new(Shared {
        queue: settings.queue.clone(),
        control,
        in_flight: Arc::new(AtomicUsize::new(0)),
        running: AtomicBool::new(false),
        ended,
        end: Mutex::new(None),
        cancelled: AtomicBool::new(false),
    }));
    let limit = services.call_timeout;
    let queue = settings.queue.clone();
    let (started, outcome) = bounded(1);
    let thread = ConsumerThread {
        pool: Pool::new(work(&settings, &services, handler, &consumer)),
        shared: consumer.0.clone(),
        settings,
        services,
        inbox,
    };
    thread::Builder::new()
        .name(format!("rungmq-consumer-{queue}"))
        .spawn(move || {
            thread.run(started);
            drop(over);
        })
        .map_err(|error| {
            Error::Configuration(format!("no consumer thread could be started: {error}"))
        })?;
    await_start(&consumer, &outcome, limit)?;
    connection.register(&consumer);
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

fn work(settings: &Settings, services: &Services, handler: Handler, consumer: &Consumer) -> Work {
    Work {
        queue: settings.queue.clone(),
        handler,
        policy: settings.policy.clone(),
        threshold: settings.threshold,
        clock: services.clock.clone(),
        metrics: services.metrics.clone(),
        in_flight: consumer.0.in_flight.clone(),
        concurrency: settings.concurrency,
    }
}

struct ConsumerThread {
    settings: Settings,
    services: Services,
    shared: Arc<Shared>,
    pool: Pool,
    inbox: Receiver<Control>,
}

impl ConsumerThread {
    fn run(self, started: Sender<Result<(), Error>>) {
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(&started)));
        self.shared.running.store(false, Ordering::Release);
        if served.is_err() {
            warn!(
                "{}: the consumer thread panicked, which counts as the loss of its channel",
                self.settings.queue
            );
        }
        self.pool.close();
    }

    fn serve(&self, started: &Sender<Result<(), Error>>) {
        match self.subscribe_and_serve(started) {
            Ok(Ending::Drained(stranded)) => {
                *self.shared.end.lock() = Some(End { stranded });
                info!("{}: consuming ended", self.settings.queue);
            }
            Ok(Ending::Died(failure)) => {
                warn!("{}: consuming ended: {failure}", self.settings.queue)
            }
            Ok(Ending::Cancelled) => {
                warn!(
                    "{}: the broker cancelled the consumer: its queue was deleted or moved",
                    self.settings.queue
                );
            }
            Err(error) => drop(started.send(Err(error))),
        }
    }

    fn subscribe_and_serve(&self, started: &Sender<Result<(), Error>>) -> Result<Ending, Error> {
        let Self {
            settings, services, ..
        } = self;
        let queue = &settings.queue;
        let refused = |failure| {
            Error::broker(
                format!("the queue {queue:?} could not be consumed"),
                failure,
            )
        };
        // Before the checks, which take a channel too: so there is always one left for declarations.
        let channel = services
            .link
            .open_channel(services.call_timeout)
            .map_err(refused)?;
        let mut memory = Memory::default();
        share::check_source(&services.admin, queue)?;
        if settings.declare {
            share::declare(&services.admin, queue, &settings.ladder)?;
            memory.rungs.extend(
                settings
                    .ladder
                    .rungs()
                    .iter()
                    .map(crate::retry::Rung::delay),
            );
        }
        channel.limit_prefetch(settings.prefetch).map_err(refused)?;
        let subscription = channel.subscribe(queue).map_err(refused)?;
        info!("consuming {queue}");
        self.shared.running.store(true, Ordering::Release);
        drop(started.send(Ok(())));
        let intake = Intake::new(
            (settings, services),
            &self.inbox,
            &self.pool,
            &mut memory,
            channel.as_ref(),
            subscription.as_ref(),
        );
        let ending = intake.run();
        self.shared.running.store(false, Ordering::Release);
        drop(subscription);
        drop(channel.close());
        Ok(ending)
    }
}
