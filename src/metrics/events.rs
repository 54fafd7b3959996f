//! What an observer is told.

use super::Outcome;
use std::fmt;
use std::time::Duration;

/// An event: its fields behind getters, so that it can grow, and a constructor for the library.
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
        /// The exchange; empty for the default exchange, where the library's copies go.
        exchange: &'a str,
        /// How it ended.
        outcome: PublishOutcome,
        /// From the call to its end.
        duration: Duration,
    }
}

event! {
    /// A delivery that was taken on.
    Received {
        /// The queue it came from.
        queue: &'a str,
        /// Which attempt it is, from 1.
        attempt: u32,
    }
}

event! {
    /// A delivery whose fate is known.
    Consumed {
        /// The queue it came from.
        queue: &'a str,
        /// What became of it.
        outcome: Outcome,
        /// How long its handler ran, without any wait; `None` when it did not run.
        handler_time: Option<Duration>,
    }
}

event! {
    /// A copy that the broker has confirmed.
    CopyLanded {
        /// The queue the delivery came from.
        queue: &'a str,
        /// Why there was a copy.
        outcome: Outcome,
    }
}

event! {
    /// A message that its dead-letter or parked queue did not take.
    SetAsideFailed {
        /// The queue the delivery came from.
        queue: &'a str,
        /// The queue that did not take it.
        target: &'a str,
    }
}

event! {
    /// A rung that does not exist.
    RungMissing {
        /// The queue the delivery came from.
        queue: &'a str,
    }
}

event! {
    /// A delivery that went back to its queue.
    HandedBack {
        /// The queue it came from and went back to.
        queue: &'a str,
        /// Why it went back.
        reason: HandBackReason,
    }
}

event! {
    /// A consumer that has a live subscription, at first or again.
    Subscribed {
        /// The queue that is consumed.
        queue: &'a str,
    }
}

event! {
    /// A connection that is gone and will be made again.
    Lost {
        /// What happened to it.
        reason: &'a str,
    }
}

/// A pause before the next attempt to make a lost connection again.
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

    /// Which attempt it will be, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How long until then.
    #[must_use]
    pub fn pause(&self) -> Duration {
        self.pause
    }
}

/// A connection that is up again.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Recovered {
    downtime: Duration,
}

impl Recovered {
    pub(crate) fn new(downtime: Duration) -> Self {
        Self { downtime }
    }

    /// From the loss to the recovery.
    #[must_use]
    pub fn downtime(&self) -> Duration {
        self.downtime
    }
}

/// How a publish ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PublishOutcome {
    /// The broker has it.
    Confirmed,
    /// It was mandatory, and no queue took it.
    Unroutable,
    /// The broker does not have it: it refused it, or it was not even sent.
    Refused,
    /// Its fate is unknown: it was sent, and nobody answered.
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

/// Why a delivery went back to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandBackReason {
    /// No queue took its copy, or the broker closed the channel over it.
    Unroutable,
    /// The broker refused its copy: a nack.
    Nacked,
    /// The broker did not answer in time.
    Timeout,
    /// The connection was lost before its copy was confirmed.
    Lost,
    /// A shutdown ended its wait, or its copy failed during one.
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
