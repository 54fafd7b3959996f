//! A message as the broker holds it, and the tables that go into one.

use amiquip::{AmqpProperties, AmqpValue, FieldTable};

/// A message taken from a queue, with everything that came with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Got {
    pub exchange: String,
    pub routing_key: String,
    pub redelivered: bool,
    pub properties: AmqpProperties,
    pub body: Vec<u8>,
}

impl Got {
    /// A header.
    pub fn header(&self, name: &str) -> Option<&AmqpValue> {
        self.properties.headers().as_ref()?.get(name)
    }

    /// A header that is text.
    pub fn header_text(&self, name: &str) -> Option<&str> {
        match self.header(name)? {
            AmqpValue::LongString(text) => Some(text),
            _ => None,
        }
    }

    /// A header that is a whole number of any width.
    pub fn header_number(&self, name: &str) -> Option<i64> {
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
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The message id.
    pub fn message_id(&self) -> Option<&str> {
        self.properties.message_id().as_deref()
    }
}

/// A table of headers or arguments.
pub fn table<V: IntoValue>(entries: impl IntoIterator<Item = (&'static str, V)>) -> FieldTable {
    entries
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into_value()))
        .collect()
}

/// What [`table`] takes for a value.
pub trait IntoValue {
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
