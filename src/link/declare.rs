//! Declaring what belongs together, and what to make of the broker's refusals.

use super::{Admin, Operation};
use crate::error::Error;
use crate::topology::declaration::Declaration;
use crate::transport::Failure;
use log::warn;

impl Admin {
    /// Declares everything in order. What this user may not declare only has to stand, and bindings, which cannot be asked
    /// for, are named in one warning; `who` says for whom.
    ///
    /// A 404 to a declaration means, before RabbitMQ 4, that the queue exists on a cluster node that is down. That is an error
    /// for `sources` and a warning for every other queue, which comes back with its node: those are returned.
    pub(crate) fn declare_all(
        &self,
        declarations: &[Declaration],
        sources: &[&str],
        who: &str,
    ) -> Result<Vec<Declaration>, Error> {
        self.declare_each(declarations, sources, who, false)
    }

    /// The same for what has stood before. What this user may not declare and what does not show may then be on a cluster node
    /// that is down as well: that is no reason to do nothing at all until it is back.
    pub(crate) fn declare_again(
        &self,
        declarations: &[Declaration],
        who: &str,
    ) -> Result<Vec<Declaration>, Error> {
        self.declare_each(declarations, &[], who, true)
    }

    fn declare_each(
        &self,
        declarations: &[Declaration],
        sources: &[&str],
        who: &str,
        have_stood: bool,
    ) -> Result<Vec<Declaration>, Error> {
        let mut unverified = Vec::new();
        let mut down = Vec::new();
        for declaration in declarations {
            let Err(failure) = self.declare(declaration, sources) else {
                continue;
            };
            let may_be_down = may_be_down(declaration, sources, &down);
            if failure.is_not_found() && may_be_down {
                warn!("{declaration} is on a cluster node that is down: {failure}");
                down.push(declaration.clone());
            } else if failure.is_access_refused() {
                match self.call(Operation::Check(declaration.clone())) {
                    Ok(()) => unverified.push(declaration.to_string()),
                    Err(missing) if have_stood && may_be_down && is_out_of_reach(&missing) => {
                        warn!(
                            "{declaration} is gone or on a cluster node that is down, and this user may not declare it: \
                             {missing}"
                        );
                        down.push(declaration.clone());
                    }
                    Err(missing) => return Err(not_standing(declaration, failure, missing)),
                }
            } else {
                let action = format!("{declaration} could not be declared");
                return Err(Error::broker(action, failure));
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

/// What a check of a queue on a cluster node that is down brings: a 404 before RabbitMQ 4, and since then nothing for more
/// than a minute.
fn is_out_of_reach(failure: &Failure) -> bool {
    failure.is_not_found() || *failure == Failure::TimedOut
}

/// `refused` is the broker's answer to the declaration, `missing` to the check.
fn not_standing(declaration: &Declaration, refused: Failure, missing: Failure) -> Error {
    if missing.is_not_found() {
        let action = format!("{declaration} does not exist, and this user may not declare it");
        Error::broker(action, refused)
    } else {
        Error::broker(format!("{declaration} could not be checked"), missing)
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
