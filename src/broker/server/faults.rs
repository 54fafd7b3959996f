//! The faults that are injected into a broker.
//!
//! The [`Hub`](super::hub::Hub) owns the set and consults it for every request.

use super::connection::Operation;
use crate::broker::model::refusal::Refusal;
use std::time::Duration;

/// A permission that the user can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Permission {
    /// To declare queues and exchanges, and to bind.
    Declare,
    /// To check whether a queue or an exchange exists.
    Check,
    /// To publish.
    Publish,
    /// To consume and to fetch.
    Consume,
}

/// The point at which all connections are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropPoint {
    /// The next confirm has been sent.
    AfterConfirm,
    /// The next acknowledgement arrives; it does not count.
    BeforeAck,
    /// The next publish is half read; the message is not accepted.
    DuringPublish,
}

/// The active faults.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Nothing is read and nothing is sent.
    pub(crate) frozen: bool,
    /// The node is down.
    pub(crate) stopped: bool,
    /// New connections are refused.
    pub(crate) refusing_connections: bool,
    /// What the broker sends is lost.
    pub(crate) muted: bool,
    /// The reason of the alarm under which publishes are not read.
    pub(crate) alarm: Option<String>,
    /// The delay before a request is read.
    pub(crate) latency: Option<Duration>,
    pub(crate) refused: Vec<Permission>,
    pub(crate) drop_point: Option<DropPoint>,
    /// The drop point was met; the hub drops the connections after the current request.
    drop_now: bool,
}

impl Faults {
    /// Whether times to live run out.
    pub(crate) fn is_running(&self) -> bool {
        !self.frozen && !self.stopped
    }

    /// Whether clients receive nothing, heartbeats included.
    pub(crate) fn is_silent(&self) -> bool {
        self.frozen || self.muted
    }

    /// Fails when new connections are refused.
    pub(crate) fn check_connect(&self) -> Result<(), String> {
        if self.stopped {
            Err("the broker is stopped".to_owned())
        } else if self.refusing_connections {
            Err("the broker refuses connections".to_owned())
        } else {
            Ok(())
        }
    }

    /// Fails when the user lacks the permission for the operation.
    pub(crate) fn check(&self, operation: &Operation) -> Result<(), Refusal> {
        let permission = match operation {
            Operation::Declare(_) => Permission::Declare,
            Operation::Check(_) | Operation::Count(_) => Permission::Check,
            Operation::Publish(_) => Permission::Publish,
            Operation::Consume(_) | Operation::Fetch(_) => Permission::Consume,
            _ => return Ok(()),
        };
        if self.refused.contains(&permission) {
            return Err(Refusal::access_refused("refused by the test"));
        }
        Ok(())
    }

    /// Whether connections are dropped instead of executing the operation; disarms the fault.
    pub(crate) fn drops_before(&mut self, operation: &Operation) -> bool {
        let is_met = matches!(
            (self.drop_point, operation),
            (Some(DropPoint::BeforeAck), Operation::Ack { .. })
                | (Some(DropPoint::DuringPublish), Operation::Publish(_))
        );
        if is_met {
            self.drop_point = None;
        }
        is_met
    }

    pub(crate) fn note_confirm_sent(&mut self) {
        if self.drop_point == Some(DropPoint::AfterConfirm) {
            self.drop_point = None;
            self.drop_now = true;
        }
    }

    /// Whether connections are dropped now; resets the flag.
    pub(crate) fn take_drop(&mut self) -> bool {
        std::mem::take(&mut self.drop_now)
    }
}
