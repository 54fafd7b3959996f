//! A message as the broker holds it, and the tables that go into one.

use amiquip::{AmqpProperties, AmqpValue, FieldTable};

/// A message taken from a queue, with everything that came with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Got {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) redelivered: bool,
    pub(crate) properties: AmqpProperties,
    pub(crate) body: Vec<u8>,
}

impl Got {
    /// A header.
    pub(crate) fn header(&self, name: &str) -> Option<&AmqpValue> {
        self.properties.headers().as_ref()?.get(name)
    }

    /// A header that is text.
    pub(crate) fn header_text(&self, name: &str) -> Option<&str> {
        match self.header(name)? {
            AmqpValue::LongString(text) => Some(text),
            _ => None,
        }
    }

    /// A header that is a whole number of any width.
    pub(crate) fn header_number(&self, name: &str) -> Option<i64> {
        match *self.header(name)? {
            AmqpValue::ShortShortInt(n) => Some(n.into()),
            AmqpValue::ShortShortUInt(n) => Some(n.into()),
            AmqpValue::ShortInt(n) => Some(n.into()),
            AmqpValue::ShortUInt(n) => Some(n.into()),
            AmqpValue::LongInt(n) => Some(n.into()),
            AmqpValue::LongUInt(n) => Some(n.into()),
            AmqpValue::LongLongInt(n) => Some(n),
            _ => None,
        }
    }

    /// The body as text.
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The message id.
    pub(crate) fn message_id(&self) -> Option<&str> {
        self.properties.message_id().as_deref()
    }
}

/// A table of headers or arguments.
pub(crate) fn table<V: IntoValue>(
    entries: impl IntoIterator<Item = (&'static str, V)>,
) -> FieldTable {
    entries
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into_value()))
        .collect()
}

/// What [`table`] takes for a value.
pub(crate) trait IntoValue {
    fn into_value(self) -> AmqpValue;
}

impl IntoValue for AmqpValue {
    fn into_value(self) -> AmqpValue {
        self
    }
}

impl IntoValue for &str {
    fn into_value(self) -> AmqpValue {
        AmqpValue::LongString(self.to_owned())
    }
}

impl IntoValue for i64 {
    fn into_value(self) -> AmqpValue {
        AmqpValue::LongLongInt(self)
    }
}
