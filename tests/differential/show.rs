//! Results as text, which is what is compared.

use crate::message::delivery::Delivery;
use crate::message::headers::{HeaderValue, Headers};
use crate::transport::Failure;

/// A failure as it is compared: its reply code, and no text.
pub(super) fn told(failure: Failure) -> String {
    match failure {
        Failure::Refused { code, .. } => format!("refused with {code}"),
        Failure::Lost(_) => "lost".to_owned(),
        other => other.to_string(),
    }
}

/// The answer to a call that brings nothing.
pub(super) fn answered<T>(result: Result<T, Failure>) -> String {
    result.map_or_else(told, |_| "done".to_owned())
}

/// A delivery as it is compared: all but its tag, and the times in it.
pub(super) fn shown(delivery: &Delivery) -> String {
    let body = String::from_utf8_lossy(&delivery.body);
    let again = if delivery.redelivered { " again" } else { "" };
    let mut properties = format!("{:?}", delivery.properties);
    properties = properties
        .replace("Properties { ", "")
        .split(", ")
        .filter(|field| !field.contains(": None"))
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        "{body}{again} from {:?} {:?} {properties} {:?}",
        delivery.exchange,
        delivery.routing_key,
        timeless(&delivery.headers)
    )
}

fn timeless(headers: &Headers) -> Headers {
    let time = |name: &str, value: &HeaderValue| match value {
        HeaderValue::Timestamp(_) if name == "time" => HeaderValue::Void,
        other => strip(other),
    };
    headers
        .iter()
        .map(|(name, value)| (name, time(name, value)))
        .collect()
}

fn strip(value: &HeaderValue) -> HeaderValue {
    match value {
        HeaderValue::Array(values) => HeaderValue::Array(values.iter().map(strip).collect()),
        HeaderValue::Table(table) => HeaderValue::Table(timeless(table)),
        other => other.clone(),
    }
}
