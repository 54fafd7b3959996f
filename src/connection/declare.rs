//! Declares topologies and retry ladders over a connection.

use super::Connection;
use crate::error::Error;
use crate::retry::RetryLadder;
use crate::topology::declaration::Declaration;
use crate::topology::{Topology, retry_share};
use log::warn;

impl Topology {
    /// Declares everything on the broker, in the order of the [plan](Topology::plan).
    ///
    /// What already exists with the same arguments stays as it is, so a service can apply its
    /// topology at every start. A user without permission to declare can do so, too, when
    /// everything exists already: a warning then lists what could not be declared.
    ///
    /// # Errors
    ///
    /// [`Error::Topology`] lists every problem of the topology itself; nothing was sent then.
    /// [`Error::Broker`] is the first declaration that the broker refused, with its name and the
    /// broker's reply; earlier declarations stay in place. [`Error::Timeout`],
    /// [`Error::ConnectionLost`] and [`Error::Closed`] as for every call.
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
    /// Declares the retry exchange, the rungs (the retry queues), and the binding that returns
    /// messages to the source queue, which must exist.
    ///
    /// # Errors
    ///
    /// Those of [`Topology::apply`] except [`Error::Topology`].
    pub fn declare(&self, connection: &Connection) -> Result<(), Error> {
        connection.declare(&retry_share(self.source(), self), &[])
    }
}

impl Connection {
    fn declare(&self, declarations: &[Declaration], sources: &[&str]) -> Result<(), Error> {
        let admin = self.0.core.state.uplink()?.admin;
        admin.declare_all(declarations, sources, "applying a topology")?;
        Ok(())
    }
}
