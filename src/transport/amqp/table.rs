//! Converts headers and properties between this crate's types and amiquip's.

use crate::message::headers::{HeaderValue, Headers, Properties};
use amiquip::{AmqpProperties, AmqpValue, FieldTable};
use amq_protocol_types::DecimalValue;

pub(super) fn table(headers: &Headers) -> FieldTable {
    headers
        .iter()
        .map(|(name, value)| (name.to_owned(), amqp_value(value)))
        .collect()
}

pub(super) fn headers(table: &FieldTable) -> Headers {
    table
        .iter()
        .map(|(name, value)| (name.clone(), header_value(value)))
        .collect()
}

fn amqp_value(value: &HeaderValue) -> AmqpValue {
    match value {
        HeaderValue::Bool(value) => AmqpValue::Boolean(*value),
        HeaderValue::I8(value) => AmqpValue::ShortShortInt(*value),
        HeaderValue::U8(value) => AmqpValue::ShortShortUInt(*value),
        HeaderValue::I16(value) => AmqpValue::ShortInt(*value),
        HeaderValue::U16(value) => AmqpValue::ShortUInt(*value),
        HeaderValue::I32(value) => AmqpValue::LongInt(*value),
        HeaderValue::U32(value) => AmqpValue::LongUInt(*value),
        HeaderValue::I64(value) => AmqpValue::LongLongInt(*value),
        HeaderValue::F32(value) => AmqpValue::Float(*value),
        HeaderValue::F64(value) => AmqpValue::Double(*value),
        HeaderValue::Decimal { scale, value } => AmqpValue::DecimalValue(DecimalValue {
            scale: *scale,
            value: *value,
        }),
        HeaderValue::Text(value) => AmqpValue::LongString(value.clone()),
        HeaderValue::Bytes(value) => AmqpValue::ByteArray(value.clone()),
        HeaderValue::Timestamp(value) => AmqpValue::Timestamp(*value),
        HeaderValue::Array(values) => {
            AmqpValue::FieldArray(values.iter().map(amqp_value).collect())
        }
        HeaderValue::Table(headers) => AmqpValue::FieldTable(table(headers)),
        HeaderValue::Void => AmqpValue::Void,
    }
}

fn header_value(value: &AmqpValue) -> HeaderValue {
    match value {
        AmqpValue::Boolean(value) => HeaderValue::Bool(*value),
        AmqpValue::ShortShortInt(value) => HeaderValue::I8(*value),
        AmqpValue::ShortShortUInt(value) => HeaderValue::U8(*value),
        AmqpValue::ShortInt(value) => HeaderValue::I16(*value),
        AmqpValue::ShortUInt(value) => HeaderValue::U16(*value),
        AmqpValue::LongInt(value) => HeaderValue::I32(*value),
        AmqpValue::LongUInt(value) => HeaderValue::U32(*value),
        AmqpValue::LongLongInt(value) => HeaderValue::I64(*value),
        AmqpValue::Float(value) => HeaderValue::F32(*value),
        AmqpValue::Double(value) => HeaderValue::F64(*value),
        AmqpValue::DecimalValue(value) => HeaderValue::Decimal {
            scale: value.scale,
            value: value.value,
        },
        AmqpValue::LongString(value) => HeaderValue::Text(value.clone()),
        AmqpValue::ByteArray(value) => HeaderValue::Bytes(value.clone()),
        AmqpValue::Timestamp(value) => HeaderValue::Timestamp(*value),
        AmqpValue::FieldArray(values) => {
            HeaderValue::Array(values.iter().map(header_value).collect())
        }
        AmqpValue::FieldTable(table) => HeaderValue::Table(headers(table)),
        AmqpValue::Void => HeaderValue::Void,
    }
}

pub(super) fn amqp_properties(properties: &Properties, headers: &Headers) -> AmqpProperties {
    let mut amqp = AmqpProperties::default();
    macro_rules! set {
        ($($field:ident => $with:ident),+) => {
            $(if let Some(value) = &properties.$field {
                amqp = amqp.$with(value.clone());
            })+
        };
    }
    set!(
        content_type => with_content_type,
        content_encoding => with_content_encoding,
        delivery_mode => with_delivery_mode,
        priority => with_priority,
        correlation_id => with_correlation_id,
        reply_to => with_reply_to,
        expiration => with_expiration,
        message_id => with_message_id,
        timestamp => with_timestamp,
        message_type => with_type_,
        user_id => with_user_id,
        app_id => with_app_id,
        cluster_id => with_cluster_id
    );
    if !headers.is_empty() {
        amqp = amqp.with_headers(table(headers));
    }
    amqp
}

pub(super) fn properties(amqp: &AmqpProperties) -> (Properties, Headers) {
    let properties = Properties {
        content_type: amqp.content_type().clone(),
        content_encoding: amqp.content_encoding().clone(),
        delivery_mode: *amqp.delivery_mode(),
        priority: *amqp.priority(),
        correlation_id: amqp.correlation_id().clone(),
        reply_to: amqp.reply_to().clone(),
        expiration: amqp.expiration().clone(),
        message_id: amqp.message_id().clone(),
        timestamp: *amqp.timestamp(),
        message_type: amqp.type_().clone(),
        user_id: amqp.user_id().clone(),
        app_id: amqp.app_id().clone(),
        cluster_id: amqp.cluster_id().clone(),
    };
    let headers = amqp.headers().as_ref().map(headers).unwrap_or_default();
    (properties, headers)
}
