//! The confirms and returns of one amiquip channel.

use super::channel::returned;
use crate::message::delivery::Returned;
use crate::transport::{Confirm, Confirms, Gone};
use crossbeam_channel::{Receiver, Select, TryRecvError};
use std::fmt;

/// Both listeners stay for as long as the channel: without one amiquip logs whole messages.
pub(super) struct AmqpConfirms {
    pub(super) confirms: Receiver<amiquip::Confirm>,
    pub(super) returns: Receiver<amiquip::Return>,
}

impl fmt::Debug for AmqpConfirms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AmqpConfirms")
    }
}

impl Confirms for AmqpConfirms {
    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize {
        select.recv(&self.confirms)
    }

    fn next_confirm(&self) -> Result<Option<Confirm>, Gone> {
        match self.confirms.try_recv() {
            Ok(amiquip::Confirm::Ack(confirm)) => Ok(Some(Confirm {
                tag: confirm.delivery_tag,
                multiple: confirm.multiple,
                ack: true,
            })),
            Ok(amiquip::Confirm::Nack(confirm)) => Ok(Some(Confirm {
                tag: confirm.delivery_tag,
                multiple: confirm.multiple,
                ack: false,
            })),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Gone),
        }
    }

    fn next_return(&self) -> Option<Returned> {
        self.returns.try_recv().ok().map(returned)
    }
}
