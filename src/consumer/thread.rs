//! The consumer thread: declares, subscribes, serves, and repeats after every loss until it is
//! stopped.
//!
//! It is the only thread that subscribes for its consumer, and the only writer of the delivery
//! states of its subscriptions.

use super::in_flight::InFlight;
use super::subscription::deliveries::BrokerKnowledge;
use super::subscription::{Ending, EventLoop};
use super::workers::{WorkerContext, WorkerPool};
use super::{Consumer, ConsumerShared, Context, Control, Registrar, Services, Settings};
use crate::error::Error;
use crate::handler::calling::Handler;
use crate::link::{Admin, Backoff, Operation, Over, Uplink};
use crate::message::headers::Headers;
use crate::metrics::Subscribed;
use crate::retry::{RetryLadder, Rung};
use crate::time::clock::Timer;
use crate::time::deadline::Deadline;
use crate::time::instant::later;
use crate::time::threads::{self, Role};
use crate::topology::consumer_share;
use crate::topology::declaration::Declaration;
use crate::transport::Failure;
use crossbeam_channel::{Receiver, Select, Sender, TryRecvError, bounded, unbounded};
use log::{info, warn};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pauses between attempts to subscribe over a connection that is up.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Starts a consumer and waits until it is subscribed or refused.
pub(crate) fn start(
    connection: &dyn Registrar,
    settings: Settings,
    handler: Handler,
) -> Result<Consumer, Error> {
    let (services, uplink) = connection.services()?;
    let (control, inbox) = unbounded();
    let (over, ended) = Over::new();
    let (waiters, drained) = Over::new();
    let in_flight = InFlight::default();
    let workers = WorkerContext {
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
    let consumer = Consumer(Arc::new(ConsumerShared {
        queue: settings.queue.clone(),
        control,
        pool: WorkerPool::new(workers, handler),
        in_flight,
        running: AtomicBool::new(false),
        generation: Mutex::new(None),
        waiters: Mutex::new(Some(waiters)),
        drained,
        ended,
        stranded: Mutex::new(None),
        cancelled: AtomicBool::new(false),
        reported: AtomicBool::new(false),
        deadline: Mutex::new(None),
        recovered: Mutex::new(None),
        unavailable: Mutex::new(Vec::new()),
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
        known: BrokerKnowledge::default(),
        started: Some(started),
    };
    // Registered before the thread starts, so that a concurrent close finds it.
    connection.register(&consumer);
    let run = move || {
        thread.run(uplink);
        // After the pool is closed, so that `ended` covers both.
        drop(over);
    };
    clock
        .spawn(
            Role::Owner,
            format!("rungmq-consumer-{label}"),
            Box::new(run),
        )
        // Without the thread, nothing else would close the pool.
        .inspect_err(|_| consumer.0.pool.close())?;
    await_start(&consumer, &outcome, limit)?;
    Ok(consumer)
}

/// Waits for the first subscription.
fn await_start(
    consumer: &Consumer,
    outcome: &Receiver<Result<(), Error>>,
    limit: Duration,
) -> Result<(), Error> {
    // `limit` bounds each of the calls of the start; together they may take longer.
    match outcome.recv_timeout(limit.saturating_mul(4)) {
        Ok(started) => started,
        Err(_) => {
            // A subscription that still succeeds later finds the stop and starts no handler.
            consumer.stop(Deadline::within(Duration::ZERO));
            Err(Error::Timeout {
                action: format!("consuming {:?}", consumer.queue()),
            })
        }
    }
}

/// The state of the thread between subscriptions.
struct ConsumerThread {
    settings: Settings,
    services: Services,
    shared: Arc<ConsumerShared>,
    inbox: Receiver<Control>,
    known: BrokerKnowledge,
    /// Where the result of the first subscription is awaited; `None` once it is reported.
    started: Option<Sender<Result<(), Error>>>,
}

/// What follows the end of a subscription.
enum NextStep {
    /// Subscribe again over this link.
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
            // A logger of the service may panic too. That must not end the consumer.
            let trouble = match ended.unwrap_or_else(|_| Err(self.panicked())) {
                Ok(Ending::Drained(_)) => {
                    info!("{}: consumer stopped", self.settings.label);
                    return;
                }
                Ok(Ending::Died(failure)) => failure.to_string(),
                Ok(Ending::Cancelled) => {
                    "the broker cancelled the consumer: its queue was deleted or moved".to_owned()
                }
                Err(error) => match self.started.take() {
                    Some(started) => {
                        let _ = started.send(Err(error));
                        return;
                    }
                    None => error.to_string(),
                },
            };
            // Rule 12: only a subscription that outlived its pause resets the backoff.
            backoff.lasted(clock.now().saturating_duration_since(began));
            warn!("{}: not consuming: {trouble}", self.settings.label);
            self.shared.running.store(false, Ordering::Release);
            *self.shared.trouble.lock() = Some(trouble);
            if self.shared.pool.is_stopped() {
                // The stop may not have reached `inbox` yet, but the pool shows it.
                *self.shared.stranded.lock() = Some(Vec::new());
                return;
            }
            match self.next(uplink, &mut backoff) {
                NextStep::Again(next) => uplink = next,
                NextStep::Stopped => {
                    *self.shared.stranded.lock() = Some(Vec::new());
                    return;
                }
            }
        }
    }

    /// Treats a panic on this thread as the loss of its channel.
    fn panicked(&self) -> Error {
        if let Some(generation) = &*self.shared.generation.lock() {
            generation.end();
        }
        // The broker requeues them when the channel closes.
        self.shared.pool.take_unstarted();
        self.services.publisher.wake();
        let action = format!("the queue {:?} was consumed", self.settings.queue);
        Error::broker(
            action,
            Failure::Lost("the consumer thread panicked".to_owned()),
        )
    }

    /// Waits until there is a link, the pause is over, and a handler could run.
    fn next(&self, mut uplink: Uplink, backoff: &mut Backoff) -> NextStep {
        let clock = &self.services.clock;
        // A lost link is replaced by the supervisor, at its pace. What ends on a live link is paced
        // here.
        let mut pause = if uplink.link.is_gone() {
            Timer::never()
        } else {
            clock.at(later(clock.now(), backoff.pause(clock.chance())))
        };
        let mut paused = false;
        loop {
            // A new link ends the pause: the loss of the old one was not this consumer's fault.
            if let Some(recovered) = self.shared.recovered.lock().take() {
                uplink = recovered;
                paused = true;
                pause = Timer::never();
            }
            // Rule 12: without a permit, the stale handlers of the last generation still run.
            if paused && !uplink.link.is_gone() && self.shared.pool.has_permit() {
                return NextStep::Again(uplink);
            }
            let mut select = Select::new();
            select.recv(&self.inbox);
            select.recv(&pause);
            threads::ready(select, None);
            match self.inbox.try_recv() {
                Ok(Control::Wake) | Err(TryRecvError::Empty) => {}
                Ok(Control::Stop(_)) | Err(TryRecvError::Disconnected) => return NextStep::Stopped,
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
            known,
            started,
        } = self;
        let queue = &settings.queue;
        let refused = |failure| {
            Error::broker(
                format!("the queue {queue:?} could not be consumed"),
                failure,
            )
        };
        // Opened before the checks, which use a channel too, so that one stays free for
        // declarations.
        let channel = uplink
            .link
            .open_channel(services.call_timeout)
            .map_err(refused)?;
        check_source(&uplink.admin, queue)?;
        if settings.declare {
            let again = started.is_none();
            known.unavailable = declare_share(&uplink.admin, queue, &settings.ladder, again)?;
            shared.set_unavailable(&known.unavailable);
            let rungs = settings.ladder.rungs().iter().map(Rung::delay);
            known.rungs = rungs.collect();
        }
        // Health shows this text if one of the following calls, which have no limit, does not
        // return.
        *shared.trouble.lock() = Some("the broker has not answered the subscription".to_owned());
        channel.limit_prefetch(settings.prefetch).map_err(refused)?;
        let subscription = channel.subscribe(queue).map_err(refused)?;
        info!("consuming {}", settings.label);
        *shared.trouble.lock() = None;
        shared.running.store(true, Ordering::Release);
        services.metrics.subscribed(&Subscribed::new(queue));
        if let Some(started) = started.take() {
            let _ = started.send(Ok(()));
        }
        let context = Context {
            settings,
            services,
            uplink,
        };
        let event_loop = EventLoop::new(
            context,
            shared,
            inbox,
            known,
            channel.as_ref(),
            subscription.as_ref(),
        );
        let ending = event_loop.run();
        if let Ending::Drained(stranded) = &ending {
            // Set before the channel closes: a silent broker delays the close, and a cancel must
            // not wait for it.
            *shared.stranded.lock() = Some(stranded.clone());
        }
        shared.running.store(false, Ordering::Release);
        drop(subscription);
        // A failure does not matter: the channel is gone either way.
        drop(channel.close());
        Ok(ending)
    }
}

/// Checks that the source queue exists; a consumer never declares it.
fn check_source(admin: &Admin, queue: &str) -> Result<(), Error> {
    let source = Declaration::durable_queue(queue, Headers::new());
    admin.call(Operation::Check(source)).map_err(|failure| {
        let what = if failure.is_not_found() {
            format!(
                "the queue {queue:?} does not exist; a consumer never declares its source queue"
            )
        } else {
            format!("the queue {queue:?} could not be checked")
        };
        Error::broker(what, failure)
    })
}

/// Declares the consumer's queues; `again` after the first subscription. Returns what is on a
/// cluster node that is down: it comes back with the node.
fn declare_share(
    admin: &Admin,
    queue: &str,
    ladder: &RetryLadder,
    again: bool,
) -> Result<Vec<Declaration>, Error> {
    let share = consumer_share(queue, ladder);
    let purpose = format!("consuming {queue:?}");
    if again {
        admin.declare_again(&share, &purpose)
    } else {
        admin.declare_all(&share, &[], &purpose)
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests {
    use super::*;
    use crate::consumer::ConsumerBuilder;
    use crate::link::{Dialler, Link, Sockets};
    use crate::message::Message;
    use crate::metrics::Metrics;
    use crate::publisher::{Publisher, PublisherSettings};
    use crate::retry::RetryPolicy;
    use crate::time::clock::SystemClock;
    use crate::transport::fake::{Call, dialled};

    const LIMIT: Duration = Duration::from_millis(500);
    const PATIENCE: Duration = Duration::from_secs(10);

    struct Connected {
        services: Services,
        uplink: Uplink,
        consumers: Mutex<Vec<Consumer>>,
    }

    impl Registrar for Connected {
        fn services(&self) -> Result<(Services, Uplink), Error> {
            Ok((self.services.clone(), self.uplink.clone()))
        }

        fn register(&self, consumer: &Consumer) {
            self.consumers.lock().push(consumer.clone());
        }
    }

    /// Connects to a fake broker. The receiver is notified of a subscribe call, which returns once
    /// the sender is dropped.
    fn connected() -> (Connected, Receiver<()>, Sender<()>) {
        let (ask, asked) = bounded(1);
        let (release, released) = bounded::<()>(0);
        let answer = move |call, _: &_| {
            if call == Call::Subscribe {
                let _ = ask.send(());
                let _ = released.recv();
            }
            Ok(())
        };
        let link = Link::start(dialled(answer), "test", &SystemClock, |_| {}).unwrap();
        let admin = Admin::start(link.clone(), PATIENCE, &SystemClock::shared()).unwrap();
        let (publisher, _) = Publisher::start(PublisherSettings {
            clock: SystemClock::shared(),
            dialler: Arc::new(Dialler::new(
                Vec::new(),
                LIMIT,
                Sockets::default(),
                SystemClock::shared(),
            )),
            metrics: Metrics::default(),
            confirm_timeout: LIMIT,
            connect_timeout: LIMIT,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            view: Arc::default(),
            writing: Arc::default(),
        })
        .unwrap();
        let services = Services {
            publisher,
            clock: SystemClock::shared(),
            metrics: Metrics::default(),
            call_timeout: LIMIT,
        };
        let connected = Connected {
            services,
            uplink: Uplink { link, admin },
            consumers: Mutex::default(),
        };
        (connected, asked, release)
    }

    #[test]
    fn unanswered_subscribe_times_out_and_shows_in_health() {
        let (connected, asked, release) = connected();
        let (policy, threshold) = (RetryPolicy::none(), Duration::ZERO);
        let consumer = ConsumerBuilder::new(&connected, "q".to_owned(), policy, threshold);
        let error = consumer.start(|_: Message<u64>| ()).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        let consumer = connected.consumers.lock().remove(0);
        asked.recv_timeout(PATIENCE).unwrap();
        let trouble = consumer.trouble().unwrap();
        assert!(trouble.contains("has not answered"), "{trouble}");
        // The thread ends as soon as its call returns.
        drop(release);
        assert!(consumer.join(Deadline::within(PATIENCE)));
        connected.services.publisher.stop(Duration::ZERO);
        connected.uplink.link.kill();
    }
}
