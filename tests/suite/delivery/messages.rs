//! Tests of what a message shows to its handler.

use amiquip::{AmqpProperties, ExchangeType};
use rungmq::{Bytes, CodecError, Encode, HeaderValue, Json, Message, Publish};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Q, Seen, Stage, soon};
use crate::harness::table;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    item: String,
    quantity: u32,
}

#[test]
fn a_message_shows_all_that_came_with_it() {
    let stage = Stage::new();
    stage.raw.exchange("events", ExchangeType::Topic);
    stage.raw.bind(Q, "events", "order.#");
    let order = Order {
        item: "äpfel".to_owned(),
        quantity: 3,
    };
    let message = Publish::json(&order)
        .unwrap()
        .exchange("events")
        .routing_key("order.placed")
        .kind("order.placed.v2")
        .id("id-1")
        .correlation("conversation")
        .causation("cause")
        .claim("claim")
        .header("tenant", "acme")
        .reply_to("replies")
        .correlation_id("request")
        .properties(|properties| properties.priority = Some(3));
    let published = stage.mq.publish_with(message).unwrap();
    let seen = Seen::default();
    let messages = seen.clone();
    stage
        .consumer(&soon(1))
        .start(move |message: Message<Order>| messages.push(message))
        .unwrap();
    let message = seen.wait_for(1).remove(0);
    assert_eq!(message.payload(), &order);
    assert_eq!(message.body(), serde_json::to_vec(&order).unwrap());
    assert_eq!((message.id(), message.attempt()), ("id-1", 1));
    assert_eq!(message.content_type(), Some("application/json"));
    let properties = message.properties();
    assert_eq!(properties.reply_to.as_deref(), Some("replies"));
    assert_eq!(properties.correlation_id.as_deref(), Some("request"));
    assert_eq!(properties.message_id.as_deref(), Some("id-1"));
    assert_eq!(
        (properties.priority, properties.delivery_mode),
        (Some(3), Some(2))
    );
    assert_eq!(
        message.headers().get("tenant"),
        Some(&HeaderValue::Text("acme".to_owned()))
    );
    assert_eq!(message.headers().len(), 1, "{:?}", message.headers());
    assert_eq!(message.exchange(), "events");
    assert_eq!(message.routing_key(), "order.placed");
    assert_eq!(message.original_exchange(), "events");
    assert_eq!(message.original_routing_key(), "order.placed");
    assert!(!message.redelivered());
    let envelope = message.envelope();
    assert_eq!(envelope, &published, "the publisher was told the same");
    assert_eq!(envelope.kind(), "order.placed.v2");
    assert_eq!(envelope.correlation(), "conversation");
    assert_eq!(envelope.causation(), Some("cause"));
    assert_eq!(envelope.claim(), Some("claim"));
    assert_eq!(envelope.error(), None);
    let debug = format!("{message:?}");
    assert!(debug.contains("id-1") && debug.contains("äpfel"), "{debug}");
    assert_eq!(message.clone().into_payload(), order);
}

#[test]
fn message_of_a_foreign_client_has_an_envelope() {
    let stage = Stage::classic();
    stage.raw.send(
        Q,
        "1",
        AmqpProperties::default().with_message_id("theirs".to_owned()),
    );
    let seen = Seen::default();
    let messages = seen.clone();
    stage
        .consumer(&soon(1))
        .start(move |message: Message<Value>| messages.push(message))
        .unwrap();
    let message = seen.wait_for(1).remove(0);
    let envelope = message.envelope();
    assert_eq!(envelope.id(), "theirs");
    assert_eq!(envelope.correlation(), "theirs");
    assert_eq!((envelope.attempt(), envelope.version()), (1, 1));
    assert_eq!(envelope.kind(), Q);
    assert_eq!(envelope.origin(), "");
    assert_eq!(envelope.first_seen_millis(), None);
    assert_eq!(envelope.causation(), None);
    assert_eq!(message.content_type(), None);
    assert!(message.headers().is_empty());
}

#[test]
fn a_message_that_came_back_says_so() {
    let stage = Stage::new();
    stage.send("1");
    stage.raw.browse(Q);
    let seen = stage.retrying(&soon(2), |message| {
        (message.redelivered(), message.attempt())
    });
    stage.dead();
    // A redelivery is no new attempt, and a retry no redelivery.
    assert_eq!(seen.all(), [(true, 1), (false, 2)]);
}

/// A codec of the application.
struct Reversed;

impl Encode<str> for Reversed {
    fn content_type(&self) -> &str {
        "application/x-reversed"
    }

    fn encode(&self, payload: &str) -> Result<Vec<u8>, CodecError> {
        if payload.is_empty() {
            return Err(CodecError::new("nothing to turn round"));
        }
        Ok(payload.bytes().rev().collect())
    }
}

#[test]
fn payloads_are_written_by_the_codec_that_was_asked_for() {
    let stage = Stage::classic();
    let send = |message: Publish| {
        stage.mq.publish_with(message.routing_key(Q)).unwrap();
        let got = stage.raw.get(Q).unwrap();
        let content_type = got.properties.content_type().clone().unwrap();
        (content_type, got.body)
    };
    let is = |content_type: &str, body: &[u8]| (content_type.to_owned(), body.to_vec());
    assert_eq!(
        send(Publish::json("a").unwrap()),
        is("application/json", b"\"a\"")
    );
    assert_eq!(
        send(Publish::text("ä")),
        is("text/plain; charset=utf-8", "ä".as_bytes())
    );
    assert_eq!(
        send(Publish::bytes([1, 2])),
        is("application/octet-stream", &[1, 2])
    );
    assert_eq!(
        send(Publish::encoded(&Reversed, "abc").unwrap()),
        is("application/x-reversed", b"cba")
    );
    assert_eq!(
        send(Publish::encoded(&Bytes, "abc").unwrap()),
        is("application/octet-stream", b"abc")
    );
    assert_eq!(
        send(
            Publish::encoded(&Json, &Some(1))
                .unwrap()
                .content_type("text/json")
        ),
        is("text/json", b"1")
    );
    let error = Publish::encoded(&Reversed, "").unwrap_err();
    assert_eq!(error.to_string(), "nothing to turn round");

    let unwritable = std::collections::BTreeMap::from([(vec![1], 2)]);
    let error = stage.mq.publish("", Q, &unwritable).unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert!(error.into_message().is_none());
    assert_eq!(stage.raw.count(Q), 0);
}

#[test]
fn original_address_headers_win_over_the_delivery() {
    let stage = Stage::classic();
    let headers = table([
        ("x-original-exchange", "orders"),
        ("x-original-routingKey", "order.placed"),
    ]);
    stage
        .raw
        .send(Q, "1", AmqpProperties::default().with_headers(headers));
    let message = stage.mq.pull(Q).unwrap().unwrap();
    assert_eq!(message.original_exchange(), "orders");
    assert_eq!(message.original_routing_key(), "order.placed");
    assert_eq!((message.exchange(), message.routing_key()), ("", Q));
}
