//! Opening the publishing link, on a thread of its own.

use super::channel::ConfirmChannel;
use super::{Command, PublisherSettings};
use crate::link::Link;
use crate::transport::Failure;
use crossbeam_channel::Sender;
use std::sync::Arc;
use std::time::Duration;

/// The publishing link as it comes from the thread that opened it.
pub(super) type Opening = Result<Opened, String>;

pub(super) struct Opened {
    pub(super) number: u64,
    pub(super) link: Arc<Link>,
    pub(super) copies: ConfirmChannel,
    pub(super) publishes: ConfirmChannel,
    pub(super) trials: ConfirmChannel,
}

/// Dials, and opens the channels of every lane.
pub(super) fn open(
    number: u64,
    settings: &PublisherSettings,
    commands: &Sender<Command>,
) -> Opening {
    let dialled = settings.dialler.dial().map_err(|error| error.to_string())?;
    let commands = commands.clone();
    let notify = move |notice| {
        drop(commands.send(Command::Notice {
            link: number,
            notice,
        }));
    };
    let link = Link::start(dialled, "publish", settings.clock.as_ref(), notify)
        .map_err(|error| error.to_string())?;
    let channel =
        || confirm_channel(&link, settings.connect_timeout).map_err(|failure| failure.to_string());
    Ok(Opened {
        number,
        copies: channel()?,
        publishes: channel()?,
        trials: channel()?,
        link: link.clone(),
    })
}

pub(super) fn confirm_channel(link: &Link, limit: Duration) -> Result<ConfirmChannel, Failure> {
    let channel = link.open_channel(limit)?;
    let confirms = channel.confirms()?;
    Ok(ConfirmChannel { channel, confirms })
}
