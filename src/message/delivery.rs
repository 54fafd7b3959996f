//! Messages as they cross the transport seam: plain data, with a body that copies share.

use super::headers::{Headers, Properties};
use std::sync::Arc;

/// A message body, shared by a delivery and the copies made of it.
pub(crate) type Body = Arc<Vec<u8>>;

/// A message as it arrived.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) tag: u64,
    pub(crate) redelivered: bool,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) properties: Properties,
    pub(crate) headers: Headers,
    pub(crate) body: Body,
}

/// A message on its way out.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) mandatory: bool,
    pub(crate) properties: Properties,
    pub(crate) headers: Headers,
    pub(crate) body: Body,
}

/// A mandatory message that no queue took. Its body was dropped on receipt.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) message_id: Option<String>,
    pub(crate) text: String,
}
