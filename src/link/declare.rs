//! Declaring what belongs together, and what to make of the broker's refusals.

use super::{Admin, Operation};
use crate::declaration::Declaration;
use crate::error::Error;
use crate::transport::Failure;
use log::warn;

impl Admin {
    /// Declares everything in order. What this user may not declare only has to stand, and bindings, which cannot be asked
    /// for, are named in one warning; `who` says for whom.
    ///
    /// A 404 to a declaration means, before RabbitMQ 4, that the queue exists on a cluster node that is down. That is an error for `sources` and a
    /// warning for every other queue, which comes back with its node: those are returned.
    pub(crate) fn declare_all(
        &self,
        declarations: &[Declaration],
        sources: &[&str],
        who: &str,
    ) -> Result<Vec<Declaration>, Error> {
        let mut unverified = Vec::new();
        let mut down = Vec::new();
        for declaration in declarations {
            match self.declare(declaration, sources) {
                Ok(()) => {}
                Err(failure) if failure.is_access_refused() => {
                    self.check_instead(declaration, failure)?;
                    unverified.push(declaration.to_string());
                }
                Err(failure)
                    if failure.is_not_found() && may_be_down(declaration, sources, &down) =>
                {
                    warn!("{declaration} is on a cluster node that is down: {failure}");
                    down.push(declaration.clone());
                }
                Err(failure) => {
                    let action = format!("{declaration} could not be declared");
                    return Err(Error::broker(action, failure));
                }
            }
        }
        if !unverified.is_empty() {
            let unverified = unverified.join("; ");
            warn!(
                "{who} without the right to declare what it needs; it exists, but for bindings that cannot be checked: \
                 {unverified}"
            );
        }
        Ok(down)
    }

    /// A declaration does not tell in every version that its queue is on a node that is down; a check does.
    fn declare(&self, declaration: &Declaration, sources: &[&str]) -> Result<(), Failure> {
        self.call(Operation::Declare(declaration.clone()))?;
        if is_one_of(sources, declaration) {
            self.call(Operation::Check(declaration.clone()))?;
        }
        Ok(())
    }
}

fn is_one_of(queues: &[&str], declaration: &Declaration) -> bool {
    matches!(declaration, Declaration::Queue { name, .. } if queues.contains(&name.as_str()))
}

/// Only for a node that is down is the declaration of a queue answered with 404; its binding then gets the same answer.
fn may_be_down(declaration: &Declaration, sources: &[&str], down: &[Declaration]) -> bool {
    match declaration {
        Declaration::Exchange { .. } => false,
        Declaration::Queue { .. } => !is_one_of(sources, declaration),
        Declaration::Binding { queue, .. } => down
            .iter()
            .any(|down| matches!(down, Declaration::Queue { name, .. } if name == queue)),
    }
}
