//! Headers and AMQP properties of a message, with their wire types preserved.

use std::collections::{BTreeMap, btree_map};
use std::fmt;

/// The value of one header, with a variant for every AMQP 0-9-1 field type that RabbitMQ uses.
///
/// Retries, dead-lettering and parking keep values and their types unchanged.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum HeaderValue {
    /// A boolean (`t`).
    Bool(bool),
    /// A signed 8-bit integer (`b`).
    I8(i8),
    /// An unsigned 8-bit integer (`B`).
    U8(u8),
    /// A signed 16-bit integer (`s`).
    I16(i16),
    /// An unsigned 16-bit integer (`u`).
    U16(u16),
    /// A signed 32-bit integer (`I`).
    I32(i32),
    /// An unsigned 32-bit integer (`i`).
    U32(u32),
    /// A signed 64-bit integer (`l`).
    I64(i64),
    /// A 32-bit float (`f`).
    F32(f32),
    /// A 64-bit float (`d`).
    F64(f64),
    /// A decimal number (`D`): `value` / 10^`scale`.
    Decimal {
        /// The number of digits after the decimal point.
        scale: u8,
        /// All digits as one integer.
        value: u32,
    },
    /// A long string (`S`).
    Text(String),
    /// A byte array (`x`).
    Bytes(Vec<u8>),
    /// A timestamp (`T`), in seconds since 1970.
    Timestamp(u64),
    /// An array (`A`).
    Array(Vec<HeaderValue>),
    /// A nested table (`F`).
    Table(Headers),
    /// No value (`V`).
    Void,
}

impl HeaderValue {
    /// The text of a [`HeaderValue::Text`]; `None` for every other type.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value of an integer of any width; `None` for every other type.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::I8(n) => Some(n.into()),
            Self::U8(n) => Some(n.into()),
            Self::I16(n) => Some(n.into()),
            Self::U16(n) => Some(n.into()),
            Self::I32(n) => Some(n.into()),
            Self::U32(n) => Some(n.into()),
            Self::I64(n) => Some(n),
            _ => None,
        }
    }

    /// Whether the value is or contains a NaN.
    pub(crate) fn has_nan(&self) -> bool {
        match self {
            Self::F32(n) => n.is_nan(),
            Self::F64(n) => n.is_nan(),
            Self::Array(values) => values.iter().any(Self::has_nan),
            Self::Table(table) => table.iter().any(|(_, value)| value.has_nan()),
            _ => false,
        }
    }

    /// The encoded size in bytes, including the type byte.
    pub(crate) fn encoded_len(&self) -> usize {
        1 + match self {
            Self::Void => 0,
            Self::Bool(_) | Self::I8(_) | Self::U8(_) => 1,
            Self::I16(_) | Self::U16(_) => 2,
            Self::I32(_) | Self::U32(_) | Self::F32(_) => 4,
            Self::Decimal { .. } => 5,
            Self::I64(_) | Self::F64(_) | Self::Timestamp(_) => 8,
            Self::Text(text) => 4 + text.len(),
            Self::Bytes(bytes) => 4 + bytes.len(),
            Self::Array(values) => 4 + values.iter().map(Self::encoded_len).sum::<usize>(),
            Self::Table(table) => table.encoded_len(),
        }
    }
}

macro_rules! from {
    ($($from:ty => $variant:ident),+ $(,)?) => {
        $(impl From<$from> for HeaderValue {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        })+
    };
}

from!(
    bool => Bool, i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64,
    f32 => F32, f64 => F64, &str => Text, String => Text, Vec<u8> => Bytes,
    Vec<HeaderValue> => Array, Headers => Table,
);

/// A table of headers, sorted by name.
///
/// ```
/// use rungmq::Headers;
///
/// let mut headers = Headers::new();
/// headers.insert("tenant", "acme");
/// headers.insert("weight", 12_i32);
/// assert_eq!(headers.get("tenant").and_then(|value| value.as_str()), Some("acme"));
/// ```
#[derive(Clone, Default, PartialEq)]
pub struct Headers(BTreeMap<String, HeaderValue>);

impl Headers {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The value under `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&HeaderValue> {
        self.0.get(name)
    }

    /// Sets the value under `name` and returns the previous one.
    pub fn insert(
        &mut self,
        name: impl Into<String>,
        value: impl Into<HeaderValue>,
    ) -> Option<HeaderValue> {
        self.0.insert(name.into(), value.into())
    }

    /// Removes the value under `name` and returns it.
    pub fn remove(&mut self, name: &str) -> Option<HeaderValue> {
        self.0.remove(name)
    }

    /// Whether the table has a value under `name`.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The number of headers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The headers, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &HeaderValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Keeps the headers for which `keep` returns true and removes the others.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &HeaderValue) -> bool) {
        self.0.retain(|name, value| keep(name, value));
    }

    /// The encoded size in bytes, including the length field.
    pub(crate) fn encoded_len(&self) -> usize {
        4 + self
            .iter()
            .map(|(name, value)| 1 + name.len() + value.encoded_len())
            .sum::<usize>()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter()).finish()
    }
}

impl<N: Into<String>, V: Into<HeaderValue>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(headers: I) -> Self {
        Self(
            headers
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

impl IntoIterator for Headers {
    type Item = (String, HeaderValue);
    type IntoIter = btree_map::IntoIter<String, HeaderValue>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// The AMQP properties of a message. The `headers` property is separate: see
/// [`Message::headers`](crate::Message::headers).
///
/// Fields have the names of AMQP 0-9-1, except for `type`, a Rust keyword, which is
/// [`message_type`](Self::message_type).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Properties {
    /// The MIME type of the body, such as `application/json`.
    pub content_type: Option<String>,
    /// The encoding of the body, such as `gzip`. The library passes it on without interpreting it.
    pub content_encoding: Option<String>,
    /// 1 is transient, 2 is persistent.
    pub delivery_mode: Option<u8>,
    /// The priority, for queues with priorities.
    pub priority: Option<u8>,
    /// Correlates a reply with its request. Not the envelope's `x-acemq-correlation` header.
    pub correlation_id: Option<String>,
    /// The queue or address for a reply.
    pub reply_to: Option<String>,
    /// The time to live in milliseconds, as text. Copies do not carry it.
    pub expiration: Option<String>,
    /// The id of the message; equal to the envelope's id if this library published it.
    pub message_id: Option<String>,
    /// The time set by the publisher, in seconds since 1970.
    pub timestamp: Option<u64>,
    /// AMQP's `type`.
    pub message_type: Option<String>,
    /// The publishing user, verified by the broker. Copies do not carry it.
    pub user_id: Option<String>,
    /// The name of the publishing application.
    pub app_id: Option<String>,
    /// Reserved by AMQP and unused. Copies do not carry it.
    pub cluster_id: Option<String>,
}
