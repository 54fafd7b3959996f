//! The description of a queue in a topology.

use crate::message::headers::{HeaderValue, Headers};
use crate::retry::{DEFAULT_THRESHOLD, RetryPolicy};
use std::time::Duration;

/// A queue of a [`Topology`](crate::topology::Topology); by default a durable quorum queue.
///
/// An exclusive, auto-delete or transient queue is classic by default, because quorum queues do not
/// support these flags.
#[derive(Clone, Debug)]
#[must_use = "a queue has no effect until it is added to a topology"]
pub struct Queue {
    pub(super) name: String,
    pub(super) kind: Option<QueueKind>,
    pub(super) durable: bool,
    pub(super) exclusive: bool,
    pub(super) auto_delete: bool,
    pub(super) dead_letter: bool,
    pub(super) retry: Option<RetryPolicy>,
    pub(super) retry_threshold: Duration,
    pub(super) arguments: Headers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueKind {
    Quorum,
    Classic,
    Stream,
}

impl Queue {
    /// Creates a durable quorum queue without dead-lettering and without rungs.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind: None,
            durable: true,
            exclusive: false,
            auto_delete: false,
            dead_letter: false,
            retry: None,
            retry_threshold: DEFAULT_THRESHOLD,
            arguments: Headers::new(),
        }
    }

    /// Makes the broker dead-letter to `{queue}.dlq`, and declares `{queue}.dlq` and
    /// `{queue}.parked` with this queue. Off by default.
    pub fn dead_letter(mut self) -> Self {
        self.dead_letter = true;
        self
    }

    /// Declares the rungs of `policy`, the retry queues in which long delays are spent on the
    /// broker. None by default.
    ///
    /// Consumers of the queue should have the same policy and the same
    /// [threshold](Self::retry_threshold).
    pub fn retry(mut self, policy: &RetryPolicy) -> Self {
        self.retry = Some(policy.clone());
        self
    }

    /// Sets the shortest delay to spend on the broker. Defaults to 30 s; zero means never.
    pub fn retry_threshold(mut self, threshold: Duration) -> Self {
        self.retry_threshold = threshold;
        self
    }

    /// Makes the queue a quorum queue, which is replicated and durable.
    ///
    /// This is the default. If set explicitly, flags that a quorum queue does not support are
    /// errors instead of making the queue classic.
    pub fn quorum(mut self) -> Self {
        self.kind = Some(QueueKind::Quorum);
        self
    }

    /// Makes the queue a classic queue.
    ///
    /// The declaration has no `x-queue-type`, like those of the AceMQ libraries in other languages.
    /// In a virtual host with another default queue type, the queue has that type.
    pub fn classic(mut self) -> Self {
        self.kind = Some(QueueKind::Classic);
        self
    }

    /// Makes the queue a stream. Streams are not supported yet: planning the topology fails.
    pub fn stream(mut self) -> Self {
        self.kind = Some(QueueKind::Stream);
        self
    }

    /// Restricts the queue to this connection; the broker deletes it when the connection closes.
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Makes the broker delete the queue when its last consumer ends.
    pub fn auto_delete(mut self) -> Self {
        self.auto_delete = true;
        self
    }

    /// Sets whether the queue survives a restart of the broker. Defaults to true.
    ///
    /// A transient queue must be exclusive, because RabbitMQ 4 does not support others.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Sets a queue argument, such as `x-max-length`.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<HeaderValue>) -> Self {
        self.arguments.insert(name, value);
        self
    }

    /// The effective type: the explicit one, else the one implied by the flags.
    pub(super) fn resolved_kind(&self) -> QueueKind {
        self.kind
            // An explicit type wins. If its flags conflict with it, planning reports a problem.
            .unwrap_or(if self.exclusive || self.auto_delete || !self.durable {
                QueueKind::Classic
            } else {
                QueueKind::Quorum
            })
    }
}
