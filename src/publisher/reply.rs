//! How a caller of `publish` waits for its result.

use crate::message::publish::error::{PublishResult, UnknownCause};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Instant;

/// Shared by a caller and the publisher.
///
/// The lock also decides the race between a caller that gives up and a publisher that is about to
/// write: exactly one of them leaves `Queued`. Rule 19.
#[derive(Debug)]
struct ReplySlot {
    /// Paired with `answered`, which is notified when it becomes `Answered`.
    state: Mutex<ReplyState>,
    answered: Condvar,
}

#[derive(Debug)]
enum ReplyState {
    Queued,
    Written,
    /// The caller gave up before the write.
    Withdrawn,
    Answered(PublishResult),
}

/// The caller's end.
#[derive(Debug)]
pub(super) struct Pending(Arc<ReplySlot>);

/// The publisher's end. Dropped without an answer, the result is unknown.
#[derive(Debug)]
pub(super) struct Reply(Arc<ReplySlot>);

/// The two ends of one reply.
pub(super) fn reply() -> (Reply, Pending) {
    let slot = Arc::new(ReplySlot {
        state: Mutex::new(ReplyState::Queued),
        answered: Condvar::new(),
    });
    (Reply(slot.clone()), Pending(slot))
}

impl Reply {
    /// Claims the message for the write. False when the caller has given up.
    pub(super) fn claim(&self) -> bool {
        let mut state = self.0.state.lock();
        let queued = matches!(*state, ReplyState::Queued);
        if queued {
            *state = ReplyState::Written;
        }
        queued
    }

    /// Delivers the result.
    pub(super) fn answer(self, result: PublishResult) {
        self.put(result);
    }

    fn put(&self, result: PublishResult) {
        let mut state = self.0.state.lock();
        if matches!(*state, ReplyState::Queued | ReplyState::Written) {
            *state = ReplyState::Answered(result);
            // A reply has one waiter.
            self.0.answered.notify_one();
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // Without effect after an answer, see `put`.
        let lost = UnknownCause::Lost("the connection was closed".to_owned());
        self.put(PublishResult::Unknown(lost));
    }
}

impl Pending {
    /// Waits for the result. A message that is not written by `give_up` never is; after the write
    /// the publisher bounds the wait.
    pub(super) fn wait(self, give_up: Option<Instant>) -> PublishResult {
        let mut state = self.0.state.lock();
        loop {
            match (&*state, give_up) {
                (ReplyState::Answered(result), _) => return result.clone(),
                (ReplyState::Queued, Some(limit)) => {
                    let timed_out = self.0.answered.wait_until(&mut state, limit).timed_out();
                    // The publisher may have claimed it at the last moment; then its result is
                    // awaited.
                    if timed_out && matches!(*state, ReplyState::Queued) {
                        *state = ReplyState::Withdrawn;
                        let reason = "the connection was not ready within the limit";
                        return PublishResult::NotSent(reason.to_owned());
                    }
                }
                _ => self.0.answered.wait(&mut state),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::instant::monotonic;

    #[test]
    fn answer_reaches_the_caller() {
        let (reply, pending) = reply();
        assert!(reply.claim());
        reply.answer(PublishResult::Confirmed);
        assert_eq!(pending.wait(None), PublishResult::Confirmed);
    }

    #[test]
    fn withdrawn_publish_is_not_written() {
        let (reply, pending) = reply();
        let result = pending.wait(Some(monotonic()));
        assert!(matches!(result, PublishResult::NotSent(_)), "{result:?}");
        assert!(!reply.claim());
    }

    #[test]
    fn dropped_reply_is_an_unknown_result() {
        let (reply, pending) = reply();
        assert!(reply.claim());
        drop(reply);
        assert!(matches!(
            pending.wait(Some(monotonic())),
            PublishResult::Unknown(_)
        ));
    }
}
