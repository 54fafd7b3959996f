//! What a handler gets.

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

/// A delivery whose envelope has been read.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) delivery: Delivery,
    pub(crate) envelope: Envelope,
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

    /// What the broker noted when it first dead-lettered the message: the last entry of `x-death` is the oldest.
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

/// One delivery, as a handler gets it: the payload, the [`Envelope`] that came with it, and the AMQP facts around both.
///
/// Cloning is cheap where cloning the payload is: everything else is shared.
#[derive(Clone)]
pub struct Message<T> {
    payload: T,
    opened: Arc<Opened>,
}

impl<T> Message<T> {
    pub(crate) fn new(payload: T, opened: Arc<Opened>) -> Self {
        Self { payload, opened }
    }

    /// The decoded body.
    #[must_use]
    pub fn payload(&self) -> &T {
        &self.payload
    }

    /// The decoded body, for keeps.
    #[must_use]
    pub fn into_payload(self) -> T {
        self.payload
    }

    /// Id, kind, attempt and what else the library says about the message.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.opened.envelope
    }

    /// The message's id, the same on every attempt. Short for `envelope().id()`.
    #[must_use]
    pub fn id(&self) -> &str {
        self.opened.envelope.id()
    }

    /// Which attempt this is, from 1. Short for `envelope().attempt()`.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.opened.envelope.attempt()
    }

    /// The body's bytes as they came.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.opened.delivery.body
    }

    /// The content type that the publisher named.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.opened.delivery.properties.content_type.as_deref()
    }

    /// The AMQP properties, such as `reply_to` and `correlation_id`.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.opened.delivery.properties
    }

    /// The application's headers: all but the reserved ones, which the [`Envelope`] shows.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        self.opened
            .application_headers
            .get_or_init(|| application_headers(&self.opened.delivery.headers))
    }

    /// The exchange that this delivery came from; after a wait on the broker that is `acemq.retry`, after one in the consumer
    /// the default exchange, which is empty.
    #[must_use]
    pub fn exchange(&self) -> &str {
        &self.opened.delivery.exchange
    }

    /// The routing key that this delivery came with; after a retry that is the name of its queue.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        &self.opened.delivery.routing_key
    }

    /// The exchange of the first publish, on every attempt and in the dead-letter and parked queues.
    ///
    /// Of a message that RabbitMQ itself dead-lettered on its first attempt it is the dead-letter exchange; `x-death`, among
    /// the headers, knows more.
    #[must_use]
    pub fn original_exchange(&self) -> &str {
        self.opened.original_exchange()
    }

    /// The routing key of the first publish, on every attempt and in the dead-letter and parked queues, with the same
    /// exception as [`original_exchange`](Self::original_exchange).
    #[must_use]
    pub fn original_routing_key(&self) -> &str {
        self.opened.original_routing_key()
    }

    /// Whether the broker delivered this message before and got it back unsettled: somebody may have handled it already.
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
