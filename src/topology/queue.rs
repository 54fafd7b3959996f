//! A queue as the application describes it.

use crate::message::headers::{HeaderValue, Headers};
use crate::retry::{DEFAULT_THRESHOLD, RetryPolicy};
use std::time::Duration;

/// A queue of a [`Topology`](crate::topology::Topology): durable and quorum unless said otherwise.
///
/// An exclusive, auto-delete or transient queue is classic, because RabbitMQ allows nothing else.
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
    /// A durable quorum queue that neither dead-letters nor retries.
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

    /// What the broker itself gives up goes to `{queue}.dlq`; that queue and `{queue}.parked` are declared with this
    /// one. Off by default.
    pub fn dead_letter(mut self) -> Self {
        self.dead_letter = true;
        self
    }

    /// Declares the rungs in which this policy's long retries wait on the broker. There are none by default.
    ///
    /// Consumers of the queue should be given the same policy and the same [threshold](Self::retry_threshold).
    pub fn retry(mut self, policy: &RetryPolicy) -> Self {
        self.retry = Some(policy.clone());
        self
    }

    /// From which delay on a retry waits on the broker. Defaults to 30 s; zero means never.
    pub fn retry_threshold(mut self, threshold: Duration) -> Self {
        self.retry_threshold = threshold;
        self
    }

    /// Asks for a quorum queue, replicated and durable. This is the default; said out loud, flags that a quorum queue
    /// cannot have are an error instead of making the queue classic.
    pub fn quorum(mut self) -> Self {
        self.kind = Some(QueueKind::Quorum);
        self
    }

    /// Asks for a classic queue.
    ///
    /// It is declared without an `x-queue-type`, as the AceMQ libraries in other languages do: in a virtual host whose
    /// default queue type is not classic, it takes that default.
    pub fn classic(mut self) -> Self {
        self.kind = Some(QueueKind::Classic);
        self
    }

    /// Asks for a stream. Streams are not supported yet, and the topology's plan says so.
    pub fn stream(mut self) -> Self {
        self.kind = Some(QueueKind::Stream);
        self
    }

    /// Makes the queue the connection's own: nobody else consumes it, and it ends with the connection.
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Makes the queue end with its last consumer.
    pub fn auto_delete(mut self) -> Self {
        self.auto_delete = true;
        self
    }

    /// Whether the queue survives a restart of the broker. Defaults to true; false is for exclusive queues only,
    /// since RabbitMQ 4 has given up other transient ones.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Sets one more argument, such as `x-max-length`.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<HeaderValue>) -> Self {
        self.arguments.insert(name, value);
        self
    }

    /// The type after all flags have been looked at.
    pub(super) fn resolved_kind(&self) -> QueueKind {
        self.kind
            .unwrap_or(if self.exclusive || self.auto_delete || !self.durable {
                QueueKind::Classic
            } else {
                QueueKind::Quorum
            })
    }
}
