//! The error type of the library, whose variants tell a caller what to do.

mod drain;

pub use drain::{DrainTimeout, StrandedDelivery};

use crate::message::codec::CodecError;
use crate::message::publish::error::PublishError;
use crate::naming::NameTooLong;
use crate::retry::{LadderError, PolicyError};
use crate::time::threads::SpawnError;
use crate::topology::TopologyError;
use crate::transport::Failure;
use std::fmt;

/// Why a call failed.
///
/// No variant and no message contains a password or a URL.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A broker URL, a host or an option is invalid, or a thread failed to start. Nothing was sent.
    /// Fix the configuration.
    Configuration(String),
    /// Connecting failed or timed out. Start the broker, or check the address and the login.
    Connect {
        /// Host and port of the last attempt.
        address: String,
        /// Why it failed.
        reason: String,
    },
    /// The broker refused: the queue is missing or exists with other arguments, or the user lacks
    /// permission.
    Broker {
        /// The failed action, with the name of its object.
        action: String,
        /// AMQP's reply code, such as 404 or 406.
        code: u16,
        /// The broker's reply text.
        text: String,
    },
    /// The broker did not answer in time. It may have performed the action.
    Timeout {
        /// The action without an answer.
        action: String,
    },
    /// The connection was lost, and is being recovered or was given up. Calls in progress may or
    /// may not have taken effect.
    ConnectionLost {
        /// Why it was lost.
        reason: String,
    },
    /// This process closed the connection, or is closing it, so that no consumer can start.
    Closed,
    /// The call was made on a thread of the library that it would wait for, such as by an observer.
    /// Handlers may make every call.
    OwnThread,
    /// A name or routing key is longer than AMQP's 255 bytes. Nothing was sent.
    NameTooLong(NameTooLong),
    /// A retry policy is invalid.
    Policy(PolicyError),
    /// A retry policy's rungs, the retry queues on the broker, cannot be declared.
    Ladder(LadderError),
    /// A topology is invalid. The error lists all its problems. Nothing was sent.
    Topology(TopologyError),
    /// A payload could not be encoded or decoded.
    Codec(CodecError),
    /// A publish failed. The error returns the message.
    Publish(PublishError),
    /// A shutdown reached its deadline with deliveries left.
    Drain(DrainTimeout),
}

impl Error {
    /// The error for an action that the broker answered with `failure`.
    pub(crate) fn broker(action: String, failure: Failure) -> Self {
        match failure {
            Failure::Refused { code, text } => Self::Broker { action, code, text },
            Failure::Lost(reason) => Self::ConnectionLost { reason },
            Failure::TimedOut => Self::Timeout { action },
            // More channels than `channel_max` is a matter of the URL, not of the broker's state.
            Failure::NoChannelLeft => Self::Configuration(format!("{action}: {failure}")),
        }
    }

    /// The deliveries that a shutdown left behind, if this is [`Error::Drain`].
    #[must_use]
    pub fn drain_timeout(&self) -> Option<&DrainTimeout> {
        match self {
            Self::Drain(timeout) => Some(timeout),
            _ => None,
        }
    }

    /// Whether the object does not exist on the broker (AMQP's 404).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Broker { code: 404, .. })
    }

    /// Whether the object exists with other arguments (AMQP's 406).
    #[must_use]
    pub fn is_precondition_failed(&self) -> bool {
        matches!(self, Self::Broker { code: 406, .. })
    }

    /// Whether the user lacks permission, or another connection uses the queue exclusively (AMQP's
    /// 403 and 405).
    #[must_use]
    pub fn is_access_refused(&self) -> bool {
        matches!(
            self,
            Self::Broker {
                code: 403 | 405,
                ..
            }
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration(what) => f.write_str(what),
            Self::Connect { address, reason } => write!(f, "no connection to {address}: {reason}"),
            Self::Broker { action, text, .. } => write!(f, "{action}: {text}"),
            Self::Timeout { action } => write!(f, "{action}: the broker did not answer in time"),
            Self::ConnectionLost { reason } => write!(f, "the connection was lost: {reason}"),
            Self::Closed => f.write_str("the connection was closed"),
            Self::OwnThread => f.write_str("this call cannot be made on a thread of the library"),
            Self::NameTooLong(error) => error.fmt(f),
            Self::Policy(error) => error.fmt(f),
            Self::Ladder(error) => error.fmt(f),
            Self::Topology(error) => error.fmt(f),
            Self::Codec(error) => error.fmt(f),
            Self::Publish(error) => error.fmt(f),
            Self::Drain(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    /// The source of the contained error, whose text is this error's own.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NameTooLong(error) => error.source(),
            Self::Policy(error) => error.source(),
            Self::Ladder(error) => error.source(),
            Self::Topology(error) => error.source(),
            Self::Codec(error) => error.source(),
            Self::Publish(error) => error.source(),
            Self::Drain(error) => error.source(),
            _ => None,
        }
    }
}

impl From<SpawnError> for Error {
    fn from(error: SpawnError) -> Self {
        Self::Configuration(error.to_string())
    }
}

macro_rules! from {
    ($($error:ident => $variant:ident),+ $(,)?) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })+
    };
}

from!(
    NameTooLong => NameTooLong,
    PolicyError => Policy,
    LadderError => Ladder,
    TopologyError => Topology,
    CodecError => Codec,
    PublishError => Publish,
    DrainTimeout => Drain,
);
