//! What a consumer sees to on the broker before it subscribes: its source queue is there, its own share is declared.

use crate::error::Error;
use crate::link::{Admin, Operation};
use crate::message::headers::Headers;
use crate::retry::RetryLadder;
use crate::topology::consumer_share;
use crate::topology::declaration::Declaration;

/// Checks the source queue: a consumer never declares it.
pub(crate) fn check_source(admin: &Admin, queue: &str) -> Result<(), Error> {
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

/// Declares the consumer's share, `again` when it has consumed before. Returns what is on a cluster node that is down: it
/// comes back with the node.
pub(crate) fn declare(
    admin: &Admin,
    queue: &str,
    ladder: &RetryLadder,
    again: bool,
) -> Result<Vec<Declaration>, Error> {
    let share = consumer_share(queue, ladder);
    let who = format!("consuming {queue:?}");
    if again {
        admin.declare_again(&share, &who)
    } else {
        admin.declare_all(&share, &[], &who)
    }
}
