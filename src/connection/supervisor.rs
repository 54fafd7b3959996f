//! The supervisor of a connection: recovers a lost link, and runs the shutdown.
//!
//! It makes no call to the broker: dialling runs on a thread of its own, and everything else that
//! may block belongs to the links. Every wait has a timeout; on timeout the sockets are shut down.

use super::shutdown::Shutdown;
use super::state::{Command, ConnectionState, Phase};
use crate::consumer::Services;
use crate::link::{
    Backoff, DialError, Dialler, LinkNotice, Operation, OverSignal, Sockets, Uplink, is_over,
};
use crate::metrics::{Lost, Recovered, Retrying};
use crate::time::clock::Timer;
use crate::time::deadline::Deadline;
use crate::time::instant::later;
use crate::time::threads::{self, Role, SpawnError};
use crate::topology::declaration::Declaration;
use crossbeam_channel::{Receiver, Select, Sender, TryRecvError, tick};
use log::{debug, info, warn};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a broker without heartbeats is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);
/// How often the supervisor looks for a publisher write that is stuck.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Opens link `number`, whose notices go to the supervisor.
pub(super) fn open_uplink(
    dialler: &Dialler,
    limit: Duration,
    number: u64,
    commands: &Sender<Command>,
) -> Result<Uplink, DialError> {
    let commands = commands.clone();
    Uplink::open(dialler, limit, move |notice| {
        let _ = commands.send(Command::Notice { number, notice });
    })
}

/// What a supervisor is started with.
pub(super) struct SupervisorSettings {
    pub(super) commands: (Sender<Command>, Receiver<Command>),
    pub(super) state: ConnectionState,
    pub(super) services: Services,
    pub(super) dialler: Arc<Dialler>,
    pub(super) sockets: Sockets,
    pub(super) publisher_ended: OverSignal,
    pub(super) backoff: Backoff,
    /// The limit on attempts in a row to recover; `None` is unlimited.
    pub(super) max_attempts: Option<u32>,
}

/// The supervisor thread.
pub(super) struct Supervisor {
    commands: Sender<Command>,
    inbox: Receiver<Command>,
    state: ConnectionState,
    services: Services,
    dialler: Arc<Dialler>,
    sockets: Sockets,
    publisher_ended: OverSignal,
    backoff: Backoff,
    max_attempts: Option<u32>,
    uplink: Option<Uplink>,
    /// The number of the current link, or of the dial in progress. Commands with another number
    /// come from an earlier link and are ignored.
    number: u64,
    up_since: Instant,
    down_since: Instant,
    failed_attempts: u32,
    /// When to dial again.
    retry: Timer,
    probe: Receiver<Instant>,
    watch: Receiver<Instant>,
}

impl Supervisor {
    /// Starts the thread. The first link has number 0.
    pub(super) fn start(settings: SupervisorSettings, uplink: Uplink) -> Result<(), SpawnError> {
        let clock = settings.services.clock.clone();
        let (commands, inbox) = settings.commands;
        let now = clock.now();
        let mut supervisor = Self {
            commands,
            inbox,
            state: settings.state,
            services: settings.services,
            dialler: settings.dialler,
            sockets: settings.sockets,
            publisher_ended: settings.publisher_ended,
            backoff: settings.backoff,
            max_attempts: settings.max_attempts,
            uplink: Some(uplink),
            number: 0,
            up_since: now,
            down_since: now,
            failed_attempts: 0,
            retry: Timer::never(),
            probe: tick(PROBE_INTERVAL),
            watch: tick(WATCH_INTERVAL),
        };
        let run = move || supervisor.run();
        clock.spawn(Role::Owner, "rungmq-supervisor".to_owned(), Box::new(run))
    }

    fn run(&mut self) {
        loop {
            self.wait();
            if self.retry.is_due() {
                self.dial();
            }
            if is_over(&self.publisher_ended) {
                // Before a close only a panic ends the publisher. Without it no delivery can be
                // retried or dead-lettered.
                self.state.lose("the publisher thread has ended");
                return self.give_up();
            }
            if self.watch.try_recv().is_ok() {
                self.services.publisher.kill_stuck_link();
            }
            if self.probe.try_recv().is_ok() {
                self.probe();
            }
            match self.inbox.try_recv() {
                Ok(Command::Notice { number, notice }) if number == self.number => {
                    self.handle_notice(notice);
                }
                Ok(Command::Dialled { number, result }) if number == self.number => match result {
                    Ok(uplink) => self.handle_recovery(uplink),
                    Err(error) => {
                        self.handle_failed_attempt(&format!("no connection to {error}"));
                    }
                },
                Ok(Command::Notice { .. } | Command::Dialled { .. }) | Err(TryRecvError::Empty) => {
                }
                Ok(Command::Close(deadline)) => return self.close(deadline),
                Err(TryRecvError::Disconnected) => return,
            }
            if self.attempts_are_exhausted() {
                return self.give_up();
            }
        }
    }

