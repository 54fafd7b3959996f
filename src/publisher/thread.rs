//! The publisher thread: writes messages, matches confirms, and answers waiters.
//!
//! It owns the channels of the publishing connection. A write blocks for as long as the broker does
//! not read, which the supervisor watches; its other calls to the broker have a limit.

use super::channel::{ChannelKind, ChannelStatus, PublishChannel};
use super::connection::LinkState;
use super::{
    PublisherCommand, PublisherSettings, PublisherView, Waiter, WriteInProgress, blocked_text,
    publish_outcome,
};
use crate::link::{Backoff, Over, OverSignal};
use crate::message::publish::error::{PublishResult, UnknownCause};
use crate::metrics::Published;
use crate::time::deadline::Deadline;
use crate::time::instant::monotonic;
use crate::time::threads::{self, Role, SpawnError};
use crossbeam_channel::{Receiver, Select, Sender};
use log::debug;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a copy is reconsidered that waits for a silent consuming connection.
const SILENCE_RECHECK: Duration = Duration::from_millis(200);

pub(super) fn start(
    inbox: Receiver<PublisherCommand>,
    commands: Sender<PublisherCommand>,
    settings: Arc<PublisherSettings>,
) -> Result<OverSignal, SpawnError> {
    let (over, ended) = Over::new();
    let mut publisher = PublisherThread {
        copies: PublishChannel::new(settings.confirm_timeout),
        publishes: PublishChannel::new(settings.confirm_timeout),
        unverified: PublishChannel::one_at_a_time(settings.confirm_timeout),
        verified_exchanges: HashSet::new(),
        backoff: settings.backoff,
        inbox,
        commands,
        state: LinkState::Absent { not_before: None },
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
    pub(super) inbox: Receiver<PublisherCommand>,
    pub(super) commands: Sender<PublisherCommand>,
    pub(super) state: LinkState,
    /// The number of the present link; notices of earlier links are ignored.
    pub(super) number: u64,
    pub(super) backoff: Backoff,
    pub(super) opened_at: Instant,
    /// Why the link was lost, until there is a new one. Callers are refused meanwhile.
    pub(super) down: Option<String>,
    /// Why and since when the broker has blocked the connection.
    pub(super) blocked: Option<(String, Instant)>,
    pub(super) copies: PublishChannel,
    pub(super) publishes: PublishChannel,
    /// Callers' publishes to exchanges that may not exist or not be open to this user.
    ///
    /// Such a publish closes its channel, so these are written one at a time, apart from all
    /// others, until one to that exchange has been answered.
    pub(super) unverified: PublishChannel,
    /// Exchanges to which a publish was answered, or not in time, on this link.
    pub(super) verified_exchanges: HashSet<String>,
    /// The deadline of a stop.
    pub(super) stopping: Option<Deadline>,
}

impl PublisherThread {
    fn run(&mut self) {
        loop {
            self.wait();
            // Threads that were woken together hand over together, which makes fewer and larger
            // batches.
            std::thread::yield_now();
            while let Ok(command) = self.inbox.try_recv() {
                self.handle_command(command);
            }
            self.with_write_watch(Self::receive);
            self.with_write_watch(Self::expire);
            self.with_write_watch(Self::write);
            self.publish_view();
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
        for channel in [&self.copies, &self.publishes, &self.unverified] {
            if let Some(open) = &channel.open {
                open.confirms.watch(&mut select);
            }
        }
        let retry = match self.state {
            LinkState::Absent {
                not_before: Some(instant),
            } if self.is_needed() => Some(self.settings.clock.at(instant)),
            _ => None,
        };
        if let Some(retry) = &retry {
            select.recv(retry);
        }
        let silence = self
            .copies
            .waits_for_consuming_link()
            .then(|| monotonic() + SILENCE_RECHECK);
        // Copies do not time out while the broker blocks the connection.
        let copies = self.copies.next_limit().filter(|_| self.blocked.is_none());
        let limits = [
            silence,
            copies,
            self.publishes.next_limit(),
            self.unverified.next_limit(),
            self.stopping.and_then(Deadline::instant),
        ];
        threads::ready(select, limits.into_iter().flatten().min());
    }

    fn handle_command(&mut self, command: PublisherCommand) {
        match command {
            PublisherCommand::Copy(job) => self.copies.push(job),
            PublisherCommand::Publish(job) => match self.refusal() {
                Some(reason) => job.waiter.answer(PublishResult::NotSent(reason)),
                None if self.verified_exchanges.contains(&job.message.exchange) => {
                    self.publishes.push(job)
                }
                // Rule 5: a missing exchange closes the channel for every message on it.
                None => self.unverified.push(job),
            },
            PublisherCommand::Wake => {}
            PublisherCommand::ReconnectNow => self.reconnect_now(),
            PublisherCommand::Opened(Ok(opened)) => self.opened(opened),
            PublisherCommand::Opened(Err(reason)) => self.not_opened(&reason),
            PublisherCommand::Notice { link, notice } if link == self.number => self.notice(notice),
            // From an earlier link.
            PublisherCommand::Notice { .. } => {}
            PublisherCommand::Stop { within } => self.stopping = Some(Deadline::within(within)),
        }
    }

    /// Answers callers' unwritten messages as not sent.
    pub(super) fn refuse_callers(&mut self, reason: &str) {
        let waiting = self.publishes.withdraw(|_| true).into_iter();
        for waiter in waiting.chain(self.unverified.withdraw(|_| true)) {
            waiter.answer(PublishResult::NotSent(reason.to_owned()));
        }
    }

    /// Reads confirms and returns on every channel.
    pub(super) fn receive(&mut self) {
        for kind in ChannelKind::ALL {
            match self.receive_on(kind) {
                ChannelStatus::Open => {}
                ChannelStatus::StrayReturn => {
                    self.replace_channel(kind, "a return matched no message in flight")
                }
                ChannelStatus::Gone => self.channel_gone(kind, None),
            }
        }
    }

    fn receive_on(&mut self, kind: ChannelKind) -> ChannelStatus {
        let mut answered = Vec::new();
        let received = self
            .channel(kind)
            .receive(&mut |waiter, since, result, message| {
                answered.push((waiter, since, result, message.exchange));
            });
        for (waiter, since, result, exchange) in answered {
            self.answer(waiter, since, result);
            if matches!(kind, ChannelKind::Unverified) {
                self.verify(exchange);
            }
        }
        received
    }

    /// Marks an exchange as verified: publishing to it was answered and closes no channel. Its
    /// waiting messages move to the common channel.
    fn verify(&mut self, exchange: String) {
        for job in self.unverified.take(|job| job.message.exchange == exchange) {
            self.publishes.push(job);
        }
        self.verified_exchanges.insert(exchange);
    }

    /// Answers the messages whose limit has passed.
    fn expire(&mut self) {
        let mut late = self.publishes.expire();
        if self.blocked.is_none() {
            late.extend(self.copies.expire());
            // The broker would have closed the channel by now if the exchange were missing, so
            // later messages to it need not be written one at a time.
            if let Some(exchange) = self.unverified.timed_out_exchange() {
                self.verify(exchange);
            }
        }
        late.extend(self.unverified.expire());
        // Rule 6: a silent link is shut down before the messages are requeued, so that nothing
        // still under way reaches the broker afterwards.
        if let LinkState::Ready(link) = &self.state
            && !late.is_empty()
            && self.blocked.is_none()
            && link.activity().last_read().elapsed() >= self.settings.confirm_timeout
        {
            link.kill();
        }
        for (waiter, since) in late {
            self.answer(waiter, since, PublishResult::Unknown(UnknownCause::Timeout));
        }
        // While blocked, the broker does not answer the close of a channel either.
        for kind in ChannelKind::ALL {
            if self.blocked.is_none() && self.channel(kind).too_many_timed_out() {
                self.replace_channel(kind, "too many publishes timed out");
            }
        }
    }

    /// Writes what may be written, and opens the connection when it is needed.
    fn write(&mut self) {
        self.withdraw_for_drains();
        if !self.is_needed() {
            return;
        }
        match self.state {
            LinkState::Absent { not_before } => {
                if not_before.is_none_or(|instant| instant <= self.settings.clock.now()) {
                    self.open();
                }
            }
            LinkState::Opening => {}
            LinkState::Ready(_) if self.blocked.is_some() => {}
            LinkState::Ready(_) => {
                for kind in ChannelKind::ALL {
                    if self.channel(kind).needs_new_channel() {
                        debug!("replacing a publishing channel that has nacked a message");
                        self.channel(kind).discard_channel();
                        self.reopen(kind);
                    }
                    // Written again on the new channel: nothing else may come to wake this thread.
                    while let Err(failure) = self.channel(kind).write() {
                        debug!("publish failed: {failure}");
                        // What was confirmed meanwhile is neither unknown nor to be written again.
                        self.receive_on(kind);
                        self.channel_gone(kind, Some(failure));
                    }
                }
            }
        }
    }

    /// Runs a step that may block in a write, and shows it to the supervisor meanwhile.
    fn with_write_watch(&mut self, work: fn(&mut Self)) {
        if let LinkState::Ready(link) = &self.state {
            *self.settings.writing.lock() = Some(WriteInProgress {
                since: monotonic(),
                link: link.clone(),
            });
        }
        work(self);
        self.settings.writing.lock().take();
    }

    /// Withdraws copies that a drain must not wait for.
    ///
    /// Rule 13: a drain does not wait for a connection that is lost or blocked, so its unwritten
    /// copies are given up and their messages requeued. A connection that was not needed so far is
    /// opened for a drain.
    fn withdraw_for_drains(&mut self) {
        // A connection that is only being opened counts as ready.
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

    /// Delivers a result, and counts that of a copy.
    pub(super) fn answer(&self, waiter: Waiter, since: Instant, result: PublishResult) {
        // Callers count their publishes themselves, including the wait.
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

    /// Updates the view of other threads.
    fn publish_view(&self) {
        let mut view = self.settings.view.lock();
        // The common case: ready before and after, so the view is not rebuilt for each batch.
        if self.blocked.is_none() && self.down.is_none() && view.is_ready() {
            return;
        }
        *view = PublisherView {
            blocked: self.blocked.as_ref().map(|(reason, _)| reason.clone()),
            down: self.down.clone(),
            waiting: self.copies.waiting(),
        };
    }

    /// Whether a connection is wanted. A lost one is replaced even when no message waits.
    fn is_needed(&self) -> bool {
        self.has_waiting() || self.down.is_some()
    }

    fn has_waiting(&self) -> bool {
        self.copies.has_waiting() || self.publishes.has_waiting() || self.unverified.has_waiting()
    }

    /// Whether the thread may end after a stop.
    fn is_finished(&self) -> bool {
        // A timed-out message is not waited for.
        let idle = !self.has_waiting()
            && !self.copies.has_outstanding()
            && !self.publishes.has_outstanding()
            && !self.unverified.has_outstanding();
        self.stopping
            .is_some_and(|deadline| idle || deadline.has_passed())
    }

    /// Answers everything that is left, and closes the connection.
    fn end(&mut self) {
        let closed = "the connection was closed";
        if let (LinkState::Ready(link), Some(_)) = (&self.state, &self.blocked) {
            // While blocked, the broker does not answer a close either.
            link.kill();
        }
        for kind in ChannelKind::ALL {
            for waiter in self.channel(kind).withdraw(|_| true) {
                waiter.answer(PublishResult::NotSent(closed.to_owned()));
            }
            for (waiter, since) in self.channel(kind).take_outstanding() {
                let cause = UnknownCause::Lost(closed.to_owned());
                self.answer(waiter, since, PublishResult::Unknown(cause));
            }
        }
        if let LinkState::Ready(link) = &self.state {
            link.close();
        }
        while let Ok(command) = self.inbox.try_recv() {
            if let PublisherCommand::Copy(job) | PublisherCommand::Publish(job) = command {
                job.waiter.answer(PublishResult::NotSent(closed.to_owned()));
            }
        }
    }

    pub(super) fn channel(&mut self, kind: ChannelKind) -> &mut PublishChannel {
        match kind {
            ChannelKind::Copies => &mut self.copies,
            ChannelKind::Publishes => &mut self.publishes,
            ChannelKind::Unverified => &mut self.unverified,
        }
    }
}
