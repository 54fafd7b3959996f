//! Declaring what belongs together, and what to make of the broker's refusals.

use super::{Admin, Operation};
use crate::declaration::Declaration;
use crate::error::Error;
use log::warn;

impl Admin {
    /// Declares everything in order. What this user may not declare only has to stand, and bindings, which cannot be asked
    /// for, are named in one warning; `who` says for whom.
    ///
    /// A 404 to a declaration means that the queue exists on a cluster node that is down. That is an error for `sources` and a
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
            match self.call(Operation::Declare(declaration.clone())) {
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
}

/// Only a node that is down answers the declaration of a queue with 404; its binding then gets the same answer.
fn may_be_down(declaration: &Declaration, sources: &[&str], down: &[Declaration]) -> bool {
    match declaration {
        Declaration::Exchange { .. } => false,
        Declaration::Queue { name, .. } => !sources.contains(&name.as_str()),
        Declaration::Binding { queue, .. } => down
            .iter()
            .any(|down| matches!(down, Declaration::Queue { name, .. } if name == queue)),
    }
}