    /// Blocks until there is something to do.
    fn wait(&self) {
        let mut select = Select::new();
        select.recv(&self.inbox);
        select.recv(&self.retry);
        select.recv(&self.publisher_ended);
        select.recv(&self.watch);
        select.recv(&self.probe);
        threads::ready(select, None);
    }

    /// Makes a call over a link without heartbeats, whose dead peer only an unanswered call shows.
    fn probe(&self) {
        if let Some(Uplink { link, admin }) = &self.uplink
            && link.activity().has_no_heartbeat()
        {
            // The answer does not matter: the admin closes a link that gives none.
            let exchange = Declaration::direct_exchange("amq.direct");
            admin.submit(Operation::Check(exchange), drop);
        }
    }

    fn handle_notice(&mut self, notice: LinkNotice) {
        match notice {
            LinkNotice::Blocked(reason) => debug!("consuming connection blocked: {reason}"),
            LinkNotice::Unblocked => debug!("consuming connection unblocked"),
            LinkNotice::Gone(reason) if self.uplink.is_some() => self.handle_loss(&reason),
            LinkNotice::Gone(reason) => {
                // The link died before its dial was reported. The new number makes the report
                // stale.
                self.number += 1;
                self.handle_failed_attempt(&reason);
            }
        }
    }

    /// Redials immediately, unless the link was lost soon after it came up.
    fn handle_loss(&mut self, reason: &str) {
        warn!("connection lost: {reason}");
        self.state.lose(reason);
        self.services.metrics.lost(&Lost::new(reason));
        self.uplink = None;
        self.down_since = self.services.clock.now();
        let life = self.down_since.saturating_duration_since(self.up_since);
        self.backoff.lasted(life);
        // The report of the dial may still be on its way, and is stale from here on.
        self.number += 1;
        if self.max_attempts == Some(0) {
            return;
        }
        if self.backoff.take_immediate_attempt() {
            self.dial();
        } else {
            self.pause();
        }
    }

    /// Sets the timer of the next attempt.
    fn pause(&mut self) {
        let clock = &self.services.clock;
        let pause = self.backoff.pause(clock.chance());
        let attempt = self.failed_attempts + 1;
        info!("reconnecting in {pause:?} (attempt {attempt})");
        let retrying = Retrying::new(attempt, pause);
        self.services.metrics.retrying(&retrying);
        self.retry = clock.at(later(clock.now(), pause));
    }

    /// Dials on a thread of its own.
    fn dial(&mut self) {
        self.retry = Timer::never();
        self.number += 1;
        let number = self.number;
        let commands = self.commands.clone();
        let dialler = self.dialler.clone();
        let limit = self.services.call_timeout;
        let redial = move || {
            let result = open_uplink(&dialler, limit, number, &commands);
            let _ = commands.send(Command::Dialled { number, result });
        };
        let name = "rungmq-redial".to_owned();
        let spawned = self
            .services
            .clock
            .spawn(Role::Owner, name, Box::new(redial));
        if let Err(error) = spawned {
            warn!("reconnecting failed: {error}");
            self.pause();
        }
    }

    fn handle_recovery(&mut self, uplink: Uplink) {
        self.up_since = self.services.clock.now();
        self.failed_attempts = 0;
        let downtime = self.up_since.saturating_duration_since(self.down_since);
        info!("reconnected after {downtime:?}");
        self.state.recover(&uplink);
        self.services.publisher.reconnect_now();
        self.services.metrics.recovered(&Recovered::new(downtime));
        self.uplink = Some(uplink);
    }

    fn handle_failed_attempt(&mut self, reason: &str) {
        warn!("reconnecting failed: {reason}");
        self.state.lose(reason);
        self.failed_attempts += 1;
        if !self.attempts_are_exhausted() {
            self.pause();
        }
    }

    fn attempts_are_exhausted(&self) -> bool {
        self.uplink.is_none()
            && self
                .max_attempts
                .is_some_and(|max| self.failed_attempts >= max)
    }

    /// Ends the connection without a drain: there is no link to settle anything over.
    fn give_up(&self) {
        let attempts = self.failed_attempts;
        let reason = match self.state.phase() {
            Phase::Down(reason) => format!("{reason} (given up after {attempts} attempts)"),
            _ => format!("given up after {attempts} attempts"),
        };
        warn!("connection given up: {reason}");
        for consumer in self.state.consumers() {
            consumer.stop(Deadline::within(Duration::ZERO));
        }
        self.services.publisher.stop(Duration::ZERO);
        self.sockets.kill_all();
        self.state.end(Phase::GaveUp(reason), None);
    }

