//! Declaring topologies and ladders over a connection.

use super::Connection;
use crate::declaration::Declaration;
use crate::error::Error;
use crate::link::{Admin, Operation};
use crate::retry::RetryLadder;
use crate::topology::{Topology, retry_share};
use crate::transport::Failure;
use log::warn;

impl Topology {
    /// Declares everything on the broker, in the order of the [plan](Topology::plan). What stands already and is equal
    /// stays as it is, so that every service can apply its topology at every start.
    ///
    /// # Errors
    ///
    /// [`Error::Topology`] with every problem at once when the topology itself is wrong: nothing was sent then.
    /// [`Error::Broker`] for the first declaration that the broker refused, with its name and the broker's words; what was
    /// declared before it stands. A queue or an exchange that this user may not declare (403) and that exists is only
    /// warned of; a binding that the user may not make is an error. [`Error::Timeout`], [`Error::ConnectionLost`] and
    /// [`Error::Closed`].
    pub fn apply(&self, connection: &Connection) -> Result<(), Error> {
        let plan = self.plan()?;
        for warning in plan.warnings() {
            warn!("{warning}");
        }
        connection.declare(plan.declarations())
    }
}

impl RetryLadder {
    /// Declares the retry exchange, the rungs, and the binding that brings messages home. The source queue must exist.
    ///
    /// # Errors
    ///
    /// As [`Topology::apply`], but for [`Error::Topology`].
    pub fn declare(&self, connection: &Connection) -> Result<(), Error> {
        connection.declare(&retry_share(self.source(), self))
    }
}

impl Connection {
    fn declare(&self, declarations: &[Declaration]) -> Result<(), Error> {
        let admin = self.0.core.status.uplink()?.admin;
        declarations
            .iter()
            .try_for_each(|declaration| declare(&admin, declaration))
    }
}

fn declare(admin: &Admin, declaration: &Declaration) -> Result<(), Error> {
    let refused = match admin.call(Operation::Declare(declaration.clone())) {
        Ok(()) => return Ok(()),
        Err(failure) => failure,
    };
    let error =
        |failure: Failure| Error::broker(format!("{declaration} could not be declared"), failure);
    let may_stand = refused.is_access_refused();
    let is_binding = matches!(declaration, Declaration::Binding { .. });
    if may_stand && !is_binding && admin.call(Operation::Check(declaration.clone())).is_ok() {
        warn!("{declaration} stands, but this user may not declare it: {refused}");
        return Ok(());
    }
    Err(error(refused))
}
