//! The AMQP properties of a message (AMQP 0-9-1, class `basic`), beside its headers.

/// The AMQP properties of a message, as they stood on the wire; its headers are kept apart.
///
/// Names are AMQP's own, but for `type`, a word of Rust, which is [`message_type`](Self::message_type) here.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Properties {
    /// MIME type of the body, such as `application/json`.
    pub content_type: Option<String>,
    /// Encoding of the body, such as `gzip`. The library carries it and never acts on it.
    pub content_encoding: Option<String>,
    /// 1 is transient, 2 is persistent.
    pub delivery_mode: Option<u8>,
    /// Priority, for queues that have priorities.
    pub priority: Option<u8>,
    /// Correlates a reply with its request. Not the envelope's `x-acemq-correlation` header.
    pub correlation_id: Option<String>,
    /// Where a reply is wanted.
    pub reply_to: Option<String>,
    /// Per-message time to live, in milliseconds, as text. Never carried onto a copy.
    pub expiration: Option<String>,
    /// The message's id; the same as the envelope's id where this library published it.
    pub message_id: Option<String>,
    /// Seconds since 1970, set by the publisher.
    pub timestamp: Option<u64>,
    /// AMQP's `type`.
    pub message_type: Option<String>,
    /// The user who published, as the broker verified it. Never carried onto a copy.
    pub user_id: Option<String>,
    /// The application that published.
    pub app_id: Option<String>,
    /// Reserved by AMQP, unused. Never carried onto a copy.
    pub cluster_id: Option<String>,
}
