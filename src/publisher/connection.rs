//! The publishing connection and its channels: opened on demand, replaced, and lost.

use super::channel::{ChannelKind, ConfirmChannel};
use super::thread::PublisherThread;
use super::{PublisherCommand, PublisherSettings, blocked_text};
use crate::link::{Link, LinkNotice};
use crate::message::publish::error::{PublishResult, UnknownCause};
use crate::time::instant::{later, monotonic};
use crate::time::threads::Role;
use crate::transport::Failure;
use crossbeam_channel::Sender;
use log::{debug, warn};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The state of the publishing connection.
pub(super) enum LinkState {
    /// Not needed yet, or lost. The next message opens it, but not before this instant.
    Absent {
        not_before: Option<Instant>,
    },
    /// A thread is opening it.
    Opening,
    Ready(Arc<Link>),
}

impl PublisherThread {
    /// Handles a notice of the present link.
    pub(super) fn notice(&mut self, notice: LinkNotice) {
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

    /// Opens the publishing connection on a thread of its own.
    pub(super) fn open(&mut self) {
        self.number += 1;
        // A `Blocked` of an old link does not hold for the new one, and no `Unblocked` would
        // follow.
        self.blocked = None;
        self.state = LinkState::Opening;
        let (number, settings, commands) =
            (self.number, self.settings.clone(), self.commands.clone());
        let opening = move || {
            let opened = open(number, &settings, &commands);
            // When the publisher has ended meanwhile, the link is dropped with the message, which
            // closes it.
            let _ = commands.send(PublisherCommand::Opened(opened));
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

    /// Takes over the opened connection.
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

    /// Schedules the next attempt, and refuses callers until it succeeds.
    pub(super) fn not_opened(&mut self, reason: &str) {
        warn!("no publishing connection: {reason}");
        let not_before = Some(self.after_a_pause());
        self.state = LinkState::Absent { not_before };
        self.refuse_callers(reason);
        self.down = Some(reason.to_owned());
    }

    /// When the next attempt is due.
    fn after_a_pause(&mut self) -> Instant {
        let clock = &self.settings.clock;
        later(clock.now(), self.backoff.pause(clock.chance()))
    }

    /// Ends the pause between two attempts.
    pub(super) fn reconnect_now(&mut self) {
        self.backoff.reset();
        if let LinkState::Absent { not_before } = &mut self.state {
            *not_before = None;
        }
    }

    /// Handles the end of a channel: the link is lost, or the broker closed the channel over a
    /// message.
    ///
    /// `met` is the failure that a call has returned already. The client library reports the reason
    /// only once.
    pub(super) fn channel_gone(&mut self, kind: ChannelKind, met: Option<Failure>) {
        // Handled already.
        let Some(open) = self.channel(kind).open.take() else {
            return;
        };
        // Closing a channel that has ended returns the reason.
        let failure = met.or_else(|| open.channel.close().err());
        match failure {
            Some(Failure::Refused { text, .. }) => {
                warn!("the broker closed a publishing channel: {text}");
                if matches!(kind, ChannelKind::Publishes) {
                    // One of the verified exchanges was deleted, or closed to this user.
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

    /// Replaces a channel; what is in flight on it is unknown.
    pub(super) fn replace_channel(&mut self, kind: ChannelKind, why: &str) {
        warn!("replacing a publishing channel: {why}");
        for (waiter, since) in self.channel(kind).take_outstanding() {
            self.answer(
                waiter,
                since,
                PublishResult::Unknown(UnknownCause::Lost(why.to_owned())),
            );
        }
        self.reopen(kind);
    }

    /// Opens a channel of `kind` on the present link.
    pub(super) fn reopen(&mut self, kind: ChannelKind) {
        let LinkState::Ready(link) = &self.state else {
            return;
        };
        match confirm_channel(link, self.settings.connect_timeout) {
            Ok(channel) => self.channel(kind).open = Some(channel),
            Err(failure) => self.link_failed(&failure.into_reason()),
        }
    }

    /// Shuts down the link and handles its loss.
    fn link_failed(&mut self, reason: &str) {
        if let LinkState::Ready(link) = &self.state {
            link.kill();
        }
        self.lost(reason);
    }

    /// Handles the loss of the link: written messages are unknown, unwritten ones wait for the next
    /// link.
    pub(super) fn lost(&mut self, reason: &str) {
        // A loss is noticed by the link and by each channel; the first one counts.
        if !matches!(self.state, LinkState::Ready(_)) {
            return;
        }
        // Rule 6: what was confirmed before the loss is not unknown.
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
        // Late notices of the lost link must not be taken for those of the next one.
        self.number += 1;
        self.down = Some(reason.to_owned());
        let life = self.settings.clock.now();
        let life = life.saturating_duration_since(self.opened_at);
        self.backoff.lasted(life);
        // A link that lasted is replaced without a pause.
        let not_before = (!self.backoff.take_immediate_attempt()).then(|| self.after_a_pause());
        self.state = LinkState::Absent { not_before };
    }
}

/// The publishing connection with its channels, as the opening thread delivers it.
pub(super) struct OpenedLink {
    pub(super) number: u64,
    pub(super) link: Arc<Link>,
    pub(super) copies: ConfirmChannel,
    pub(super) publishes: ConfirmChannel,
    pub(super) unverified: ConfirmChannel,
}

/// Dials, and opens a channel of each kind.
pub(super) fn open(
    number: u64,
    settings: &PublisherSettings,
    commands: &Sender<PublisherCommand>,
) -> Result<OpenedLink, String> {
    let dialled = settings.dialler.dial().map_err(|error| error.to_string())?;
    let commands = commands.clone();
    let notify = move |notice| {
        let _ = commands.send(PublisherCommand::Notice {
            link: number,
            notice,
        });
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

/// Opens a channel in confirm mode.
pub(super) fn confirm_channel(link: &Link, limit: Duration) -> Result<ConfirmChannel, Failure> {
    let channel = link.open_channel(limit)?;
    let confirms = channel.confirms()?;
    Ok(ConfirmChannel { channel, confirms })
}
