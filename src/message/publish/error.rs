//! A publish that failed, and what can be done about it.

use super::Publish;
use crate::message::codec::CodecError;

use std::error::Error;
use std::fmt;

/// A publish that failed. [`into_message`](Self::into_message) gives the message back.
///
/// What to do next depends on whether the broker may have the message: only after [`is_unknown`](Self::is_unknown) can
/// publishing it again make a duplicate.
#[derive(Debug)]
pub struct PublishError {
    kind: PublishErrorKind,
    message: Option<Box<Publish>>,
}

/// How one copy or publish ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublishResult {
    /// A queue has it.
    Confirmed,
    /// No queue took it.
    Unroutable(String),
    /// The broker refused it: a nack.
    Nacked,
    /// It was never written, so the broker does not have it.
    NotSent(String),
    /// It was written and nobody answered: the broker may have it or not.
    Unknown(UnknownCause),
    /// The broker closed the channel over this very message.
    ChannelClosed(String),
}

/// Why there is no answer.
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
    /// `None` when it was confirmed.
    pub(crate) fn of(result: PublishResult) -> Option<Self> {
        match result {
            PublishResult::Confirmed => None,
            PublishResult::Unroutable(text) => Some(Self::Unroutable(text)),
            PublishResult::Nacked => Some(Self::Refused(
                "the broker could not take it (nack)".to_owned(),
            )),
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

    /// No queue took the message, and it was `mandatory`.
    #[must_use]
    pub fn is_unroutable(&self) -> bool {
        matches!(self.kind, PublishErrorKind::Unroutable(_))
    }

    /// The message was refused (an exchange that does not exist, no permission, a nack), or not even sent (the connection is
    /// closed, lost or blocked): the broker does not have it.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(
            self.kind,
            PublishErrorKind::Refused(_) | PublishErrorKind::NotSent(_)
        )
    }

    /// The message was sent and nobody answered: the broker may have it or not. Also when the broker closed the channel over
    /// another message that was on its way at the same time.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self.kind, PublishErrorKind::Unknown(_))
    }

    /// The message itself cannot be published: its payload, a name, a header. Trying again cannot help.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(
            self.kind,
            PublishErrorKind::Invalid(_) | PublishErrorKind::Encoding(_)
        )
    }

    /// The message, to be kept or published again; `None` when it could not even be encoded, and after
    /// [`Connection::replay`](crate::Connection::replay), which leaves it where it was.
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
