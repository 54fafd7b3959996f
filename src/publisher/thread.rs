//! The publisher thread: owns the publishing link's channels, pipelines, and answers.

use super::channel::{Lane, Received};
use super::{
    Command, PublisherSettings, PublisherView, Waiter, Writing, blocked_text, publish_outcome,
};
use crate::link::{Backoff, Link, LinkNotice, Over, OverSignal};
use crate::message::publish::error::{PublishResult, UnknownCause};
use crate::metrics::Published;
use crate::time::deadline::Deadline;
use crate::time::instant::monotonic;
use crate::time::threads::{self, Role, SpawnError};
use crossbeam_channel::{Receiver, Select, Sender};
use log::{debug, warn};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a connection that has fallen silent is looked at.
const SILENCE_LOOK: Duration = Duration::from_millis(200);

pub(super) enum State {
    /// Not needed yet, or lost: the next message opens it, not before the instant.
    Absent {
        not_before: Option<Instant>,
    },
    Opening,
    Ready(Arc<Link>),
}

pub(super) fn start(
    inbox: Receiver<Command>,
    commands: Sender<Command>,
    settings: Arc<PublisherSettings>,
) -> Result<OverSignal, SpawnError> {
    let (over, ended) = Over::new();
    let mut publisher = PublisherThread {
        copies: Lane::new(settings.confirm_timeout),
        publishes: Lane::new(settings.confirm_timeout),
        trials: Lane::one_at_a_time(settings.confirm_timeout),
        proven: HashSet::new(),
        backoff: settings.backoff,
        inbox,
        commands,
        state: State::Absent { not_before: None },
        number: 0,
        opened_at: settings.clock.now(),
        down: None,
        blocked: None,
        stopping: None,
        settings,
    };
    let clock = publisher.settings.clock.clone();
    let run = move || {
        publisher.run();
        drop(over);
    };
    clock.spawn(Role::Owner, "rungmq-publisher".to_owned(), Box::new(run))?;
    Ok(ended)
}

pub(super) struct PublisherThread {
    pub(super) settings: Arc<PublisherSettings>,
    pub(super) inbox: Receiver<Command>,
    pub(super) commands: Sender<Command>,
    pub(super) state: State,
    /// Counts the links, so that a late notice of an old one changes nothing.
    pub(super) number: u64,
    pub(super) backoff: Backoff,
    pub(super) opened_at: Instant,
    /// Why there is no link although there was one: callers are refused until it is back.
    pub(super) down: Option<String>,
    pub(super) blocked: Option<(String, Instant)>,
    pub(super) copies: Lane,
    pub(super) publishes: Lane,
    /// Callers' publishes to an exchange that may not exist, or not be open to this user: that closes the channel, and must
    /// cost nobody else anything. One at a time, until one has been answered.
    pub(super) trials: Lane,
    pub(super) proven: HashSet<String>,
    pub(super) stopping: Option<Deadline>,
}

impl PublisherThread {
    fn run(&mut self) {
        loop {
            self.wait();
            // Whoever was woken together hands over together: fewer and larger batches.
            std::thread::yield_now();
            while let Ok(command) = self.inbox.try_recv() {
                self.obey(command);
            }
            self.watched(Self::receive);
            self.watched(Self::expire);
            self.watched(Self::write);
            self.show();
            if self.is_finished() {
                break;
            }
        }
        self.end();
    }

