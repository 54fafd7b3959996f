//! What a handler gets.

use crate::envelope::{Envelope, application_headers};
use crate::headers::{HeaderValue, Headers};
use crate::properties::Properties;
use crate::transport::Delivery;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The application headers that say where a message was first published; they stay on every copy made of it.
pub(crate) const ORIGINAL_EXCHANGE: &str = "x-original-exchange";
pub(crate) const ORIGINAL_ROUTING_KEY: &str = "x-original-routingKey";

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

    pub(crate) fn original_exchange(&self) -> &str {
        self.original(
            ORIGINAL_EXCHANGE,
            first_death_exchange,
            &self.delivery.exchange,
        )
    }

    pub(crate) fn original_routing_key(&self) -> &str {
        self.original(
            ORIGINAL_ROUTING_KEY,
            first_death_routing_key,
            &self.delivery.routing_key,
        )
    }

    /// Every copy of ours says it in a header; what the broker dead-lettered before there was one, in its own record.
    fn original<'a>(
        &'a self,
        header: &str,
        recorded: impl FnOnce(&'a Headers) -> Option<&'a str>,
        delivered: &'a str,
    ) -> &'a str {
        let headers = &self.delivery.headers;
        headers
            .get(header)
            .and_then(HeaderValue::as_str)
            .or_else(|| first_death(headers).and_then(recorded))
            .unwrap_or(delivered)
    }
}

/// The oldest entry of the broker's record of dead-letterings; it puts the latest first.
fn first_death(headers: &Headers) -> Option<&Headers> {
    match headers.get("x-death")? {
        HeaderValue::Array(deaths) => match deaths.last()? {
            HeaderValue::Table(death) => Some(death),
            _ => None,
        },
        _ => None,
    }
}

fn first_death_exchange(death: &Headers) -> Option<&str> {
    death.get("exchange")?.as_str()
}

fn first_death_routing_key(death: &Headers) -> Option<&str> {
    match death.get("routing-keys")? {
        HeaderValue::Array(keys) => keys.first()?.as_str(),
        _ => None,
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

    /// The exchange that this delivery came from; after a wait on the broker that is `acemq.retry`.
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
    #[must_use]
    pub fn original_exchange(&self) -> &str {
        self.opened.original_exchange()
    }

    /// The routing key of the first publish, on every attempt and in the dead-letter and parked queues.
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
