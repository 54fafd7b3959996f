//! The comparison of a repeated declaration's arguments with the existing ones.

use super::refusal::Refusal;
use crate::message::headers::{HeaderValue, Headers};

/// Fails when one of the `compared` arguments differs. `what` is the name of the object in the
/// refusal.
pub(crate) fn check_equivalent(
    what: &str,
    compared: &[&str],
    current: &Headers,
    received: &Headers,
) -> Result<(), Refusal> {
    for argument in compared {
        let (current, received) = (current.get(argument), received.get(argument));
        let (current_text, received_text) = match (current, received) {
            (None, None) => continue,
            (Some(current), Some(received)) => {
                if is_same(current, received) {
                    continue;
                }
                (value_text(current), value_text(received))
            }
            (Some(value), None) | (None, Some(value)) => {
                // A queue without the argument is a classic queue.
                if *argument == "x-queue-type" && value.as_str() == Some("classic") {
                    continue;
                }
                // RabbitMQ names the type of a value only if the other one is missing.
                let text = format!(
                    "the value '{}' of type '{}'",
                    bare_text(value),
                    type_name(value)
                );
                if received.is_some() {
                    ("none".to_owned(), text)
                } else {
                    (text, "none".to_owned())
                }
            }
        };
        return Err(Refusal::precondition_failed(format!(
            "inequivalent arg '{argument}' for {what}: \
             received {received_text} but current is {current_text}"
        )));
    }
    Ok(())
}

/// Whether two values are equal. Numbers are compared without their widths.
fn is_same(current: &HeaderValue, received: &HeaderValue) -> bool {
    let number = |value: &HeaderValue| match value {
        // RabbitMQ compares the bare numbers, and a timestamp is one of them.
        HeaderValue::Timestamp(seconds) => Some(i128::from(*seconds)),
        other => other.as_i64().map(i128::from),
    };
    match (number(current), number(received)) {
        (Some(current), Some(received)) => current == received,
        _ => current == received,
    }
}

fn value_text(value: &HeaderValue) -> String {
    format!("'{}'", bare_text(value))
}

fn bare_text(value: &HeaderValue) -> String {
    match value {
        HeaderValue::Text(text) => text.clone(),
        HeaderValue::Bool(flag) => flag.to_string(),
        HeaderValue::F32(number) => number.to_string(),
        HeaderValue::F64(number) => number.to_string(),
        HeaderValue::Timestamp(seconds) => seconds.to_string(),
        HeaderValue::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        HeaderValue::Void => "undefined".to_owned(),
        other => match other.as_i64() {
            Some(number) => number.to_string(),
            None => format!("{other:?}"),
        },
    }
}

/// The name of a type in RabbitMQ's texts.
pub(crate) fn type_name(value: &HeaderValue) -> &'static str {
    match value {
        HeaderValue::Bool(_) => "bool",
        HeaderValue::I8(_) => "byte",
        HeaderValue::U8(_) => "unsignedbyte",
        HeaderValue::I16(_) => "short",
        HeaderValue::U16(_) => "unsignedshort",
        HeaderValue::I32(_) => "signedint",
        HeaderValue::U32(_) => "unsignedint",
        HeaderValue::I64(_) => "long",
        HeaderValue::F32(_) => "float",
        HeaderValue::F64(_) => "double",
        HeaderValue::Decimal { .. } => "decimal",
        HeaderValue::Text(_) => "longstr",
        HeaderValue::Bytes(_) => "binary",
        HeaderValue::Timestamp(_) => "timestamp",
        HeaderValue::Array(_) => "array",
        HeaderValue::Table(_) => "table",
        HeaderValue::Void => "void",
    }
}
