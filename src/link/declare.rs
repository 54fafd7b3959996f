//! Declares sets of objects, and interprets the broker's refusals.

use super::{Admin, Operation};
use crate::error::Error;
use crate::topology::declaration::Declaration;
use crate::transport::Failure;
use log::warn;

impl Admin {
    /// Declares everything in order. `purpose` names the caller's action in the warning.
    ///
    /// What this user may not declare has to exist. One warning lists it, with the bindings, which
    /// cannot be checked.
    ///
    /// Before RabbitMQ 4, a 404 to a declaration means that the queue is on a cluster node that is
    /// down. That is an error for `sources` and a warning for every other queue, which comes back
    /// with its node. Those queues are returned.
    pub(crate) fn declare_all(
        &self,
        declarations: &[Declaration],
        sources: &[&str],
        purpose: &str,
    ) -> Result<Vec<Declaration>, Error> {
        self.declare_each(declarations, sources, purpose, false)
    }

    /// Declares again what has existed before.
    ///
    /// An object that this user may not declare and that a check does not find may then be on a
    /// cluster node that is down. It is returned with the others that are, instead of an error.
    pub(crate) fn declare_again(
        &self,
        declarations: &[Declaration],
        purpose: &str,
    ) -> Result<Vec<Declaration>, Error> {
        self.declare_each(declarations, &[], purpose, true)
    }

    fn declare_each(
        &self,
        declarations: &[Declaration],
        sources: &[&str],
        purpose: &str,
        existed_before: bool,
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
                    Err(missing) if existed_before && may_be_down && is_out_of_reach(&missing) => {
                        warn!(
                            "{declaration} is gone or on a cluster node that is down, and this \
                             user may not declare it: {missing}"
                        );
                        down.push(declaration.clone());
                    }
                    Err(missing) => return Err(missing_error(declaration, failure, missing)),
                }
            } else {
                let action = format!("{declaration} could not be declared");
                return Err(Error::broker(action, failure));
            }
        }
        if !unverified.is_empty() {
            let unverified = unverified.join("; ");
            warn!(
                "{purpose} without permission to declare; everything exists, except for bindings, \
                 which cannot be checked: {unverified}"
            );
        }
        Ok(down)
    }

    /// Declares one object, and checks it if it is a source: not every version of RabbitMQ answers
    /// a declaration with the fact that the node of the queue is down.
    fn declare(&self, declaration: &Declaration, sources: &[&str]) -> Result<(), Failure> {
        self.call(Operation::Declare(declaration.clone()))?;
        if is_one_of(sources, declaration) {
            self.call(Operation::Check(declaration.clone()))?;
        }
        Ok(())
    }
}

/// Whether a check failed as it does for a queue on a cluster node that is down: with a 404 before
/// RabbitMQ 4, and without an answer for more than a minute since then.
fn is_out_of_reach(failure: &Failure) -> bool {
    failure.is_not_found() || *failure == Failure::TimedOut
}

/// The error for an object that may not be declared. `refused` answered the declaration, `missing`
/// the check.
fn missing_error(declaration: &Declaration, refused: Failure, missing: Failure) -> Error {
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

/// Whether a 404 to this declaration means a cluster node that is down. The broker answers the
/// declaration of a queue with 404 only then, and so it answers the queue's binding.
fn may_be_down(declaration: &Declaration, sources: &[&str], down: &[Declaration]) -> bool {
    match declaration {
        Declaration::Exchange { .. } => false,
        Declaration::Queue { .. } => !is_one_of(sources, declaration),
        Declaration::Binding { queue, .. } => down
            .iter()
            .any(|down| matches!(down, Declaration::Queue { name, .. } if name == queue)),
    }
}
