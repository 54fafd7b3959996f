//! The outcome of a publish, and the error for a failed one.

use super::Publish;
use crate::message::codec::CodecError;
use std::error::Error;
use std::fmt;

/// A failed publish. [`into_message`](Self::into_message) returns the message.
///
/// The next step depends on whether the broker may have the message: publishing it again can create
/// a duplicate only if [`is_unknown`](Self::is_unknown) is true.
#[derive(Debug)]
pub struct PublishError {
    kind: PublishErrorKind,
    message: Option<Box<Publish>>,
}

/// The outcome of one publish, of a message or of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublishResult {
    /// The broker confirmed the message.
    Confirmed,
    /// The message was mandatory, and the broker returned it.
    Unroutable(String),
    /// The broker refused the message with a nack.
    Nacked,
    /// The message was not written to the socket, so the broker does not have it.
    NotSent(String),
    /// The message was written but not answered: the broker may have it.
    Unknown(UnknownCause),
    /// The broker closed the channel because of this message.
    ChannelClosed(String),
}

/// Why a publish was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnknownCause {
    Timeout,
    Lost(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PublishErrorKind {
    Encoding(String),
    Invalid(String),
    Unroutable(String),
    Refused(String),
    NotSent(String),
    Unknown(String),
}

impl PublishErrorKind {
    /// Converts the outcome of a publish; `None` if it was confirmed.
    pub(crate) fn of(result: PublishResult) -> Option<Self> {
        match result {
            PublishResult::Confirmed => None,
            PublishResult::Unroutable(text) => Some(Self::Unroutable(text)),
            PublishResult::Nacked => Some(Self::Refused("the broker refused it (nack)".to_owned())),
            PublishResult::ChannelClosed(text) => Some(Self::Refused(text)),
            PublishResult::NotSent(reason) => Some(Self::NotSent(reason)),
            PublishResult::Unknown(UnknownCause::Timeout) => Some(Self::Unknown(
                "the broker did not answer in time".to_owned(),
            )),
            PublishResult::Unknown(UnknownCause::Lost(reason)) => Some(Self::Unknown(reason)),
        }
    }
}

impl PublishError {
    pub(crate) fn new(kind: PublishErrorKind, message: Option<Publish>) -> Self {
        Self {
            kind,
            message: message.map(Box::new),
        }
    }

    pub(crate) fn encoding(error: &CodecError) -> Self {
        Self::new(PublishErrorKind::Encoding(error.to_string()), None)
    }

    /// The message was mandatory and no queue is bound for it. The broker does not have it.
    #[must_use]
    pub fn is_unroutable(&self) -> bool {
        matches!(self.kind, PublishErrorKind::Unroutable(_))
    }

    /// The broker does not have the message: it refused it (missing exchange, missing permission, a
    /// nack), or the message was not sent (the connection is closed, lost or blocked).
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(
            self.kind,
            PublishErrorKind::Refused(_) | PublishErrorKind::NotSent(_)
        )
    }

    /// The message was sent but not answered, so the broker may have it.
    ///
    /// This happens on a timeout, if the connection is lost before the answer, and if the broker
    /// closes the channel because of another message that is in flight at the same time.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self.kind, PublishErrorKind::Unknown(_))
    }

    /// The message cannot be published because of its payload, a name or a header. Retrying does
    /// not help.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(
            self.kind,
            PublishErrorKind::Invalid(_) | PublishErrorKind::Encoding(_)
        )
    }

    /// Consumes the error and returns the message, to be stored or published again.
    ///
    /// `None` if the payload could not be encoded, and for
    /// [`Connection::replay`](crate::Connection::replay), which leaves the message in its queue.
    #[must_use]
    pub fn into_message(self) -> Option<Publish> {
        self.message.map(|message| *message)
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            PublishErrorKind::Encoding(text) => {
                write!(f, "the payload could not be encoded: {text}")
            }
            PublishErrorKind::Invalid(text) => write!(f, "the message cannot be published: {text}"),
            PublishErrorKind::Unroutable(text) => write!(f, "no queue took the message: {text}"),
            PublishErrorKind::Refused(text) => write!(f, "the message was refused: {text}"),
            PublishErrorKind::NotSent(text) => write!(f, "the message was not sent: {text}"),
            PublishErrorKind::Unknown(text) => write!(
                f,
                "it is unknown whether the broker has the message: {text}"
            ),
        }
    }
}

impl Error for PublishError {}
