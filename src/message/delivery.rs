//! Messages as they cross the transport seam: plain data with a shared body.

use super::headers::{Headers, Properties};
use std::sync::Arc;

/// A message body, shared by a delivery and its copies.
pub(crate) type Body = Arc<Vec<u8>>;

/// A message received from the broker.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The delivery tag, unique within the channel.
    pub(crate) tag: u64,
    pub(crate) redelivered: bool,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) properties: Properties,
    pub(crate) headers: Headers,
    pub(crate) body: Body,
}

/// A message to be sent to the broker.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) mandatory: bool,
    pub(crate) properties: Properties,
    pub(crate) headers: Headers,
    pub(crate) body: Body,
}

/// A mandatory message that the broker returned as unroutable. Its body is dropped on receipt.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) message_id: Option<String>,
    /// Reply code and reply text, as in `312 NO_ROUTE`.
    pub(crate) text: String,
}
