//! The publishing link and its channels: opened when something is to be published, replaced, and lost.

use super::Command;
use super::opening::{Opened, confirm_channel, open};
use super::thread::{LANES, PublisherThread, State, Which};
use crate::message::publish::error::{PublishResult, UnknownCause};
use crate::time::instant::later;
use crate::time::threads::Role;
use crate::transport::Failure;
use log::{debug, warn};
use std::time::Instant;

impl PublisherThread {
    /// Opens the publishing link on a thread of its own.
    pub(super) fn open(&mut self) {
        self.number += 1;
        // What an old link said late does not hold for the new one, and can never be taken back.
        self.blocked = None;
        self.state = State::Opening;
        let (number, settings, commands) =
            (self.number, self.settings.clone(), self.commands.clone());
        let opening = move || {
            let opened = open(number, &settings, &commands);
            // A publisher that has ended meanwhile drops the link, which closes it.
            drop(commands.send(Command::Opened(opened)));
        };
        let name = "rungmq-open-publishing".to_owned();
        if let Err(error) = self
            .settings
            .clock
            .spawn(Role::Owner, name, Box::new(opening))
        {
            self.not_opened(&error.to_string());
        }
    }

    pub(super) fn opened(&mut self, opened: Opened) {
        debug!("publishing connection opened");
        self.number = opened.number;
        self.opened_at = self.settings.clock.now();
        self.down = None;
        self.copies.open = Some(opened.copies);
        self.publishes.open = Some(opened.publishes);
        self.trials.open = Some(opened.trials);
        self.state = State::Ready(opened.link);
    }

    pub(super) fn not_opened(&mut self, reason: &str) {
        warn!("no publishing connection: {reason}");
        let not_before = Some(self.after_a_pause());
        self.state = State::Absent { not_before };
        self.refuse_callers(reason);
        self.down = Some(reason.to_owned());
    }

    /// When to try again.
    fn after_a_pause(&mut self) -> Instant {
        let clock = &self.settings.clock;
        later(clock.now(), self.backoff.pause(clock.chance()))
    }

    pub(super) fn try_now(&mut self) {
        self.backoff.reset();
        if let State::Absent { not_before } = &mut self.state {
            *not_before = None;
        }
    }

    /// The channel is gone: because the whole link is, or because the broker closed it over a message. The client library
    /// gives the reason only once: in `met`, when a call has met it already.
    pub(super) fn channel_gone(&mut self, which: Which, met: Option<Failure>) {
        let Some(open) = self.lane(which).open.take() else {
            return;
        };
        let failure = met.or_else(|| open.channel.close().err());
        match failure {
            Some(Failure::Refused { text, .. }) => {
                warn!("the broker closed a publishing channel: {text}");
                if matches!(which, Which::Publishes) {
                    // One of them has been deleted or closed to this user.
                    self.proven.clear();
                }
                for (waiter, since, result) in self.lane(which).channel_closed(&text) {
                    self.answer(waiter, since, result);
                }
                self.reopen(which);
            }
            Some(failure) => self.link_failed(&failure.into_reason()),
            None => self.link_failed("a publishing channel ended"),
        }
    }

    pub(super) fn replace_channel(&mut self, which: Which, why: &str) {
        warn!("a publishing channel is replaced: {why}");
        for (waiter, since) in self.lane(which).lose() {
            self.answer(
                waiter,
                since,
                PublishResult::Unknown(UnknownCause::Lost(why.to_owned())),
            );
        }
        self.reopen(which);
    }

    pub(super) fn reopen(&mut self, which: Which) {
        let State::Ready(link) = &self.state else {
            return;
        };
        match confirm_channel(link, self.settings.connect_timeout) {
            Ok(channel) => self.lane(which).open = Some(channel),
            Err(failure) => self.link_failed(&failure.into_reason()),
        }
    }

    fn link_failed(&mut self, reason: &str) {
        if let State::Ready(link) = &self.state {
            link.kill();
        }
        self.lost(reason);
    }

    /// The link is gone: what was written has no answer, what was not written waits for the next link.
    pub(super) fn lost(&mut self, reason: &str) {
        if !matches!(self.state, State::Ready(_)) {
            return;
        }
        self.receive();
        let cause = UnknownCause::Lost(reason.to_owned());
        for which in LANES {
            for (waiter, since) in self.lane(which).lose() {
                self.answer(waiter, since, PublishResult::Unknown(cause.clone()));
            }
        }
        self.proven.clear();
        self.refuse_callers(&format!("the connection was lost: {reason}"));
        self.blocked = None;
        // What that link still has to say comes too late, and must not be taken for the next one's.
        self.number += 1;
        self.down = Some(reason.to_owned());
        let life = self.settings.clock.now();
        let life = life.saturating_duration_since(self.opened_at);
        self.backoff.lasted(life);
        let not_before = (!self.backoff.take_immediate_attempt()).then(|| self.after_a_pause());
        self.state = State::Absent { not_before };
    }
}
