//! What a handler answers: accept, retry, reject or park, and why.

pub(crate) mod calling;

mod reason;

use crate::retry::Verdict;
use std::error::Error;
use std::fmt;

pub(crate) use reason::Reason;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// A handler's answer to one message.
///
/// A reason is anything that turns into a boxed error: a string, an error, what `?` would pass on. It ends up in the
/// `x-acemq-error` header of a message that is set aside.
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
    /// The message is done with.
    pub fn accept() -> Self {
        Self {
            kind: AckKind::Accept,
        }
    }

    /// Try again later, as the retry policy has it; once it gives up, the message goes to the dead-letter queue.
    ///
    /// A reason with a [`FatalError`] anywhere in its source chain spends no attempt: the message goes to the
    /// dead-letter queue at once.
    pub fn retry(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: AckKind::Retry(reason.into()),
        }
    }

    /// The message is wrong: it goes to the dead-letter queue at once.
    pub fn reject(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: AckKind::Reject(reason.into()),
        }
    }

    /// A person has to look at it: the message goes to the parked queue.
    pub fn park(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: AckKind::Park(reason.into()),
        }
    }

    /// The answer as plain data. Runs the reason's own code (`Display`, `source`, `Drop`), and survives its panics.
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

/// What a message handler may return: [`Ack`], `()` for [`Ack::accept`], or a `Result` of either, whose `Err(e)` is
/// exactly [`Ack::retry(e)`](Ack::retry).
///
/// The error is anything that turns into `Box<dyn Error + Send + Sync>`. For errors of several types return that or
/// `anyhow::Error`; a `Box<dyn Error>` without `Send + Sync` does not compile.
#[diagnostic::on_unimplemented(
    message = "a message handler cannot return `{Self}`",
    note = "return `Ack`, `()`, or a `Result` of either whose error turns into `Box<dyn Error + Send + Sync>`",
    note = "a closure that never returns (`panic!`, `todo!`) has to name a type: `|message| -> Ack {{ todo!() }}`"
)]
pub trait Answer {
    /// Turns what the handler returned into an [`Ack`].
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

/// An error that no retry can cure: the message goes to the dead-letter queue at once.
///
/// It is found wherever it stands in an error's source chain, so it survives `?`, `anyhow` with any amount of context,
/// and an error enum that names it as a source.
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
    /// A fatal error with a message of its own.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            marker: Marker { cause: None },
        }
    }

    /// A fatal error with the error that led to it.
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

/// Stands behind every [`FatalError`] as its source: a box such as anyhow's hides the type of the outermost error from
/// `downcast_ref`, but not that of its source.
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
