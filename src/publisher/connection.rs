//! The publishing link and its channels: opened when something is to be published, replaced, and lost.

use super::channel::{ChannelKind, ConfirmChannel};
use super::thread::{LinkState, PublisherThread};
use super::{PublisherCommand, PublisherSettings};
use crate::link::Link;
use crate::message::publish::error::{PublishResult, UnknownCause};
use crate::time::instant::later;
use crate::time::threads::Role;
use crate::transport::Failure;
use crossbeam_channel::Sender;
use log::{debug, warn};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl PublisherThread {
    /// Opens the publishing link on a thread of its own.
    pub(super) fn open(&mut self) {
        self.number += 1;
        // What an old link said late does not hold for the new one, and can never be taken back.
        self.blocked = None;
        self.state = LinkState::Opening;
        let (number, settings, commands) =
            (self.number, self.settings.clone(), self.commands.clone());
        let opening = move || {
            let opened = open(number, &settings, &commands);
            // A publisher that has ended meanwhile drops the link, kind closes it.
            drop(commands.send(PublisherCommand::Opened(opened)));
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

    pub(super) fn opened(&mut self, opened: OpenedLink) {
        debug!("publishing connection opened");
        self.number = opened.number;
        self.opened_at = self.settings.clock.now();
        self.down = None;
        self.copies.open = Some(opened.copies);
        self.publishes.open = Some(opened.publishes);
        self.unverified.open = Some(opened.unverified);
        self.state = LinkState::Ready(opened.link);
    }

    pub(super) fn not_opened(&mut self, reason: &str) {
        warn!("no publishing connection: {reason}");
        let not_before = Some(self.after_a_pause());
        self.state = LinkState::Absent { not_before };
        self.refuse_callers(reason);
        self.down = Some(reason.to_owned());
    }

    /// When to try again.
    fn after_a_pause(&mut self) -> Instant {
        let clock = &self.settings.clock;
        later(clock.now(), self.backoff.pause(clock.chance()))
    }

    pub(super) fn reconnect_now(&mut self) {
        self.backoff.reset();
        if let LinkState::Absent { not_before } = &mut self.state {
            *not_before = None;
        }
    }

    /// The channel is gone: because the whole link is, or because the broker closed it over a message. The client library
    /// gives the reason only once: in `met`, when a call has met it already.
    pub(super) fn channel_gone(&mut self, kind: ChannelKind, met: Option<Failure>) {
        let Some(open) = self.channel(kind).open.take() else {
            return;
        };
        let failure = met.or_else(|| open.channel.close().err());
        match failure {
            Some(Failure::Refused { text, .. }) => {
                warn!("the broker closed a publishing channel: {text}");
                if matches!(kind, ChannelKind::Publishes) {
                    // One of them has been deleted or closed to this user.
                    self.verified_exchanges.clear();
                }
                for (waiter, since, result) in self.channel(kind).channel_closed(&text) {
                    self.answer(waiter, since, result);
                }
                self.reopen(kind);
            }
            Some(failure) => self.link_failed(&failure.into_reason()),
            None => self.link_failed("a publishing channel ended"),
        }
    }

    pub(super) fn replace_channel(&mut self, kind: ChannelKind, why: &str) {
        warn!("a publishing channel is replaced: {why}");
        for (waiter, since) in self.channel(kind).take_outstanding() {
            self.answer(
                waiter,
                since,
                PublishResult::Unknown(UnknownCause::Lost(why.to_owned())),
            );
        }
        self.reopen(kind);
    }

    pub(super) fn reopen(&mut self, kind: ChannelKind) {
        let LinkState::Ready(link) = &self.state else {
            return;
        };
        match confirm_channel(link, self.settings.connect_timeout) {
            Ok(channel) => self.channel(kind).open = Some(channel),
            Err(failure) => self.link_failed(&failure.into_reason()),
        }
    }

    fn link_failed(&mut self, reason: &str) {
        if let LinkState::Ready(link) = &self.state {
            link.kill();
        }
        self.lost(reason);
    }

    /// The link is gone: what was written has no answer, what was not written waits for the next link.
    pub(super) fn lost(&mut self, reason: &str) {
        if !matches!(self.state, LinkState::Ready(_)) {
            return;
        }
        self.receive();
        let cause = UnknownCause::Lost(reason.to_owned());
        for kind in ChannelKind::ALL {
            for (waiter, since) in self.channel(kind).take_outstanding() {
                self.answer(waiter, since, PublishResult::Unknown(cause.clone()));
            }
        }
        self.verified_exchanges.clear();
        self.refuse_callers(&format!("the connection was lost: {reason}"));
        self.blocked = None;
        // What that link still has to say comes too late, and must not be taken for the next one's.
        self.number += 1;
        self.down = Some(reason.to_owned());
        let life = self.settings.clock.now();
        let life = life.saturating_duration_since(self.opened_at);
        self.backoff.lasted(life);
        let not_before = (!self.backoff.is_at_once()).then(|| self.after_a_pause());
        self.state = LinkState::Absent { not_before };
    }
}

/// The publishing link as it comes from the thread that opened it.
pub(super) struct OpenedLink {
    pub(super) number: u64,
    pub(super) link: Arc<Link>,
    pub(super) copies: ConfirmChannel,
    pub(super) publishes: ConfirmChannel,
    pub(super) unverified: ConfirmChannel,
}

/// Dials, and opens the channels of every channel.
pub(super) fn open(
    number: u64,
    settings: &PublisherSettings,
    commands: &Sender<PublisherCommand>,
) -> Result<OpenedLink, String> {
    let dialled = settings.dialler.dial().map_err(|error| error.to_string())?;
    let commands = commands.clone();
    let notify = move |notice| {
        drop(commands.send(PublisherCommand::Notice {
            link: number,
            notice,
        }));
    };
    let link = Link::start(dialled, "publish", settings.clock.as_ref(), notify)
        .map_err(|error| error.to_string())?;
    let channel =
        || confirm_channel(&link, settings.connect_timeout).map_err(|failure| failure.to_string());
    Ok(OpenedLink {
        number,
        copies: channel()?,
        publishes: channel()?,
        unverified: channel()?,
        link: link.clone(),
    })
}

pub(super) fn confirm_channel(link: &Link, limit: Duration) -> Result<ConfirmChannel, Failure> {
    let channel = link.open_channel(limit)?;
    let confirms = channel.confirms()?;
    Ok(ConfirmChannel { channel, confirms })
}
