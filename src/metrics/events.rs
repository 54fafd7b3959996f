//! The events that an observer receives.

use super::Outcome;
use std::fmt;
use std::time::Duration;

/// Defines an event with a getter for each field, so that fields can be added, and a constructor.
macro_rules! event {
    (
        $(#[$about:meta])*
        $event:ident { $($(#[$getter_about:meta])* $field:ident: $type:ty),+ $(,)? }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug)]
        #[non_exhaustive]
        pub struct $event<'a> {
            $($field: $type),+
        }

        impl<'a> $event<'a> {
            pub(crate) fn new($($field: $type),+) -> Self {
                Self { $($field),+ }
            }

            $($(#[$getter_about])*
            #[must_use]
            pub fn $field(&self) -> $type {
                self.$field
            })+
        }
    };
}

event! {
    /// A publish that has ended.
    Published {
        /// The exchange. Empty for the default exchange, to which copies are published.
        exchange: &'a str,
        /// The outcome of the publish.
        outcome: PublishOutcome,
        /// The time from the call to the outcome.
        duration: Duration,
    }
}

event! {
    /// A delivery that a consumer has taken on.
    Received {
        /// The queue of the delivery.
        queue: &'a str,
        /// The number of the attempt, starting at 1.
        attempt: u32,
    }
}

event! {
    /// A delivery with a final outcome.
    Consumed {
        /// The queue of the delivery.
        queue: &'a str,
        /// The outcome of the delivery.
        outcome: Outcome,
        /// The run time of the handler, without waits; `None` if the handler did not run.
        handler_time: Option<Duration>,
    }
}

event! {
    /// A copy that the broker has confirmed.
    CopyLanded {
        /// The queue of the delivery.
        queue: &'a str,
        /// The outcome for which the copy was made.
        outcome: Outcome,
    }
}

event! {
    /// A message that could not be put into its dead-letter or parked queue.
    SetAsideFailed {
        /// The queue of the delivery.
        queue: &'a str,
        /// The dead-letter or parked queue.
        target: &'a str,
    }
}

event! {
    /// A retry whose rung does not exist.
    RungMissing {
        /// The queue of the delivery.
        queue: &'a str,
    }
}

event! {
    /// A delivery that was requeued with its attempt unchanged.
    HandedBack {
        /// The queue of the delivery.
        queue: &'a str,
        /// The reason for the requeue.
        reason: HandBackReason,
    }
}

event! {
    /// A consumer that has subscribed, at its start or after a lost connection.
    Subscribed {
        /// The consumed queue.
        queue: &'a str,
    }
}

event! {
    /// A lost connection.
    Lost {
        /// The reason for the loss.
        reason: &'a str,
    }
}

/// A pause before the next attempt to reconnect.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Retrying {
    attempt: u32,
    pause: Duration,
}

impl Retrying {
    pub(crate) fn new(attempt: u32, pause: Duration) -> Self {
        Self { attempt, pause }
    }

    /// The number of the next attempt, starting at 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The length of the pause.
    #[must_use]
    pub fn pause(&self) -> Duration {
        self.pause
    }
}

/// A connection that is up again after a loss.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Recovered {
    downtime: Duration,
}

impl Recovered {
    pub(crate) fn new(downtime: Duration) -> Self {
        Self { downtime }
    }

    /// The time from the loss to the recovery.
    #[must_use]
    pub fn downtime(&self) -> Duration {
        self.downtime
    }
}

/// The outcome of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PublishOutcome {
    /// The broker confirmed the message.
    Confirmed,
    /// The message was mandatory and unroutable.
    Unroutable,
    /// The broker refused the message, or the message was not sent.
    Refused,
    /// The message was sent but not answered, so the broker may have it.
    Failed,
}

impl PublishOutcome {
    /// The outcome as a metric label, such as `confirmed`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Unroutable => "unroutable",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for PublishOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The reason for which a delivery was requeued with its attempt unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandBackReason {
    /// The copy was unroutable, or the broker closed the channel because of it.
    Unroutable,
    /// The broker refused the copy with a nack.
    Nacked,
    /// The broker did not confirm the copy in time.
    Timeout,
    /// The connection was lost before the copy was confirmed.
    Lost,
    /// A drain ended the wait of the delivery, or its copy failed during a drain.
    Drain,
}

impl HandBackReason {
    /// The reason as a metric label, such as `nacked`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Unroutable => "unroutable",
            Self::Nacked => "nacked",
            Self::Timeout => "timeout",
            Self::Lost => "lost",
            Self::Drain => "drain",
        }
    }
}

impl fmt::Display for HandBackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
