//! A message to publish, and its validation.

pub(crate) mod error;

use super::codec::{CodecError, Encode, Json};
use super::copy::header_frame_len;
use super::delivery::{Body, Outgoing};
use super::envelope::{Envelope, reserved_offenders};
use super::headers::{HeaderValue, Headers, Properties};
use super::wire::{PERSISTENT, RESERVED_PREFIX, TRANSIENT, new_id};
use crate::naming;
use error::PublishErrorKind;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// A message to publish: its payload, destination, metadata and properties.
///
/// By default a message is persistent, not mandatory, and goes to the default exchange.
///
/// ```
/// use rungmq::Publish;
///
/// # fn main() -> Result<(), rungmq::CodecError> {
/// let message = Publish::json(&["apples", "pears"])?
///     .exchange("orders-events")
///     .routing_key("order.placed")
///     .kind("order.placed.v2")
///     .header("tenant", "acme")
///     .mandatory(true);
/// # let _ = message;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a message has no effect until it is published"]
pub struct Publish {
    body: Body,
    exchange: String,
    routing_key: String,
    mandatory: bool,
    kind: Option<String>,
    id: Option<String>,
    correlation: Option<String>,
    causation: Option<String>,
    claim: Option<String>,
    properties: Properties,
    headers: Headers,
}

impl Publish {
    /// Creates a message with a JSON payload (`application/json`).
    ///
    /// # Errors
    ///
    /// Returns an error if the payload cannot be encoded as JSON.
    pub fn json<T: Serialize + ?Sized>(payload: &T) -> Result<Self, CodecError> {
        Self::encoded(&Json, payload)
    }

    /// Creates a message with a text payload (`text/plain; charset=utf-8`).
    pub fn text(payload: impl Into<String>) -> Self {
        Self::raw(payload.into().into_bytes(), "text/plain; charset=utf-8")
    }

    /// Creates a message with a payload of raw bytes (`application/octet-stream`).
    pub fn bytes(payload: impl Into<Vec<u8>>) -> Self {
        Self::raw(payload.into(), "application/octet-stream")
    }

    /// Creates a message with a payload encoded by `codec`, and the content type of the codec.
    ///
    /// # Errors
    ///
    /// Returns the error of the codec.
    pub fn encoded<T: ?Sized>(codec: &impl Encode<T>, payload: &T) -> Result<Self, CodecError> {
        Ok(Self::raw(codec.encode(payload)?, codec.content_type()))
    }

    fn raw(body: Vec<u8>, content_type: &str) -> Self {
        Self {
            body: Arc::new(body),
            exchange: String::new(),
            routing_key: String::new(),
            mandatory: false,
            kind: None,
            id: None,
            correlation: None,
            causation: None,
            claim: None,
            properties: Properties {
                content_type: Some(content_type.to_owned()),
                delivery_mode: Some(PERSISTENT),
                ..Properties::default()
            },
            headers: Headers::new(),
        }
    }

    /// Sets the exchange. Defaults to the default exchange, which routes to the queue named by the
    /// routing key.
    pub fn exchange(mut self, exchange: impl Into<String>) -> Self {
        self.exchange = exchange.into();
        self
    }

    /// Sets the routing key. Defaults to an empty one.
    pub fn routing_key(mut self, routing_key: impl Into<String>) -> Self {
        self.routing_key = routing_key.into();
        self
    }

    /// Sets whether an unroutable message is an error
    /// ([`PublishError::is_unroutable`](crate::PublishError::is_unroutable)). Defaults to false:
    /// the broker silently drops an unroutable message.
    pub fn mandatory(mut self, mandatory: bool) -> Self {
        self.mandatory = mandatory;
        self
    }

