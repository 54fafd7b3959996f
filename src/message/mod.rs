//! Messages: what a handler receives, what a service publishes, and what the library copies.
//!
//! Everything here is plain data and pure functions. Threads share a received message behind an
//! `Arc`.

pub(crate) mod codec;
pub(crate) mod copy;
pub(crate) mod delivery;
pub(crate) mod envelope;
pub(crate) mod headers;
pub(crate) mod publish;
pub(crate) mod wire;

use delivery::Delivery;
use envelope::{Envelope, application_headers};
use headers::Properties;
use headers::{HeaderValue, Headers};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A delivery with its parsed envelope.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) delivery: Delivery,
    pub(crate) envelope: Envelope,
    /// Built by the first call of [`Message::headers`]; most handlers never ask for it.
    application_headers: OnceLock<Headers>,
}

impl Opened {
    pub(crate) fn new(delivery: Delivery, envelope: Envelope) -> Self {
        Self {
            delivery,
            envelope,
            application_headers: OnceLock::new(),
        }
    }

    fn original_header(&self, header: &str) -> Option<&str> {
        self.delivery.headers.get(header)?.as_str()
    }

    /// The broker's record of the first dead-lettering, which is the last entry of `x-death`.
    fn first_death(&self) -> Option<&Headers> {
        match self.delivery.headers.get(wire::DEATHS)? {
            HeaderValue::Array(deaths) => match deaths.last()? {
                HeaderValue::Table(death) => Some(death),
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn original_exchange(&self) -> &str {
        self.original_header(wire::ORIGINAL_EXCHANGE)
            // Without the header this is the first hop, or the broker dead-lettered the message by
            // itself.
            .or_else(|| self.first_death()?.get("exchange")?.as_str())
            .unwrap_or(&self.delivery.exchange)
    }

    pub(crate) fn original_routing_key(&self) -> &str {
        let of_death = || match self.first_death()?.get("routing-keys")? {
            HeaderValue::Array(keys) => keys.first()?.as_str(),
            _ => None,
        };
        self.original_header(wire::ORIGINAL_ROUTING_KEY)
            .or_else(of_death)
            .unwrap_or(&self.delivery.routing_key)
    }
}

/// A received message: the decoded payload, its [`Envelope`], and the AMQP properties of the
/// delivery.
///
/// Clones share everything but the payload, which is cloned.
#[derive(Clone)]
pub struct Message<T> {
    payload: T,
    opened: Arc<Opened>,
}

impl<T> Message<T> {
    pub(crate) fn new(payload: T, opened: Arc<Opened>) -> Self {
        Self { payload, opened }
    }

    /// The decoded payload.
    #[must_use]
    pub fn payload(&self) -> &T {
        &self.payload
    }

    /// Consumes the message and returns the payload.
    #[must_use]
    pub fn into_payload(self) -> T {
        self.payload
    }

    /// The metadata that travels with the message: id, kind, attempt, origin and others.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.opened.envelope
    }

    /// The message's id, the same on every attempt. Short for `envelope().id()`.
    #[must_use]
    pub fn id(&self) -> &str {
        self.opened.envelope.id()
    }

    /// The number of this attempt, starting at 1. Short for `envelope().attempt()`.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.opened.envelope.attempt()
    }

    /// The body as it was received, before decoding.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.opened.delivery.body
    }

    /// The content type set by the publisher.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.opened.delivery.properties.content_type.as_deref()
    }

    /// The AMQP properties, such as `reply_to` and `correlation_id`.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.opened.delivery.properties
    }

    /// The headers of the application. Reserved headers (`x-acemq-…`) are left out; the
    /// [`Envelope`] holds them.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        self.opened
            .application_headers
            // Filtering copies the headers, so the result is kept for further calls and clones.
            .get_or_init(|| application_headers(&self.opened.delivery.headers))
    }

    /// The exchange this delivery was published to.
    ///
    /// A retry names the exchange of the retry: `acemq.retry` after a wait on the broker, the
    /// default exchange (an empty name) after a wait in the consumer.
    /// [`original_exchange`](Self::original_exchange) is the same on every attempt.
    #[must_use]
    pub fn exchange(&self) -> &str {
        &self.opened.delivery.exchange
    }

    /// The routing key of this delivery. A retry is routed by the name of its queue;
    /// [`original_routing_key`](Self::original_routing_key) is the same on every attempt.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        &self.opened.delivery.routing_key
    }

    /// The exchange of the first publish, on every attempt and in the dead-letter and parked
    /// queues.
    ///
    /// For a message that RabbitMQ itself dead-lettered, this comes from the oldest entry of the
    /// `x-death` header.
    #[must_use]
    pub fn original_exchange(&self) -> &str {
        self.opened.original_exchange()
    }

    /// The routing key of the first publish, on every attempt and in the dead-letter and parked
    /// queues. Determined like [`original_exchange`](Self::original_exchange).
    #[must_use]
    pub fn original_routing_key(&self) -> &str {
        self.opened.original_routing_key()
    }

    /// Whether the broker delivered this message before and got it back unsettled.
    ///
    /// An earlier handler may have processed it in part or in full, so a handler with side effects
    /// should be idempotent.
    #[must_use]
    pub fn redelivered(&self) -> bool {
        self.opened.delivery.redelivered
    }
}

impl<T: fmt::Debug> fmt::Debug for Message<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("payload", &self.payload)
            .field("id", &self.id())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
