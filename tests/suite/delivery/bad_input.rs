//! Tests of bodies that cannot be decoded and of headers of the wrong type.

use std::time::Duration;

use amiquip::{AmqpProperties, AmqpValue};
use rungmq::{Ack, Bytes, CodecError, Decode, Json, Message, Text, naming};
use serde::Deserialize;
use serde_json::Value;

use super::{LIMIT, Q, Seen, Stage, by_rung, soon};
use crate::harness::{table, wait_until};

#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "only its shape is of interest")]
struct Order {
    item: String,
    quantity: u32,
}

#[test]
fn a_body_that_cannot_be_decoded_is_parked_and_no_handler_runs() {
    let bodies: [(&[u8], Option<&str>, &str); 7] = [
        (b"", None, "the body is not JSON"),
        (&[0xFF], None, "the body is not JSON"),
        (
            b"{\"item\":",
            Some("application/json"),
            "the body is not JSON",
        ),
        (b"[]", None, "the JSON does not match the expected type"),
        (
            br#"{"item":"a","quantity":-1}"#,
            None,
            "the JSON does not match the expected type",
        ),
        (
            br#"{"item":"a","quantity":1}"#,
            Some("application/xml"),
            "the content type is application/xml, not JSON",
        ),
        (
            br#"{"item":"a","quantity":1}"#,
            Some("text/plain"),
            "the content type is text/plain, not JSON",
        ),
    ];
    let stage = Stage::new();
    for (body, content_type, _) in bodies {
        let mut properties = AmqpProperties::default();
        if let Some(content_type) = content_type {
            properties = properties.with_content_type(content_type.to_owned());
        }
        stage.raw.send(Q, body, properties);
    }
    let calls = Seen::default();
    let seen = calls.clone();
    stage
        .consumer(&by_rung(3))
        .start(move |message: Message<Order>| {
            seen.push(message.id().to_owned());
            Ack::accept()
        })
        .unwrap();
    stage.settled(&[("parked", bodies.len() as u64)]);
    let parked = stage.raw.drain(&naming::parked_queue(Q));
    assert_eq!(parked.len(), bodies.len());
    for (got, (body, content_type, text)) in parked.iter().zip(bodies) {
        assert_eq!(got.body, body, "one worker parks them in order");
        assert_eq!(got.properties.content_type().as_deref(), content_type);
        let error = got.header_text("x-acemq-error").unwrap();
        let expected = format!("could not be decoded: {text}");
        assert!(error.starts_with(&expected), "{error}");
        assert_eq!(got.header_number("x-acemq-attempt"), Some(1));
    }
    assert_eq!(calls.all(), [""; 0]);
    assert_eq!(stage.raw.count(&naming::dead_letter_queue(Q)), 0);
    let snapshot = stage.snapshot();
    let labels = [("queue", Q), ("outcome", "parked")];
    assert!(
        snapshot
            .histogram("acemq.consume.duration", &labels)
            .is_none(),
        "no handler ran"
    );
}

