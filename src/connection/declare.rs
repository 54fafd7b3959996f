//! Declaring topologies and ladders over a connection.

use super::Connection;
use crate::error::Error;
use crate::retry::RetryLadder;
use crate::topology::declaration::Declaration;
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
        let sources: Vec<&str> = self.queue_names().collect();
        connection.declare(plan.declarations(), &sources)
    }
}

impl RetryLadder {
    /// Declares the retry exchange, the rungs, and the binding that brings messages home. The source queue must exist.
    ///
    /// # Errors
    ///
    /// As [`Topology::apply`], but for [`Error::Topology`].
    pub fn declare(&self, connection: &Connection) -> Result<(), Error> {
        connection.declare(&retry_share(self.source(), self), &[])
    }
}

impl Connection {
    fn declare(&self, declarations: &[Declaration], sources: &[&str]) -> Result<(), Error> {
        let admin = self.0.core.status.uplink()?.admin;
        admin.declare_all(declarations, sources, "a topology is applied")?;
        Ok(())
    }
}
