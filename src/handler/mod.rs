//! The answers of a handler: accept, retry, reject or park, each with a reason.

pub(crate) mod calling;

mod reason;

use crate::retry::Verdict;
use std::error::Error;
use std::fmt;

pub(crate) use reason::Reason;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// A handler's answer to one message.
///
/// A reason is anything that converts into a boxed error: a string, an error type, or the error of
/// a `?`. A message that goes to the dead-letter or parked queue carries it in its `x-acemq-error`
/// header.
///
/// ```
/// use rungmq::Ack;
///
/// fn handle(quantity: i32) -> Ack {
///     match quantity {
///         1.. => Ack::accept(),
///         0 => Ack::retry("the stock has not arrived"),
///         _ => Ack::reject(format!("{quantity} is no quantity")),
///     }
/// }
/// # assert!(format!("{:?}", handle(0)).contains("stock"));
/// ```
#[derive(Debug)]
#[must_use = "an answer has no effect until the handler returns it"]
pub struct Ack {
    kind: AckKind,
}

#[derive(Debug)]
enum AckKind {
    Accept,
    Retry(BoxError),
    Reject(BoxError),
    Park(BoxError),
}

impl Ack {
    /// Acknowledges the message: its processing is complete.
    pub fn accept() -> Self {
        Self {
            kind: AckKind::Accept,
        }
    }

    /// Retries the message according to the retry policy. After the last attempt, or at the age
    /// limit of the policy, the message goes to the dead-letter queue.
    ///
    /// With a [`FatalError`] anywhere in the source chain of the reason there is no retry: the
    /// message goes to the dead-letter queue immediately.
    pub fn retry(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: AckKind::Retry(reason.into()),
        }
    }

    /// Rejects the message: it goes to the dead-letter queue without a retry.
    pub fn reject(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: AckKind::Reject(reason.into()),
        }
    }

    /// Parks the message: it goes to the parked queue, to be inspected by an operator.
    pub fn park(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: AckKind::Park(reason.into()),
        }
    }

    /// Converts the answer to plain data. Catches panics of the reason's `Display`, `source` and
    /// `Drop`.
    pub(crate) fn into_verdict(self) -> Verdict {
        match self.kind {
            AckKind::Accept => Verdict::Accept,
            AckKind::Retry(reason) => {
                let Reason { text, fatal } = Reason::of(reason);
                Verdict::Retry {
                    reason: text,
                    fatal,
                }
            }
            // Both end the message, so a `FatalError` in the reason changes nothing.
            AckKind::Reject(reason) => Verdict::Reject {
                reason: Reason::of(reason).text,
            },
            AckKind::Park(reason) => Verdict::Park {
                reason: Reason::of(reason).text,
            },
        }
    }
}

/// The return type of a message handler: [`Ack`], `()` for [`Ack::accept`], or a `Result` of
/// either, whose `Err(e)` means [`Ack::retry(e)`](Ack::retry).
///
/// The error is any type that converts into `Box<dyn Error + Send + Sync>`. A handler with errors
/// of several types returns that type or `anyhow::Error`; a `Box<dyn Error>` without `Send + Sync`
/// does not compile.
#[diagnostic::on_unimplemented(
    message = "a message handler cannot return `{Self}`",
    note = "return `Ack`, `()`, or a `Result` of either, \
            whose error converts into `Box<dyn Error + Send + Sync>`",
    note = "a closure that never returns (`panic!`, `todo!`) needs a return type: \
            `|message| -> Ack {{ todo!() }}`"
)]
pub trait Answer {
    /// Converts the return value into an [`Ack`].
    fn into_ack(self) -> Ack;
}

impl Answer for Ack {
    fn into_ack(self) -> Ack {
        self
    }
}

impl Answer for () {
    fn into_ack(self) -> Ack {
        Ack::accept()
    }
}

impl<A: Answer, E: Into<Box<dyn Error + Send + Sync>>> Answer for Result<A, E> {
    fn into_ack(self) -> Ack {
        match self {
            Ok(answer) => answer.into_ack(),
            Err(error) => Ack::retry(error),
        }
    }
}

/// An error that retrying cannot fix: the message goes to the dead-letter queue immediately.
///
/// It takes effect anywhere in the source chain of a reason, so it survives `?`, added `anyhow`
/// context, and an error enum that names it as its source.
///
/// ```
/// use rungmq::FatalError;
///
/// fn parse(text: &str) -> Result<u32, FatalError> {
///     text.parse()
///         .map_err(|error| FatalError::caused_by("the quantity is no number", error))
/// }
///
/// assert_eq!(parse("a dozen").unwrap_err().to_string(), "the quantity is no number");
/// ```
pub struct FatalError {
    message: String,
    marker: Marker,
}

impl FatalError {
    /// Creates a fatal error with a message.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            marker: Marker { cause: None },
        }
    }

    /// Creates a fatal error with a message and the error that caused it.
    #[must_use]
    pub fn caused_by(
        message: impl Into<String>,
        cause: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self {
            message: message.into(),
            marker: Marker {
                cause: Some(cause.into()),
            },
        }
    }
}

impl fmt::Debug for FatalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("FatalError");
        debug.field("message", &self.message);
        if let Some(cause) = &self.marker.cause {
            debug.field("cause", cause);
        }
        debug.finish()
    }
}

impl fmt::Display for FatalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for FatalError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.marker)
    }
}

/// The source of every [`FatalError`], by which the error is recognised: boxes such as anyhow's
/// hide the type of the outermost error from `downcast_ref`, but not the types of its sources.
#[derive(Debug)]
struct Marker {
    cause: Option<BoxError>,
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("retrying cannot help")
    }
}

impl Error for Marker {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause
            .as_ref()
            .map(|cause| cause.as_ref() as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests;
