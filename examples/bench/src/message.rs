//! What rungmq writes beside the body, for the contenders that have to write it themselves.

use amiquip::{AmqpProperties, AmqpValue, Delivery, FieldTable};

pub(crate) const KIND: &str = "bench.message";
pub(crate) const ORIGIN: &str = "bench@localhost";
pub(crate) const CONTENT_TYPE: &str = "application/json";

pub(crate) const ATTEMPT: &str = "x-acemq-attempt";
pub(crate) const ORIGINAL_EXCHANGE: &str = "x-original-exchange";
pub(crate) const ORIGINAL_ROUTING_KEY: &str = "x-original-routingKey";

/// The properties of a new message; `number` makes its id.
pub(crate) fn properties(number: u64) -> AmqpProperties {
    let id = format!("00000000-0000-4000-8000-{number:012}");
    let headers = FieldTable::from([
        ("x-acemq-id".into(), text(&id)),
        ("x-acemq-type".into(), text(KIND)),
        ("x-acemq-version".into(), AmqpValue::LongInt(1)),
        ("x-acemq-correlation".into(), text(&id)),
        (ATTEMPT.into(), AmqpValue::LongInt(1)),
        (
            "x-acemq-first-seen".into(),
            AmqpValue::LongLongInt(1_700_000_000_000),
        ),
        ("x-acemq-origin".into(), text(ORIGIN)),
    ]);
    AmqpProperties::default()
        .with_delivery_mode(2)
        .with_content_type(CONTENT_TYPE.into())
        .with_message_id(id)
        .with_headers(headers)
}

/// Whether a delivery is a copy, by its attempt.
pub(crate) fn is_copy(delivery: &Delivery) -> bool {
    let headers = delivery.properties.headers().as_ref();
    let attempt = headers.and_then(|headers| headers.get(ATTEMPT));
    matches!(attempt, Some(AmqpValue::LongInt(2)))
}

/// The properties of a delivery's copy.
pub(crate) fn of_copy(delivery: &Delivery) -> AmqpProperties {
    let properties = delivery.properties.clone();
    let mut headers = properties.headers().clone().unwrap_or_default();
    headers.insert(ATTEMPT.into(), AmqpValue::LongInt(2));
    headers.insert(ORIGINAL_EXCHANGE.into(), text(&delivery.exchange));
    headers.insert(ORIGINAL_ROUTING_KEY.into(), text(&delivery.routing_key));
    properties.with_headers(headers)
}

fn text(text: &str) -> AmqpValue {
    AmqpValue::LongString(text.into())
}
