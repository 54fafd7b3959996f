//! Codecs: how payloads are encoded into message bodies and decoded from them.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::fmt;

/// Encodes payloads into message bodies.
///
/// Separate from [`Decode`], so that a service can publish types it cannot read.
pub trait Encode<T: ?Sized>: Send + Sync + 'static {
    /// The MIME type of the encoded body, used as the `content_type` of the message.
    fn content_type(&self) -> &str;

    /// Encodes a payload.
    ///
    /// # Errors
    ///
    /// Returns an error if the payload cannot be encoded. Nothing is published in that case.
    fn encode(&self, payload: &T) -> Result<Vec<u8>, CodecError>;
}

/// Decodes message bodies into payloads.
pub trait Decode<T>: Send + Sync + 'static {
    /// Decodes a body; `content_type` is that of the message, if it has one.
    ///
    /// # Errors
    ///
    /// Returns an error if the body or its content type is not as expected. The message is parked
    /// in that case, and its handler does not run. A panic counts as an error.
    fn decode(&self, body: &[u8], content_type: Option<&str>) -> Result<T, CodecError>;
}

/// JSON, for every type that implements serde's traits.
///
/// Decodes bodies with the content types `application/json`, `text/json` and `…+json`, and bodies
/// without a content type. Refuses all others.
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
        serde_json::to_vec(payload).map_err(|error| {
            CodecError::new(format!("the payload cannot be encoded as JSON: {error}"))
        })
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
                    format!("the JSON does not match the expected type: {error}")
                }
                // Syntax errors and truncated bodies.
                _ => format!("the body is not JSON: {error}"),
            })
        })
    }
}

/// Plain text in UTF-8.
///
/// Decodes bodies with a content type `text/…` and bodies without one. Refuses all others.
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

/// Raw bytes. Decodes bodies of every content type.
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

/// An error from encoding or decoding a payload.
///
/// The message is a single line. A message that is parked because it could not be decoded carries
/// it in its `x-acemq-error` header.
#[derive(Debug)]
pub struct CodecError {
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl CodecError {
    /// Creates an error with a message. Control characters, line breaks among them, become spaces.
    #[must_use]
    pub fn new(message: impl AsRef<str>) -> Self {
        Self {
            message: one_line(message.as_ref()),
            source: None,
        }
    }

    /// Creates an error with a message and a source. The message need not repeat the source.
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

/// Checks a content type without its parameters, in lower case. A missing or blank one passes.
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
    // Some publishers set an empty content type, which says as much as none.
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
            // Unicode line and paragraph separators break lines too, but are no control characters.
            '\u{2028}' | '\u{2029}' => ' ',
            _ if c.is_control() => ' ',
            _ => c,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct Order {
        sku: String,
        quantity: u32,
    }

    fn order(body: &str, content_type: Option<&str>) -> Result<Order, String> {
        Json.decode(body.as_bytes(), content_type)
            .map_err(|error: CodecError| error.to_string())
    }

    #[test]
    fn json_round_trip() {
        let order = Order {
            sku: "ü-1".to_owned(),
            quantity: 3,
        };
        let body = Json.encode(&order).unwrap();
        assert_eq!(Encode::<Order>::content_type(&Json), "application/json");
        assert_eq!(Decode::<Order>::decode(&Json, &body, None).unwrap(), order);
    }

    #[test]
    fn encodes_a_type_that_cannot_be_decoded() {
        #[derive(Serialize)]
        struct Borrowed<'a> {
            sku: &'a str,
        }
        let body = Json.encode(&Borrowed { sku: "a" }).unwrap();
        assert_eq!(body, br#"{"sku":"a"}"#);
    }

    #[test]
    fn json_content_types() {
        let body = r#"{"sku":"a","quantity":1}"#;
        for accepted in [
            "application/json",
            "text/json",
            "APPLICATION/JSON",
            "application/json; charset=utf-8",
            " application/json ;charset=UTF-8",
            "application/vnd.acme.order+json",
            "application/vnd.acme.order+JSON; v=2",
            "",
            "  ",
        ] {
            assert!(order(body, Some(accepted)).is_ok(), "{accepted:?}");
        }
        for refused in [
            "application/xml",
            "text/plain",
            "application/jsonp",
            "json",
            "application/octet-stream; of=application/json",
            ";",
        ] {
            let error = order(body, Some(refused)).unwrap_err();
            assert_eq!(error, format!("the content type is {refused}, not JSON"));
        }
    }

    #[test]
    fn errors_name_the_problem() {
        let missing = order(r#"{"sku":"a"}"#, None).unwrap_err();
        assert_eq!(
            missing,
            "the JSON does not match the expected type: \
             missing field `quantity` at line 1 column 11"
        );
        let broken = order("nonsense", None).unwrap_err();
        assert!(broken.starts_with("the body is not JSON: "), "{broken}");
        let empty = order("", None).unwrap_err();
        assert!(empty.starts_with("the body is not JSON: "), "{empty}");
        let deep = order(&"[".repeat(100_000), None).unwrap_err();
        assert!(deep.starts_with("the "), "{deep}");
        let trailing = order(r#"{"sku":"a","quantity":1} x"#, None).unwrap_err();
        assert!(trailing.contains("trailing"), "{trailing}");
    }

    #[test]
    fn unencodable_json() {
        let keys = std::collections::BTreeMap::from([(vec![1], 1)]);
        let error = Json.encode(&keys).unwrap_err().to_string();
        assert_eq!(
            error,
            "the payload cannot be encoded as JSON: key must be a string"
        );
    }

    #[test]
    fn text() {
        let body = Text.encode("grüß").unwrap();
        assert_eq!(Text.encode(&"grüß".to_owned()).unwrap(), body);
        for accepted in [None, Some(""), Some("text/plain"), Some("Text/CSV; header")] {
            assert_eq!(Text.decode(&body, accepted).unwrap(), "grüß");
        }
        let error = Text.decode(&body, Some("application/json")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the content type is application/json, not text"
        );
        let error = Text.decode(b"ab\xff", None).unwrap_err().to_string();
        assert!(error.starts_with("the body is not UTF-8: "), "{error}");
    }

    #[test]
    fn bytes() {
        let body = Bytes.encode(&vec![0, 255]).unwrap();
        assert_eq!(Bytes.decode(&body, Some("image/png")).unwrap(), [0, 255]);
        assert_eq!(
            Encode::<Vec<u8>>::content_type(&Bytes),
            "application/octet-stream"
        );
    }

    #[test]
    fn error_has_a_source_and_a_single_line() {
        let error = CodecError::caused_by("bad\nframe", "too short");
        assert_eq!(error.to_string(), "bad frame");
        assert_eq!(error.source().unwrap().to_string(), "too short");
        let refused = order("1", Some("a\r\nb")).unwrap_err();
        assert_eq!(refused, "the content type is a  b, not JSON");
    }

    #[test]
    fn codecs_as_objects() {
        let _: Box<dyn Encode<Order>> = Box::new(Json);
        let _: std::sync::Arc<dyn Decode<Order>> = std::sync::Arc::new(Json);
    }

    proptest! {
        #[test]
        fn any_body_gives_a_value_or_a_single_line_error(
            body in prop::collection::vec(any::<u8>(), 0..64),
            content_type in prop::option::of("[ -~]{0,20}|application/json"),
        ) {
            let decoded: Result<Order, _> = Json.decode(&body, content_type.as_deref());
            if let Err(error) = decoded {
                prop_assert_eq!(error.to_string().lines().count(), 1);
            }
        }
    }
}
