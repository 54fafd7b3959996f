//! What a consumer sees to on the broker before it subscribes: its source queue is there, its own share is declared.

use crate::declaration::Declaration;
use crate::error::Error;
use crate::headers::Headers;
use crate::link::{Admin, Operation};
use crate::retry::RetryLadder;
use crate::topology::consumer_share;
use log::warn;

/// Checks the source queue: a consumer never declares it.
pub(super) fn check_source(admin: &Admin, queue: &str) -> Result<(), Error> {
    let source = Declaration::durable_queue(queue, Headers::new());
    admin.call(Operation::Check(source)).map_err(|failure| {
        let what = if failure.is_not_found() {
            format!(
                "the queue {queue:?} does not exist; a consumer never declares its source queue"
            )
        } else {
            format!("the queue {queue:?} could not be checked")
        };
        Error::broker(what, failure)
    })
}

/// Declares the consumer's share, or, without the right to, makes sure that it stands.
///
/// A rung or dead-letter queue on a cluster node that is down is a warning: it comes back with the node.
pub(super) fn declare(admin: &Admin, queue: &str, ladder: &RetryLadder) -> Result<(), Error> {
    let mut unverified = Vec::new();
    let mut down = Vec::new();
    for declaration in consumer_share(queue, ladder) {
        match admin.call(Operation::Declare(declaration.clone())) {
            Ok(()) => {}
            Err(failure) if failure.is_access_refused() => {
                admin.check_instead(&declaration, failure)?;
                unverified.push(declaration.to_string());
            }
            Err(failure) if failure.is_not_found() && may_be_down(&declaration, &down) => {
                warn!("{declaration} is on a cluster node that is down: {failure}");
                if let Declaration::Queue { name, .. } = declaration {
                    down.push(name);
                }
            }
            Err(failure) => {
                return Err(Error::broker(
                    format!("{declaration} could not be declared"),
                    failure,
                ));
            }
        }
    }
    if !unverified.is_empty() {
        warn!(
            "consuming {queue:?} without the right to declare what it needs; it exists, but for bindings that cannot be \
             checked: {}",
            unverified.join("; ")
        );
    }
    Ok(())
}

/// Only a node that is down answers the declaration of a queue with 404; its binding then gets the same answer.
fn may_be_down(declaration: &Declaration, down: &[String]) -> bool {
    match declaration {
        Declaration::Exchange { .. } => false,
        Declaration::Queue { .. } => true,
        Declaration::Binding { queue, .. } => down.contains(queue),
    }
}
