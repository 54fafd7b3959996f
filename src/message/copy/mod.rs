//! What a copy of a delivery carries, and how its headers are made to fit a frame. Pure.

use super::Opened;
use super::delivery::Outgoing;
use super::envelope::is_reserved;
use super::headers::{HeaderValue, Headers, Properties};
use super::wire::{
    ATTEMPT, CAUSATION, CORRELATION, ERROR, FIRST_SEEN, ID, NEVER_CARRIED, NEVER_CARRIED_PREFIXES,
    ORIGIN, ORIGINAL_EXCHANGE, ORIGINAL_ROUTING_KEY, PERSISTENT, TYPE,
};
use crate::naming::LONGEST_NAME;

/// A frame's type, channel, size and end mark; a content header's class, weight, body size and property flags.
const FRAME_OVERHEAD: usize = 8 + 14;
/// What gives way, in this order, when headers do not fit even without a reason; then the application's largest.
const EXPENDABLE: [&str; 6] = [
    ORIGINAL_EXCHANGE,
    ORIGINAL_ROUTING_KEY,
    ORIGIN,
    CAUSATION,
    CORRELATION,
    TYPE,
];

/// A copy, and the headers that had to be left out to make it fit.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) message: Outgoing,
    pub(crate) left_out: Vec<String>,
}

/// A copy of `opened` for `queue`, on its `attempt`, with `reason` in `x-acemq-error` when there is one.
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
    let room = frame_max.saturating_sub(FRAME_OVERHEAD + encoded_len(&properties));
    let left_out = fit(&mut headers, room);
    let message = Outgoing {
        exchange: String::new(),
        routing_key: queue.to_owned(),
        mandatory: true,
        properties,
        headers,
        body: delivery.body.clone(),
    };
    Copy { message, left_out }
}

/// A dead letter as a fresh message for `queue`: attempt 1, no error, its age counted from now.
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

/// Left out are `expiration`, which would end a rung's wait early, `user_id`, which the broker refuses from another user,
/// and `cluster_id`.
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

/// How many bytes the properties take in a content header, the headers not counted.
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

/// How many bytes a content header with these takes as a frame.
pub(crate) fn header_frame_len(properties: &Properties, headers: &Headers) -> usize {
    FRAME_OVERHEAD + encoded_len(properties) + headers.encoded_len()
}

/// Makes the headers fit into `room` bytes: the reason is cut, then headers go. Returns the names of those that went.
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
    if let Some(HeaderValue::Text(reason)) = headers.remove(ERROR) {
        let kept = reason.floor_char_boundary(reason.len().saturating_sub(surplus));
        if kept > 0 {
            headers.insert(ERROR, &reason[..kept]);
        }
    }
}

/// The largest header that may go: the application's first, then whatever is not needed to count attempts and ages.
fn largest_expendable(headers: &Headers) -> Option<String> {
    const KEPT: [&str; 3] = [ID, ATTEMPT, FIRST_SEEN];
    headers
        .iter()
        .filter(|(name, _)| !KEPT.contains(name))
        .max_by_key(|(name, value)| (!is_reserved(name), name.len() + value.encoded_len()))
        .map(|(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests;
