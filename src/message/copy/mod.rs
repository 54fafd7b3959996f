//! Builds the copy of a delivery for a retry, a dead letter or a parked message. Pure.
//!
//! Headers of a message must fit one frame. If a copy would not fit, its reason is cut first and
//! headers are left out next.

use super::Opened;
use super::delivery::Outgoing;
use super::envelope::is_reserved;
use super::headers::{HeaderValue, Headers, Properties};
use super::wire::{
    ATTEMPT, CAUSATION, CORRELATION, ERROR, FIRST_SEEN, ID, NEVER_CARRIED, NEVER_CARRIED_PREFIXES,
    ORIGIN, ORIGINAL_EXCHANGE, ORIGINAL_ROUTING_KEY, PERSISTENT, TYPE,
};
use crate::naming::LONGEST_NAME;

/// Bytes of a content header frame around properties and headers: the frame's type, channel, size
/// and end mark (8); class, weight, body size and property flags (14).
const FRAME_OVERHEAD: usize = 8 + 14;
/// Headers to leave out, in this order, if they do not fit without a reason. The largest
/// application headers follow.
const EXPENDABLE: [&str; 6] = [
    ORIGINAL_EXCHANGE,
    ORIGINAL_ROUTING_KEY,
    ORIGIN,
    CAUSATION,
    CORRELATION,
    TYPE,
];

/// A copy and the names of the headers left out to make it fit.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) message: Outgoing,
    pub(crate) left_out: Vec<String>,
}

/// Copies `opened` for `queue` with the given `attempt`; a `reason` goes into `x-acemq-error`.
pub(crate) fn copy(
    opened: &Opened,
    queue: &str,
    attempt: u32,
    reason: Option<&str>,
    now_millis: i64,
    frame_max: usize,
) -> Copy {
    let delivery = &opened.delivery;
    let mut headers: Headers = delivery
        .headers
        .iter()
        .filter(|(name, _)| is_carried(name))
        .map(|(name, value)| (name, value.clone()))
        .collect();
    for (name, value) in [
        (ORIGINAL_EXCHANGE, opened.original_exchange()),
        (ORIGINAL_ROUTING_KEY, opened.original_routing_key()),
    ] {
        // A copy of a copy keeps the values of its first hop.
        if !headers.contains(name) {
            headers.insert(name, value);
        }
    }
    let mut envelope = opened.envelope.clone().with_attempt(attempt);
    if let Some(reason) = reason {
        envelope = envelope.with_error(reason);
    }
    envelope.write(&mut headers, now_millis);
    let properties = carried_properties(&delivery.properties, opened.envelope.id());
    // Properties cannot be shortened, so headers get the rest of the frame.
    let room = frame_max.saturating_sub(FRAME_OVERHEAD + encoded_len(&properties));
    let left_out = fit(&mut headers, room);
    let message = Outgoing {
        // The default exchange routes by queue name, so no binding can misroute a copy. Mandatory
        // makes a missing queue visible.
        exchange: String::new(),
        routing_key: queue.to_owned(),
        mandatory: true,
        properties,
        headers,
        body: delivery.body.clone(),
    };
    Copy { message, left_out }
}

/// Turns a dead letter into a fresh message for `queue`: attempt 1, no error, age counted from now.
pub(crate) fn replayed(
    opened: &Opened,
    queue: &str,
    now_millis: i64,
    frame_max: usize,
) -> Outgoing {
    let mut message = copy(opened, queue, 1, None, now_millis, frame_max).message;
    message.headers.remove(ERROR);
    message.headers.insert(FIRST_SEEN, now_millis);
    message
}

fn is_carried(name: &str) -> bool {
    !NEVER_CARRIED.contains(&name)
        && !NEVER_CARRIED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// Leaves out `expiration`, which would end the wait in a rung early, `user_id`, which the broker
/// refuses from another user, and `cluster_id`.
fn carried_properties(original: &Properties, id: &str) -> Properties {
    Properties {
        delivery_mode: Some(PERSISTENT),
        message_id: (id.len() <= LONGEST_NAME).then(|| id.to_owned()),
        expiration: None,
        user_id: None,
        cluster_id: None,
        ..original.clone()
    }
}

/// The encoded size of the properties in bytes, without the headers.
pub(crate) fn encoded_len(properties: &Properties) -> usize {
    let texts = [
        &properties.content_type,
        &properties.content_encoding,
        &properties.correlation_id,
        &properties.reply_to,
        &properties.expiration,
        &properties.message_id,
        &properties.message_type,
        &properties.user_id,
        &properties.app_id,
        &properties.cluster_id,
    ];
    let bytes = texts
        .into_iter()
        .flatten()
        .map(|text| 1 + text.len())
        .sum::<usize>();
    bytes
        + usize::from(properties.delivery_mode.is_some())
        + usize::from(properties.priority.is_some())
        + if properties.timestamp.is_some() { 8 } else { 0 }
}

/// The size in bytes of the content header frame for `properties` and `headers`.
pub(crate) fn header_frame_len(properties: &Properties, headers: &Headers) -> usize {
    FRAME_OVERHEAD + encoded_len(properties) + headers.encoded_len()
}

/// Makes the headers fit into `room` bytes: cuts the reason, then removes headers. Returns the
/// names of the removed headers.
fn fit(headers: &mut Headers, room: usize) -> Vec<String> {
    cut_reason(headers, room);
    let mut left_out = Vec::new();
    for name in EXPENDABLE {
        if headers.encoded_len() <= room {
            break;
        }
        if headers.remove(name).is_some() {
            left_out.push(name.to_owned());
        }
    }
    while headers.encoded_len() > room {
        let Some(largest) = largest_expendable(headers) else {
            break;
        };
        headers.remove(&largest);
        left_out.push(largest);
    }
    left_out
}

fn cut_reason(headers: &mut Headers, room: usize) {
    let surplus = headers.encoded_len().saturating_sub(room);
    if surplus == 0 {
        return;
    }
    // A reason that is not a text cannot be cut and is removed.
    if let Some(HeaderValue::Text(reason)) = headers.remove(ERROR) {
        let kept = reason.floor_char_boundary(reason.len().saturating_sub(surplus));
        if kept > 0 {
            headers.insert(ERROR, &reason[..kept]);
        }
    }
}

/// The largest removable header: application headers first, then reserved ones. Id, attempt and
/// first-seen always stay, because retries count by them.
fn largest_expendable(headers: &Headers) -> Option<String> {
    const KEPT: [&str; 3] = [ID, ATTEMPT, FIRST_SEEN];
    headers
        .iter()
        .filter(|(name, _)| !KEPT.contains(name))
        // Tuples compare by their first element, so any application header precedes the reserved
        // ones.
        .max_by_key(|(name, value)| (!is_reserved(name), name.len() + value.encoded_len()))
        .map(|(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests;
