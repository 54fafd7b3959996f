//! Properties and headers: the tests write amiquip's, the embedded broker takes the library's own.

use amiquip::{AmqpProperties, AmqpValue, ExchangeType, FieldTable};
use amq_protocol_types::DecimalValue;
use rungmq::testing::MessageView;
use rungmq::{ExchangeKind, HeaderValue, Headers, Properties};

use super::got::Got;

pub(super) fn headers(table: &FieldTable) -> Headers {
    let entries = table.iter();
    entries
        .map(|(name, value)| (name.clone(), header_value(value)))
        .collect()
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

fn table(headers: &Headers) -> FieldTable {
    let entries = headers.iter();
    entries
        .map(|(name, value)| (name.to_owned(), amqp_value(value)))
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
        other => panic!("not in AMQP: {other:?}"),
    }
}

pub(super) fn properties(amqp: &AmqpProperties) -> (Properties, Headers) {
    let mut properties = Properties::default();
    properties.content_type = amqp.content_type().clone();
    properties.content_encoding = amqp.content_encoding().clone();
    properties.delivery_mode = *amqp.delivery_mode();
    properties.priority = *amqp.priority();
    properties.correlation_id = amqp.correlation_id().clone();
    properties.reply_to = amqp.reply_to().clone();
    properties.expiration = amqp.expiration().clone();
    properties.message_id = amqp.message_id().clone();
    properties.timestamp = *amqp.timestamp();
    properties.message_type = amqp.type_().clone();
    properties.user_id = amqp.user_id().clone();
    properties.app_id = amqp.app_id().clone();
    properties.cluster_id = amqp.cluster_id().clone();
    let headers = amqp.headers().as_ref().map(headers).unwrap_or_default();
    (properties, headers)
}

fn amqp_properties(properties: &Properties, headers: &Headers) -> AmqpProperties {
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

impl From<MessageView> for Got {
    fn from(message: MessageView) -> Self {
        Self {
            properties: amqp_properties(&message.properties, &message.headers),
            exchange: message.exchange,
            routing_key: message.routing_key,
            redelivered: message.redelivered,
            body: message.body,
        }
    }
}

pub(super) fn kind(kind: ExchangeType) -> ExchangeKind {
    match kind {
        ExchangeType::Direct => ExchangeKind::Direct,
        ExchangeType::Fanout => ExchangeKind::Fanout,
        ExchangeType::Topic => ExchangeKind::Topic,
        ExchangeType::Headers => ExchangeKind::Headers,
        other => panic!("the embedded broker has no {other:?}"),
    }
}