    /// Blocks until there is something to do.
    fn wait(&self) {
        let mut select = Select::new();
        select.recv(&self.inbox);
        for lane in [&self.copies, &self.publishes, &self.trials] {
            if let Some(open) = &lane.open {
                open.confirms.watch(&mut select);
            }
        }
        let retry = match self.state {
            State::Absent {
                not_before: Some(instant),
            } if self.is_needed() => Some(self.settings.clock.at(instant)),
            _ => None,
        };
        if let Some(retry) = &retry {
            select.recv(retry);
        }
        let silence = self
            .copies
            .waits_for_silence()
            .then(|| monotonic() + SILENCE_LOOK);
        // While the broker has blocked the connection nothing happens at a copy's limit.
        let copies = self.copies.next_limit().filter(|_| self.blocked.is_none());
        let limits = [
            silence,
            copies,
            self.publishes.next_limit(),
            self.trials.next_limit(),
            self.stopping.and_then(Deadline::instant),
        ];
        threads::ready(select, limits.into_iter().flatten().min());
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Copy(job) => self.copies.push(job),
            Command::Publish(job) => match self.refusal() {
                Some(reason) => job.waiter.answer(PublishResult::NotSent(reason)),
                None if self.proven.contains(&job.message.exchange) => self.publishes.push(job),
                None => self.trials.push(job),
            },
            Command::LookAgain => {}
            Command::TryNow => self.try_now(),
            Command::Opened(Ok(opened)) => self.opened(opened),
            Command::Opened(Err(reason)) => self.not_opened(&reason),
            Command::Notice { link, notice } if link == self.number => self.notice(notice),
            Command::Notice { .. } => {}
            Command::Stop { within } => self.stopping = Some(Deadline::within(within)),
        }
    }

    fn notice(&mut self, notice: LinkNotice) {
        match notice {
            LinkNotice::Blocked(reason) => {
                warn!("{}", blocked_text(&reason));
                self.refuse_callers(&blocked_text(&reason));
                self.blocked = Some((reason, monotonic()));
            }
            LinkNotice::Unblocked => {
                if let Some((_, since)) = self.blocked.take() {
                    self.copies.postpone(since.elapsed());
                }
            }
            LinkNotice::Gone(reason) => self.lost(&reason),
        }
    }

    pub(super) fn refuse_callers(&mut self, reason: &str) {
        let waiting = self.publishes.withdraw(|_| true).into_iter();
        for waiter in waiting.chain(self.trials.withdraw(|_| true)) {
            waiter.answer(PublishResult::NotSent(reason.to_owned()));
        }
    }

    /// Reads confirms and returns on every channel.
    pub(super) fn receive(&mut self) {
        for which in LANES {
            match self.receive_on(which) {
                Received::Nothing => {}
                Received::StrayReturn => {
                    self.replace_channel(which, "a return that matches nothing came")
                }
                Received::Gone => self.channel_gone(which, None),
            }
        }
    }

    fn receive_on(&mut self, which: Which) -> Received {
        let mut answered = Vec::new();
        let received = self
            .lane(which)
            .receive(&mut |waiter, since, result, message| {
                answered.push((waiter, since, result, message.exchange));
            });
        for (waiter, since, result, exchange) in answered {
            self.answer(waiter, since, result);
            if matches!(which, Which::Trials) {
                self.proven(exchange);
            }
        }
        received
    }

    /// An answer came, so that publishing there closes no channel: what waits for that exchange may go with the rest.
    fn proven(&mut self, exchange: String) {
        for job in self.trials.take(|job| job.message.exchange == exchange) {
            self.publishes.push(job);
        }
        self.proven.insert(exchange);
    }

    fn expire(&mut self) {
        let mut late = self.publishes.expire();
        if self.blocked.is_none() {
            late.extend(self.copies.expire());
            // Whatever holds up the answer, the broker would have closed the channel long ago: the next to that exchange need
            // not wait for each other.
            if let Some(exchange) = self.trials.late_exchange() {
                self.proven(exchange);
            }
        }
        late.extend(self.trials.expire());
        // A link that has said nothing since they were written is given up before their messages go back: what is still
        // under way must not arrive after that.
        if let State::Ready(link) = &self.state
            && !late.is_empty()
            && self.blocked.is_none()
            && link.activity().last_read().elapsed() >= self.settings.confirm_timeout
        {
            link.kill();
        }
        for (waiter, since) in late {
            self.answer(waiter, since, PublishResult::Unknown(UnknownCause::Timeout));
        }
        // A broker that reads nothing does not answer the close of a channel either.
        for which in LANES {
            if self.blocked.is_none() && self.lane(which).is_haunted() {
                self.replace_channel(which, "too many publishes have had no answer");
            }
        }
    }

    fn write(&mut self) {
        self.give_back_for_drains();
        if !self.is_needed() {
            return;
        }
        match self.state {
            State::Absent { not_before } => {
                if not_before.is_none_or(|instant| instant <= self.settings.clock.now()) {
                    self.open();
                }
            }
            State::Opening => {}
            State::Ready(_) if self.blocked.is_some() => {}
            State::Ready(_) => {
                for which in LANES {
                    if self.lane(which).is_spent() {
                        debug!("a publishing channel that has refused a message is replaced");
                        self.lane(which).renew();
                        self.reopen(which);
                    }
                    // Again on the new channel: nothing else may come that would wake this thread.
                    while let Err(failure) = self.lane(which).write() {
                        debug!("a publish was not taken: {failure}");
                        // What was confirmed meanwhile is neither unknown nor to be tried again.
                        self.receive_on(which);
                        self.channel_gone(which, Some(failure));
                    }
                }
            }
        }
    }

    /// Does what may block while the broker does not read, so that others can see that it does.
    fn watched(&mut self, work: fn(&mut Self)) {
        if let State::Ready(link) = &self.state {
            *self.settings.writing.lock() = Some(Writing {
                since: monotonic(),
                link: link.clone(),
            });
        }
        work(self);
        self.settings.writing.lock().take();
    }

    /// A drain does not wait for a link that was lost or is blocked: its copies were never written, so their messages go
    /// back. One that was not needed so far is opened for it.
    fn give_back_for_drains(&mut self) {
        let ready = self.blocked.is_none() && self.down.is_none();
        let withdrawn = self.copies.withdraw(|waiter| match waiter {
            Waiter::Consumer { generation, .. } => {
                !generation.is_live() || (!ready && generation.is_draining())
            }
            Waiter::Caller(_) => false,
        });
        for waiter in withdrawn {
            waiter.answer(PublishResult::NotSent(
                "the connection is not ready and the consumer is closing".to_owned(),
            ));
        }
    }

    pub(super) fn answer(&self, waiter: Waiter, since: Instant, result: PublishResult) {
        if matches!(waiter, Waiter::Consumer { .. }) {
            self.settings.metrics.published(&Published::new(
                "",
                publish_outcome(&result),
                since.elapsed(),
            ));
        }
        waiter.answer(result);
    }

    /// Why callers cannot publish now.
    fn refusal(&self) -> Option<String> {
        let blocked = self.blocked.as_ref();
        blocked
            .map(|(reason, _)| blocked_text(reason))
            .or_else(|| Some(format!("the connection is down: {}", self.down.as_ref()?)))
    }

    /// Lets others see what they cannot ask for.
    fn show(&self) {
        let mut view = self.settings.view.lock();
        if self.blocked.is_none() && self.down.is_none() && view.is_ready() {
            return;
        }
        *view = PublisherView {
            blocked: self.blocked.as_ref().map(|(reason, _)| reason.clone()),
            down: self.down.clone(),
            waiting: self.copies.waiting(),
        };
    }

    /// A link that was lost is made again even when nothing waits for it.
    fn is_needed(&self) -> bool {
        self.has_waiting() || self.down.is_some()
    }

    fn has_waiting(&self) -> bool {
        self.copies.has_waiting() || self.publishes.has_waiting() || self.trials.has_waiting()
    }

    fn is_finished(&self) -> bool {
        let idle = !self.has_waiting()
            && !self.copies.has_outstanding()
            && !self.publishes.has_outstanding()
            && !self.trials.has_outstanding();
        self.stopping
            .is_some_and(|deadline| idle || deadline.has_passed())
    }

    fn end(&mut self) {
        let closed = "the connection was closed";
        if let (State::Ready(link), Some(_)) = (&self.state, &self.blocked) {
            // A broker that does not read answers no polite close either.
            link.kill();
        }
        for which in LANES {
            for waiter in self.lane(which).withdraw(|_| true) {
                waiter.answer(PublishResult::NotSent(closed.to_owned()));
            }
            for (waiter, since) in self.lane(which).lose() {
                let cause = UnknownCause::Lost(closed.to_owned());
                self.answer(waiter, since, PublishResult::Unknown(cause));
            }
        }
        if let State::Ready(link) = &self.state {
            link.close();
        }
        while let Ok(command) = self.inbox.try_recv() {
            if let Command::Copy(job) | Command::Publish(job) = command {
                job.waiter.answer(PublishResult::NotSent(closed.to_owned()));
            }
        }
    }

    pub(super) fn lane(&mut self, which: Which) -> &mut Lane {
        match which {
            Which::Copies => &mut self.copies,
            Which::Publishes => &mut self.publishes,
            Which::Trials => &mut self.trials,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Which {
    Copies,
    Publishes,
    Trials,
}

pub(super) const LANES: [Which; 3] = [Which::Copies, Which::Publishes, Which::Trials];
