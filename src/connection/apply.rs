//! Declaring topologies and ladders over a connection.

use super::Connection;
use crate::declaration::Declaration;
use crate::error::Error;
use crate::link::Operation;
use crate::retry::RetryLadder;
use crate::topology::{Topology, retry_share};
use log::warn;

impl Topology {
    /// Declares everything on the broker, in the order of the [plan](Topology::plan). What stands already and is equal
    /// stays as it is, so that every service can apply its topology at every start. A user without the right to declare
    /// can do so too: where everything stands already, a warning says what was not declared.
    ///
    /// # Errors
    ///
    /// [`Error::Topology`] with every problem at once when the topology itself is wrong: nothing was sent then.
    /// [`Error::Broker`] for the first declaration that the broker refused, with its name and the broker's words; what was
    /// declared before it stands. [`Error::Timeout`], [`Error::ConnectionLost`] and [`Error::Closed`].
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
        let mut unverified = Vec::new();
        for declaration in declarations {
            match admin.call(Operation::Declare(declaration.clone())) {
                Ok(()) => {}
                Err(failure) if failure.is_access_refused() => {
                    admin.check_instead(declaration, failure)?;
                    unverified.push(declaration.to_string());
                }
                Err(failure) => {
                    let what = format!("{declaration} could not be declared");
                    return Err(Error::broker(what, failure));
                }
            }
        }
        if !unverified.is_empty() {
            warn!(
                "this user may not declare what it applies; it exists, but for bindings that cannot be checked: {}",
                unverified.join("; ")
            );
        }
        Ok(())
    }
}