#[test]
fn a_type_that_is_nearly_json_is_decoded() {
    let stage = Stage::new();
    let types = [
        "",
        "application/json",
        "Application/JSON; charset=utf-8",
        "text/json",
        "application/vnd.order+json",
    ];
    for content_type in types {
        let properties = AmqpProperties::default().with_content_type(content_type.to_owned());
        stage
            .raw
            .send(Q, r#"{"item":"a","quantity":1}"#, properties);
    }
    stage
        .consumer(&soon(1))
        .start(|_: Message<Order>| {})
        .unwrap();
    stage.settled(&[("acked", types.len() as u64)]);
}

/// A codec of the application that fails in every way.
struct Moody;

impl Decode<u8> for Moody {
    fn decode(&self, body: &[u8], _content_type: Option<&str>) -> Result<u8, CodecError> {
        match body {
            [b'p'] => panic!("not today"),
            [b'c'] => Err(CodecError::caused_by(
                "bad byte",
                std::io::Error::other("parity"),
            )),
            [byte] => Ok(*byte),
            _ => Err(CodecError::new("one byte,\nnot more")),
        }
    }
}

#[test]
fn custom_codec_parks_what_it_refuses_or_panics_over() {
    let stage = Stage::new();
    stage
        .raw
        .send_all(Q, ["p", "c", "xx", "7"], &AmqpProperties::default());
    let payloads = Seen::default();
    let seen = payloads.clone();
    stage
        .consumer(&soon(3))
        .codec(Moody)
        .start(move |message: Message<u8>| seen.push(*message.payload()))
        .unwrap();
    stage.settled(&[("acked", 1), ("parked", 3)]);
    assert_eq!(payloads.all(), [b'7']);
    let errors: Vec<_> = stage
        .raw
        .drain(&naming::parked_queue(Q))
        .iter()
        .map(|got| got.header_text("x-acemq-error").unwrap().to_owned())
        .collect();
    assert_eq!(
        errors,
        [
            "could not be decoded: panicked: not today",
            "could not be decoded: bad byte: parity",
            "could not be decoded: one byte, not more",
        ]
    );
}

#[test]
fn each_codec_reads_what_is_its_own() {
    let stage = Stage::bare();
    let body = [0xFF, 0x00, b'x'];
    for queue in ["text", "bytes", "json"] {
        stage.raw.quorum(queue);
        for (content_type, body) in [
            ("text/plain", &b"hello"[..]),
            ("application/octet-stream", &body),
        ] {
            let properties = AmqpProperties::default().with_content_type(content_type.to_owned());
            stage.raw.send(queue, body, properties);
        }
    }
    let (texts, bytes) = (Seen::default(), Seen::default());
    let (seen_texts, seen_bytes) = (texts.clone(), bytes.clone());
    stage
        .mq
        .consumer("text")
        .codec(Text)
        .start(move |message: Message<String>| seen_texts.push(message.into_payload()))
        .unwrap();
    stage
        .mq
        .consumer("bytes")
        .codec(Bytes)
        .start(move |message: Message<Vec<u8>>| seen_bytes.push(message.into_payload()))
        .unwrap();
    stage
        .mq
        .consumer("json")
        .codec(Json)
        .start(|_: Message<Value>| {})
        .unwrap();
    stage.settled_in("text", &[("acked", 1), ("parked", 1)]);
    stage.settled_in("bytes", &[("acked", 2)]);
    stage.settled_in("json", &[("parked", 2)]);
    assert_eq!(texts.all(), ["hello"]);
    assert_eq!(bytes.all(), [b"hello".to_vec(), body.to_vec()]);
    let parked = stage.raw.wait_for_get("text.parked", LIMIT);
    assert_eq!(
        parked.header_text("x-acemq-error"),
        Some("could not be decoded: the content type is application/octet-stream, not text")
    );
}

#[test]
fn reserved_headers_of_wrong_types_cause_no_panic_and_no_loss() {
    use AmqpValue as V;
    let odd = || {
        vec![
            V::Void,
            V::Boolean(true),
            V::Double(f64::MAX),
            V::LongLongInt(-1),
            V::LongString(String::new()),
            V::ByteArray(vec![0xFF, 0xFE]),
            V::Timestamp(u64::MAX),
            V::FieldArray(vec![V::Void]),
            V::FieldTable(table([("deep", 1_i64)])),
        ]
    };
    let names = [
        "x-acemq-id",
        "x-acemq-type",
        "x-acemq-version",
        "x-acemq-correlation",
        "x-acemq-causation",
        "x-acemq-origin",
        "x-acemq-error",
        "x-acemq-claim",
        "x-original-exchange",
        "x-original-routingKey",
        "x-delivery-count",
    ];
    let stage = Stage::classic();
    let mut sent = 0;
    for name in names {
        for value in odd() {
            let properties = AmqpProperties::default()
                .with_message_id(format!("message {sent}"))
                .with_headers(table([(name, value)]));
            stage.raw.send(Q, "1", properties);
            sent += 1;
        }
    }
    stage
        .consumer(&soon(2))
        .concurrency(4)
        .start(|message: Message<Value>| {
            let envelope = message.envelope();
            assert!(!envelope.id().is_empty() && envelope.version() == 1);
            assert!(envelope.causation() != Some("") && envelope.claim() != Some(""));
            let _ = (message.original_exchange(), message.original_routing_key());
            Ack::retry("no stock")
        })
        .unwrap();
    stage.settled(&[("retried", sent), ("dead_lettered", sent)]);
    let dead = stage.raw.drain(&naming::dead_letter_queue(Q));
    assert_eq!(dead.len(), sent as usize);
    for got in &dead {
        assert_eq!(
            got.header_text("x-acemq-error"),
            Some("gave up after 2 attempts: no stock"),
            "no assertion of the handler's failed"
        );
        for name in ["x-acemq-id", "x-acemq-correlation"] {
            assert!(
                got.header_text(name).is_some_and(|text| !text.is_empty()),
                "{name}: {:?}",
                got.header(name)
            );
        }
        // An empty one stays empty: the next routing key would be a lie.
        assert!(got.header_text("x-acemq-type").is_some());
    }
}

#[test]
fn the_connection_outlives_all_of_it() {
    let stage = Stage::new();
    stage.mq.publish("", Q, &"before").unwrap();
    stage
        .consumer(&soon(1))
        .start(|_: Message<Value>| {})
        .unwrap();
    stage.settled(&[("acked", 1)]);
    let before = stage.sockets();
    for body in [&b""[..], &[0xFF], b"{"] {
        stage.send(body);
    }
    stage.settled(&[("acked", 1), ("parked", 3)]);
    stage.mq.publish("", Q, &"after").unwrap();
    stage.settled(&[("acked", 2), ("parked", 3)]);
    wait_until(Duration::from_secs(10), "the same sockets", || {
        stage.sockets() == before
    });
}
