//! What can go wrong, for callers to tell apart.

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

/// Why a call did not do what it was asked for.
///
/// No variant, and no text, ever holds a password or a URL.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A broker URL, a host or an option that cannot be used, or a thread that could not be started. Nothing was sent. Mend
    /// the configuration.
    Configuration(String),
    /// No connection came about within the limit. Start the broker, or check address and login.
    Connect {
        /// Host and port of the last attempt.
        address: String,
        /// What happened there.
        reason: String,
    },
    /// The broker refused: the queue is missing, exists with other arguments, or the user may not do this.
    Broker {
        /// What was tried, with the name of what it was tried on.
        action: String,
        /// AMQP's reply code, such as 404 or 406.
        code: u16,
        /// The broker's own words.
        text: String,
    },
    /// The broker did not answer in time. It may have done what it was asked for.
    Timeout {
        /// What was tried.
        action: String,
    },
    /// The connection is lost: it is being made again, or was given up. What was under way may or may not have happened.
    ConnectionLost {
        /// What happened to it.
        reason: String,
    },
    /// The connection was closed by this process, or is being closed and takes no new consumers.
    Closed,
    /// The call would wait for the very thread that makes it: it was made on one of the library's own threads, such as by an
    /// observer. Handlers may make every call.
    OwnThread,
    /// A name or key is longer than AMQP's 255 bytes. Nothing was sent.
    NameTooLong(NameTooLong),
    /// A retry policy that makes no sense.
    Policy(PolicyError),
    /// A retry policy whose rungs cannot stand on a broker.
    Ladder(LadderError),
    /// A topology with problems of its own, all of them. Nothing was sent.
    Topology(TopologyError),
    /// A payload that could not be encoded or decoded.
    Codec(CodecError),
    /// A publish that failed; it gives the message back.
    Publish(PublishError),
    /// A shutdown left deliveries behind at its deadline.
    Drain(DrainTimeout),
}

impl Error {
    /// What was tried, and the broker's answer to it.
    pub(crate) fn broker(action: String, failure: Failure) -> Self {
        match failure {
            Failure::Refused { code, text } => Self::Broker { action, code, text },
            Failure::Lost(reason) => Self::ConnectionLost { reason },
            Failure::TimedOut => Self::Timeout { action },
            Failure::NoChannelLeft => Self::Configuration(format!("{action}: {failure}")),
        }
    }

    /// Whether a shutdown left deliveries behind, and which.
    #[must_use]
    pub fn drain_timeout(&self) -> Option<&DrainTimeout> {
        match self {
            Self::Drain(timeout) => Some(timeout),
            _ => None,
        }
    }

    /// Whether what was asked for does not exist on the broker (AMQP's 404).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Broker { code: 404, .. })
    }

    /// Whether something of that name exists with other arguments (AMQP's 406).
    #[must_use]
    pub fn is_precondition_failed(&self) -> bool {
        matches!(self, Self::Broker { code: 406, .. })
    }

    /// Whether the user may not do this, or somebody else consumes exclusively (AMQP's 403 and 405).
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
    /// The variants that hold an error show its text as their own, so that what follows is its source.
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
    NameTooLong => NameTooLong, PolicyError => Policy, LadderError => Ladder, TopologyError => Topology,
    CodecError => Codec, PublishError => Publish, DrainTimeout => Drain,
);