    /// Sets the kind of message (`x-acemq-type`). Defaults to the routing key.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Sets the id (`x-acemq-id`, and AMQP's `message_id` if it has at most 255 bytes). Defaults to
    /// a new UUID for each publish.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        // An empty id counts as absent.
        self.id = Some(id.into()).filter(|id| !id.is_empty());
        self
    }

    /// Sets the id that related messages share (`x-acemq-correlation`). Defaults to the id of the
    /// message.
    pub fn correlation(mut self, correlation: impl Into<String>) -> Self {
        self.correlation = Some(correlation.into());
        self
    }

    /// Sets the id of the message that caused this one (`x-acemq-causation`). None by default.
    pub fn causation(mut self, causation: impl Into<String>) -> Self {
        self.causation = Some(causation.into());
        self
    }

    /// Sets a reference to a payload that is stored elsewhere (`x-acemq-claim`). None by default.
    pub fn claim(mut self, claim: impl Into<String>) -> Self {
        self.claim = Some(claim.into());
        self
    }

    /// Sets a header of the application. Publishing fails if a name begins with `x-acemq-`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<HeaderValue>) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Sets whether the message survives a restart of the broker, in a durable queue. Defaults to
    /// true.
    pub fn persistent(mut self, persistent: bool) -> Self {
        self.properties.delivery_mode = Some(if persistent { PERSISTENT } else { TRANSIENT });
        self
    }

    /// Sets the queue or address for a reply.
    pub fn reply_to(mut self, reply_to: impl Into<String>) -> Self {
        self.properties.reply_to = Some(reply_to.into());
        self
    }

    /// Sets AMQP's `correlation_id`, which matches a reply with its request.
    pub fn correlation_id(mut self, correlation_id: impl Into<String>) -> Self {
        self.properties.correlation_id = Some(correlation_id.into());
        self
    }

    /// Replaces the content type of the codec.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.properties.content_type = Some(content_type.into());
        self
    }

    /// Changes any AMQP property. A `message_id` set here is overwritten with the id of the
    /// message.
    ///
    /// ```
    /// # use rungmq::Publish;
    /// let urgent = Publish::text("now").properties(|properties| {
    ///     properties.priority = Some(9);
    ///     properties.expiration = Some("60000".to_owned());
    /// });
    /// # let _ = urgent;
    /// ```
    pub fn properties(mut self, change: impl FnOnce(&mut Properties)) -> Self {
        change(&mut self.properties);
        self
    }

    /// The exchange the message goes to.
    #[must_use]
    pub fn target_exchange(&self) -> &str {
        &self.exchange
    }

    /// The encoded body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Checks the message and builds its wire form. Everything that would make the broker close the
    /// connection is an error here.
    pub(crate) fn outgoing(
        &self,
        origin: &str,
        now_millis: i64,
        frame_max: usize,
    ) -> Result<(Envelope, Outgoing), PublishErrorKind> {
        let offenders = reserved_offenders(&self.headers);
        if !offenders.is_empty() {
            return Err(PublishErrorKind::Invalid(format!(
                "header names that begin with {RESERVED_PREFIX} are reserved: {}",
                offenders.join(", ")
            )));
        }
        // Not stored in `self`: a message without an id gets a new one for each publish.
        let id = self.id.clone().unwrap_or_else(new_id);
        let envelope = Envelope::build(
            &self.routing_key,
            self.kind.as_deref(),
            origin,
            now_millis,
            id,
        )
        .with_links(
            self.correlation.as_deref(),
            self.causation.as_deref(),
            self.claim.as_deref(),
        );
        let mut headers = self.headers.clone();
        envelope.write(&mut headers, now_millis);
        let id = envelope.id();
        let properties = Properties {
            message_id: (id.len() <= naming::LONGEST_NAME).then(|| id.to_owned()),
            ..self.properties.clone()
        };
        self.check_lengths(&properties, &headers)?;
        // AMQP cannot split a content header over frames, so the headers must fit one.
        let frame = header_frame_len(&properties, &headers);
        if frame > frame_max {
            return Err(PublishErrorKind::Invalid(format!(
                "the headers take {frame} bytes, but the broker allows frames of {frame_max}"
            )));
        }
        let outgoing = Outgoing {
            exchange: self.exchange.clone(),
            routing_key: self.routing_key.clone(),
            mandatory: self.mandatory,
            properties,
            headers,
            body: self.body.clone(),
        };
        Ok((envelope, outgoing))
    }

    /// amiquip encodes a text that is too long as a corrupt frame, and the broker closes the
    /// connection for it.
    fn check_lengths(
        &self,
        properties: &Properties,
        headers: &Headers,
    ) -> Result<(), PublishErrorKind> {
        let texts = [
            ("exchange", Some(&self.exchange)),
            ("routing key", Some(&self.routing_key)),
            ("content type", properties.content_type.as_ref()),
            ("content encoding", properties.content_encoding.as_ref()),
            ("correlation id", properties.correlation_id.as_ref()),
            ("reply-to", properties.reply_to.as_ref()),
            ("expiration", properties.expiration.as_ref()),
            ("message type", properties.message_type.as_ref()),
            ("user id", properties.user_id.as_ref()),
            ("app id", properties.app_id.as_ref()),
            ("cluster id", properties.cluster_id.as_ref()),
        ];
        for (what, text) in texts {
            if let Some(text) = text {
                naming::check(what, text)
                    .map_err(|error| PublishErrorKind::Invalid(error.to_string()))?;
            }
        }
        check_headers(headers)
    }
}

/// Shows the length of the body in place of the body.
impl fmt::Debug for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publish")
            .field("exchange", &self.exchange)
            .field("routing_key", &self.routing_key)
            .field("id", &self.id)
            .field("kind", &self.kind)
            .field("mandatory", &self.mandatory)
            .field("headers", &self.headers)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

fn check_headers(headers: &Headers) -> Result<(), PublishErrorKind> {
    for (name, value) in headers.iter() {
        naming::check("header name", name)
            .map_err(|error| PublishErrorKind::Invalid(error.to_string()))?;
        check_value(name, value)?;
    }
    Ok(())
}

/// Refuses NaN and infinite floats, for which RabbitMQ closes the connection.
fn check_value(name: &str, value: &HeaderValue) -> Result<(), PublishErrorKind> {
    let not_finite = match value {
        HeaderValue::Table(table) => return check_headers(table),
        HeaderValue::Array(values) => {
            return values.iter().try_for_each(|value| check_value(name, value));
        }
        HeaderValue::F32(number) => !number.is_finite(),
        HeaderValue::F64(number) => !number.is_finite(),
        _ => false,
    };
    if not_finite {
        return Err(PublishErrorKind::Invalid(format!(
            "the header {name:?} is NaN or infinite, which RabbitMQ does not accept"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::publish::error::PublishError;

    #[test]
    fn debug_output_hides_the_body() {
        let message = Publish::text("secret");
        let error = PublishError::new(
            PublishErrorKind::Refused("nack".to_owned()),
            Some(message.clone()),
        );
        for shown in [format!("{message:?}"), format!("{error:?}")] {
            assert!(shown.contains("body_bytes: 6"), "{shown}");
            assert!(!shown.contains("secret"), "{shown}");
            assert!(!shown.contains("115, 101"), "{shown}");
        }
    }
}
