//! The consumer thread's life: declare, subscribe, serve, close.

use super::handler::Handler;
use super::intake::{Ending, Intake};
use super::pool::{Pool, Work};
use super::settling::Memory;
use super::task::InFlight;
use super::{Consumer, Control, End, Registrar, Services, Settings, Shared, share};
use crate::error::Error;
use crate::link::Over;
use crate::shutdown::Deadline;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use log::{info, warn};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    let (busy, quiet) = Over::new();
    let in_flight = InFlight::default();
    let work = Work {
        queue: settings.queue.clone(),
        label: settings.label.clone(),
        handler,
        policy: settings.policy.clone(),
        threshold: settings.threshold,
        clock: services.clock.clone(),
        metrics: services.metrics.clone(),
        in_flight: in_flight.clone(),
        control: control.clone(),
        concurrency: settings.concurrency,
    };
    let consumer = Consumer(Arc::new(Shared {
        queue: settings.queue.clone(),
        control,
        pool: Pool::new(work),
        in_flight,
        running: AtomicBool::new(false),
        generation: Mutex::new(None),
        busy: Mutex::new(Some(busy)),
        quiet,
        ended,
        end: Mutex::new(None),
        cancelled: AtomicBool::new(false),
    }));
    let limit = services.call_timeout;
    let label = settings.label.clone();
    let (started, outcome) = bounded(1);
    let thread = ConsumerThread {
        shared: consumer.0.clone(),
        settings,
        services,
        inbox,
    };
    // Known before it starts, so that a close that comes meanwhile finds it.
    connection.register(&consumer);
    thread::Builder::new()
        .name(format!("rungmq-consumer-{label}"))
        .spawn(move || {
            thread.run(started);
            drop(over);
        })
        .map_err(|error| {
            Error::Configuration(format!("no consumer thread could be started: {error}"))
        })?;
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
}

impl ConsumerThread {
    fn run(self, started: Sender<Result<(), Error>>) {
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(&started)));
        self.shared.running.store(false, Ordering::Release);
        if served.is_err() {
            warn!(
                "{}: the consumer thread panicked, which counts as the loss of its channel",
                self.settings.label
            );
        }
        self.shared.pool.close();
    }

    fn serve(&self, started: &Sender<Result<(), Error>>) {
        match self.subscribe_and_serve(started) {
            Ok(Ending::Drained(_)) => info!("{}: consuming ended", self.settings.label),
            Ok(Ending::Died(failure)) => {
                warn!("{}: consuming ended: {failure}", self.settings.label)
            }
            Ok(Ending::Cancelled) => {
                warn!(
                    "{}: the broker cancelled the consumer: its queue was deleted or moved",
                    self.settings.label
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
        let refused = |failure| {
            Error::broker(
                format!("the queue {queue:?} could not be consumed"),
                failure,
            )
        };
        let channel = services
            .link
            .open_channel(services.call_timeout)
            .map_err(refused)?;
        channel.limit_prefetch(settings.prefetch).map_err(refused)?;
        let subscription = channel.subscribe(queue).map_err(refused)?;
        info!("consuming {}", settings.label);
        self.shared.running.store(true, Ordering::Release);
        drop(started.send(Ok(())));
        let intake = Intake::new(
            (settings, services),
            &self.shared,
            &self.inbox,
            &mut memory,
            channel.as_ref(),
            subscription.as_ref(),
        );
        let ending = intake.run();
        if let Ending::Drained(stranded) = &ending {
            // Before the polite close: a broker that has fallen silent holds that up, and a cancel returns meanwhile.
            let stranded = stranded.clone();
            *self.shared.end.lock() = Some(End { stranded });
        }
        self.shared.running.store(false, Ordering::Release);
        drop(subscription);
        drop(channel.close());
        Ok(ending)
    }
}