    fn close(&self, deadline: Deadline) {
        let shutdown = Shutdown {
            commands: &self.inbox,
            state: &self.state,
            publisher: &self.services.publisher,
            publisher_ended: &self.publisher_ended,
            uplink: self.uplink.as_ref(),
            sockets: &self.sockets,
        };
        shutdown.close(deadline);
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
    use crate::metrics::Metrics;
    use crate::publisher::{Publisher, PublisherSettings};
    use crate::time::clock::SystemClock;
    use crate::transport::{
        Activity, Channel, Dialled, Failure, Gone, KillSwitch, Link, LinkEvent, Transport,
    };
    use crossbeam_channel::{after, bounded, unbounded};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A transport whose every second link is dead before the supervisor takes it.
    #[derive(Debug, Default)]
    struct FlakyTransport {
        /// Written by the dialling threads and read by the test. It orders nothing else.
        dials: AtomicUsize,
    }

    #[derive(Debug)]
    struct FakeLink(Receiver<()>);

    impl Transport for FlakyTransport {
        fn dial(&self, _limit: Instant, armed: &dyn Fn(KillSwitch)) -> Result<Dialled, String> {
            let (alive, life) = bounded::<()>(0);
            let alive = Arc::new(parking_lot::Mutex::new(Some(alive)));
            let kill = KillSwitch::new(move || drop(alive.lock().take()));
            if self.dials.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
                kill.throw();
            }
            armed(kill.clone());
            Ok(Dialled {
                link: Box::new(FakeLink(life)),
                kill,
                frame_max: 4096,
                activity: Activity::new(Duration::ZERO),
            })
        }

        fn address(&self) -> String {
            "nowhere".to_owned()
        }
    }

    impl Link for FakeLink {
        fn open_channel(&mut self) -> Result<Box<dyn Channel>, Failure> {
            Err(Failure::NoChannelLeft)
        }

        fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize {
            select.recv(&self.0)
        }

        fn next_event(&self) -> Result<Option<LinkEvent>, Gone> {
            match self.0.try_recv() {
                Err(error) if error.is_disconnected() => Err(Gone),
                _ => Ok(None),
            }
        }

        fn close(self: Box<Self>) -> Result<(), String> {
            Err("it was cut".to_owned())
        }
    }

    /// Starts a supervisor over `transport`.
    fn start(transport: Arc<FlakyTransport>, limit: Duration) -> ConnectionState {
        let clock = SystemClock::shared();
        let sockets = Sockets::default();
        let dialler = Dialler::new(vec![transport], limit, sockets.clone(), clock.clone());
        let dialler = Arc::new(dialler);
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(10));
        let (publisher, publisher_ended) = Publisher::start(PublisherSettings {
            clock: clock.clone(),
            dialler: dialler.clone(),
            metrics: Metrics::default(),
            confirm_timeout: limit,
            connect_timeout: limit,
            backoff,
            view: Arc::default(),
            writing: Arc::default(),
        })
        .unwrap();
        let commands = unbounded();
        let uplink = open_uplink(&dialler, limit, 0, &commands.0).unwrap();
        let state = ConnectionState::new(commands.0.clone(), uplink.clone(), clock.clone());
        let settings = SupervisorSettings {
            commands,
            state: state.clone(),
            services: Services {
                publisher,
                clock,
                metrics: Metrics::default(),
                call_timeout: limit,
            },
            dialler,
            sockets,
            publisher_ended,
            backoff,
            max_attempts: None,
        };
        Supervisor::start(settings, uplink).unwrap();
        state
    }

    #[test]
    fn link_dead_on_arrival_counts_as_failed_attempt() {
        const ROUNDS: usize = 60;
        let limit = Duration::from_secs(10);
        let transport = Arc::new(FlakyTransport::default());
        let state = start(transport.clone(), limit);
        let too_late = after(limit);
        for round in 0..ROUNDS {
            let living = loop {
                let known = state.uplink().ok();
                match known.filter(|uplink| !uplink.link.is_gone()) {
                    Some(uplink) if transport.dials.load(Ordering::SeqCst) == 2 * round + 1 => {
                        break uplink;
                    }
                    _ => {}
                }
                crossbeam_channel::select! {
                    recv(too_late) -> _ => {
                        panic!("round {round}: {:?}, {transport:?}", state.phase())
                    }
                    recv(after(Duration::from_millis(2))) -> _ => {}
                }
            };
            if round + 1 < ROUNDS {
                living.link.kill();
            }
        }
        assert_eq!(state.phase(), Phase::Up);
        state
            .close(Deadline::within(limit))
            .expect("nothing is left behind");
    }
}
