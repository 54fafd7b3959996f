//! How a payload becomes a message body and back.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::fmt;

/// Turns a payload into a message body.
///
/// Apart from [`Decode`], so that a service that only publishes a type need not be able to read it.
pub trait Encode<T: ?Sized>: Send + Sync + 'static {
    /// The MIME type of what [`encode`](Self::encode) returns; it becomes the message's `content_type`.
    fn content_type(&self) -> &str;

    /// The payload as a body.
    ///
    /// # Errors
    ///
    /// When the payload has no such form. Nothing is published then.
    fn encode(&self, payload: &T) -> Result<Vec<u8>, CodecError>;
}

/// Turns a message body into a payload.
pub trait Decode<T>: Send + Sync + 'static {
    /// Reads a body, given the message's content type if it has one.
    ///
    /// # Errors
    ///
    /// When the body, or its content type, is not what was expected. The message is parked then, and its handler does
    /// not run. A panic counts as an error.
    fn decode(&self, body: &[u8], content_type: Option<&str>) -> Result<T, CodecError>;
}

/// JSON, for any type that serde can write or read.
///
/// Reads bodies of `application/json`, `text/json`, any type that ends in `+json`, and of no type at all; refuses
/// others.
///
/// ```
/// use rungmq::{Decode, Encode, Json};
///
/// let body = Json.encode(&[1, 2, 3])?;
/// let numbers: Vec<u8> = Json.decode(&body, Some("application/json; charset=utf-8"))?;
/// assert_eq!(numbers, [1, 2, 3]);
///
/// let refused = Decode::<Vec<u8>>::decode(&Json, &body, Some("application/xml"));
/// assert!(refused.is_err());
/// # Ok::<_, rungmq::CodecError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl<T: Serialize + ?Sized> Encode<T> for Json {
    fn content_type(&self) -> &str {
        "application/json"
    }

    fn encode(&self, payload: &T) -> Result<Vec<u8>, CodecError> {
        serde_json::to_vec(payload)
            .map_err(|error| CodecError::new(format!("the payload cannot be JSON: {error}")))
    }
}

impl<T: DeserializeOwned> Decode<T> for Json {
    fn decode(&self, body: &[u8], content_type: Option<&str>) -> Result<T, CodecError> {
        check_type("JSON", content_type, |essence| {
            matches!(essence, "application/json" | "text/json") || essence.ends_with("+json")
        })?;
        serde_json::from_slice(body).map_err(|error| {
            CodecError::new(match error.classify() {
                serde_json::error::Category::Data => {
                    format!("the JSON is not what was expected: {error}")
                }
                _ => format!("the body is not JSON: {error}"),
            })
        })
    }
}

/// Plain text in UTF-8.
///
/// Reads bodies of any `text/…` type and of no type at all; refuses others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Text;

impl<T: AsRef<str> + ?Sized> Encode<T> for Text {
    fn content_type(&self) -> &str {
        "text/plain; charset=utf-8"
    }

    fn encode(&self, payload: &T) -> Result<Vec<u8>, CodecError> {
        Ok(payload.as_ref().as_bytes().to_vec())
    }
}

impl Decode<String> for Text {
    fn decode(&self, body: &[u8], content_type: Option<&str>) -> Result<String, CodecError> {
        check_type("text", content_type, |essence| essence.starts_with("text/"))?;
        std::str::from_utf8(body)
            .map(str::to_owned)
            .map_err(|error| CodecError::new(format!("the body is not UTF-8: {error}")))
    }
}

/// The bytes as they are, whatever the content type says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bytes;

impl<T: AsRef<[u8]> + ?Sized> Encode<T> for Bytes {
    fn content_type(&self) -> &str {
        "application/octet-stream"
    }

    fn encode(&self, payload: &T) -> Result<Vec<u8>, CodecError> {
        Ok(payload.as_ref().to_vec())
    }
}

impl Decode<Vec<u8>> for Bytes {
    fn decode(&self, body: &[u8], _content_type: Option<&str>) -> Result<Vec<u8>, CodecError> {
        Ok(body.to_vec())
    }
}

/// A payload that could not become a body, or a body that could not become a payload.
///
/// Its message is one line and says what was wrong; it becomes part of the `x-acemq-error` header of a message that is
/// parked because it could not be decoded.
#[derive(Debug)]
pub struct CodecError {
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl CodecError {
    /// An error with a message of its own. Line breaks and other control characters in it become spaces.
    #[must_use]
    pub fn new(message: impl AsRef<str>) -> Self {
        Self {
            message: one_line(message.as_ref()),
            source: None,
        }
    }

    /// An error with the error that led to it, which the message need not repeat.
    #[must_use]
    pub fn caused_by(
        message: impl AsRef<str>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self {
            source: Some(source.into()),
            ..Self::new(message)
        }
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for CodecError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_ref()
            .map(|source| source.as_ref() as &(dyn Error + 'static))
    }
}

/// Checks a content type, without its parameters and in lower case; a message without one passes.
fn check_type(
    expected: &str,
    content_type: Option<&str>,
    accepts: impl FnOnce(&str) -> bool,
) -> Result<(), CodecError> {
    let Some(content_type) = content_type else {
        return Ok(());
    };
    let essence = content_type.split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    if content_type.trim().is_empty() || accepts(&essence) {
        return Ok(());
    }
    Err(CodecError::new(format!(
        "the content type is {content_type}, not {expected}"
    )))
}

fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\u{2028}' | '\u{2029}' => ' ',
            _ if c.is_control() => ' ',
            _ => c,
        })
        .collect()
}

#[cfg(test)]
mod tests;
