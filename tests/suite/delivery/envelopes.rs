//! Tests of what a publish puts on the wire, and of what it refuses.

use std::collections::BTreeSet;

use amiquip::{AmqpProperties, AmqpValue};
use rungmq::{Connection, HeaderValue, Headers, Publish};

use super::{LIMIT, LONG_RUNG, Q, Stage, by_long_rung, soon};
use crate::harness::wait::epoch_millis;
use crate::harness::{Got, table};

fn names(got: &Got) -> BTreeSet<&str> {
    let headers = got.properties.headers().as_ref().unwrap();
    headers.keys().map(String::as_str).collect()
}

#[test]
fn plain_publish_has_exactly_the_contracts_headers() {
    let stage = Stage::classic();
    let before = epoch_millis();
    let envelope = stage.mq.publish("", Q, &vec![1, 2]).unwrap();
    let after = epoch_millis();
    let got = stage.raw.get(Q).unwrap();
    assert_eq!(got.text(), "[1,2]");
    assert_eq!(
        names(&got),
        BTreeSet::from([
            "x-acemq-id",
            "x-acemq-type",
            "x-acemq-version",
            "x-acemq-correlation",
            "x-acemq-attempt",
            "x-acemq-first-seen",
            "x-acemq-origin",
        ])
    );
    let id = envelope.id();
    assert_eq!((id.len(), id.as_bytes()[14]), (36, b'4'), "a UUID v4: {id}");
    for (name, value) in [
        ("x-acemq-id", id),
        ("x-acemq-correlation", id),
        ("x-acemq-type", Q),
    ] {
        let text = AmqpValue::LongString(value.to_owned());
        assert_eq!(got.header(name), Some(&text), "{name}");
    }
    let one = AmqpValue::LongInt(1);
    assert_eq!(got.header("x-acemq-version"), Some(&one));
    assert_eq!(got.header("x-acemq-attempt"), Some(&one));
    let Some(AmqpValue::LongLongInt(first_seen)) = got.header("x-acemq-first-seen") else {
        panic!("{:?}", got.header("x-acemq-first-seen"));
    };
    assert!((before..=after).contains(first_seen), "{first_seen}");
    assert_eq!(envelope.first_seen_millis(), Some(*first_seen));
    let host = gethostname::gethostname().to_string_lossy().into_owned();
    assert_eq!(
        got.header_text("x-acemq-origin"),
        Some(format!("rungmq@{host}").as_str())
    );
    let expected = AmqpProperties::default()
        .with_content_type("application/json".to_owned())
        .with_delivery_mode(2)
        .with_message_id(id.to_owned())
        .with_headers(got.properties.headers().clone().unwrap());
    assert_eq!(got.properties, expected);
    assert_eq!((envelope.attempt(), envelope.version()), (1, 1));
}

#[test]
fn a_full_publish_says_everything_it_was_told() {
    let stage = Stage::classic();
    let mq = Connection::builder(stage.vhost.url())
        .origin("checkout@pod-7")
        .open()
        .unwrap();
    let message = Publish::text("hello")
        .routing_key(Q)
        .kind("order.placed.v2")
        .id("id-1")
        .correlation("conversation")
        .causation("cause")
        .claim("s3://bucket/key")
        .header("tenant", "acme")
        .persistent(false)
        .reply_to("replies")
        .correlation_id("request")
        .properties(|properties| {
            properties.priority = Some(9);
            properties.app_id = Some("shop".to_owned());
            properties.message_type = Some("order".to_owned());
            properties.timestamp = Some(1_700_000_000);
            properties.content_encoding = Some("identity".to_owned());
            properties.expiration = Some("600000".to_owned());
            properties.user_id = Some("guest".to_owned());
            properties.message_id = Some("another".to_owned());
        });
    mq.publish_with(message).unwrap();
    let got = stage.raw.get(Q).unwrap();
    for (name, value) in [
        ("x-acemq-id", "id-1"),
        ("x-acemq-type", "order.placed.v2"),
        ("x-acemq-correlation", "conversation"),
        ("x-acemq-causation", "cause"),
        ("x-acemq-claim", "s3://bucket/key"),
        ("x-acemq-origin", "checkout@pod-7"),
        ("tenant", "acme"),
    ] {
        assert_eq!(got.header_text(name), Some(value), "{name}");
    }
    let expected = AmqpProperties::default()
        .with_content_type("text/plain; charset=utf-8".to_owned())
        .with_content_encoding("identity".to_owned())
        .with_delivery_mode(1)
        .with_priority(9)
        .with_correlation_id("request".to_owned())
        .with_reply_to("replies".to_owned())
        .with_expiration("600000".to_owned())
        .with_message_id("id-1".to_owned())
        .with_timestamp(1_700_000_000)
        .with_type_("order".to_owned())
        .with_user_id("guest".to_owned())
        .with_app_id("shop".to_owned())
        .with_headers(got.properties.headers().clone().unwrap());
    assert_eq!(got.properties, expected);
}

#[test]
fn an_empty_optional_text_is_absent() {
    let stage = Stage::classic();
    let message = Publish::text("x")
        .routing_key(Q)
        .id("")
        .correlation("")
        .causation("")
        .claim("");
    let envelope = stage.mq.publish_with(message).unwrap();
    let got = stage.raw.get(Q).unwrap();
    assert!(!envelope.id().is_empty());
    assert_eq!(got.message_id(), Some(envelope.id()));
    assert_eq!(got.header_text("x-acemq-correlation"), Some(envelope.id()));
    for absent in ["x-acemq-causation", "x-acemq-claim", "x-acemq-error"] {
        assert_eq!(got.header(absent), None, "{absent}");
    }
}

#[test]
fn reserved_headers_are_refused_and_all_of_them_named() {
    let stage = Stage::classic();
    let message = Publish::text("x")
        .routing_key(Q)
        .header("x-acemq-zebra", 1)
        .header("x-acemq-attempt", 7)
        .header("fine", 1)
        .header("x-acemq-", "bare")
        .header("X-AceMQ-Id", "another case is the application's own")
        .header("x-acemqueue", "another name");
    let error = stage.mq.publish_with(message).unwrap_err();
    assert!(error.is_invalid(), "{error}");
    let text = error.to_string();
    assert!(
        text.ends_with(": x-acemq-, x-acemq-attempt, x-acemq-zebra"),
        "{text}"
    );
    assert_eq!(error.into_message().unwrap().body(), b"x");
    assert_eq!(stage.raw.count(Q), 0);

    let fine = Publish::text("x")
        .routing_key(Q)
        .header("X-AceMQ-Id", "mine")
        .header("x-acemqueue", "mine");
    stage.mq.publish_with(fine).unwrap();
    let got = stage.raw.get(Q).unwrap();
    assert_eq!(got.header_text("X-AceMQ-Id"), Some("mine"));
    assert_eq!(got.header_text("x-acemqueue"), Some("mine"));
}

#[test]
fn headers_of_every_type_reach_the_wire_as_they_were_given() {
    let stage = Stage::classic();
    let nested: Headers = [("deep", HeaderValue::I8(-1))].into_iter().collect();
    let mut message = Publish::text("x").routing_key(Q);
    use AmqpValue as V;
    let pairs: Vec<(&str, HeaderValue, AmqpValue)> = vec![
        ("bool", true.into(), V::Boolean(true)),
        ("i8", (-1_i8).into(), V::ShortShortInt(-1)),
        ("u8", 255_u8.into(), V::ShortShortUInt(255)),
        ("i16", i16::MIN.into(), V::ShortInt(i16::MIN)),
        ("u16", u16::MAX.into(), V::ShortUInt(u16::MAX)),
        ("i32", i32::MIN.into(), V::LongInt(i32::MIN)),
        ("u32", u32::MAX.into(), V::LongUInt(u32::MAX)),
        ("i64", i64::MIN.into(), V::LongLongInt(i64::MIN)),
        ("f32", 1.5_f32.into(), V::Float(1.5)),
        ("f64", 1e300.into(), V::Double(1e300)),
        (
            "decimal",
            HeaderValue::Decimal {
                scale: 2,
                value: 314,
            },
            V::DecimalValue(amq_protocol_types::DecimalValue {
                scale: 2,
                value: 314,
            }),
        ),
        ("text", "é".into(), V::LongString("é".to_owned())),
        ("bytes", vec![0_u8, 255].into(), V::ByteArray(vec![0, 255])),
        ("timestamp", HeaderValue::Timestamp(7), V::Timestamp(7)),
        (
            "array",
            vec![HeaderValue::Void, 1_i32.into()].into(),
            V::FieldArray(vec![V::Void, V::LongInt(1)]),
        ),
        (
            "table",
            nested.into(),
            V::FieldTable(table([("deep", V::ShortShortInt(-1))])),
        ),
        ("void", HeaderValue::Void, V::Void),
    ];
    for (name, value, _) in &pairs {
        message = message.header(*name, value.clone());
    }
    stage.mq.publish_with(message).unwrap();
    let got = stage.raw.get(Q).unwrap();
    for (name, _, expected) in &pairs {
        assert_eq!(got.header(name), Some(expected), "{name}");
    }
}

/// RabbitMQ cannot read them and would close the connection with all its publishers.
#[test]
fn non_finite_float_header_is_refused_before_the_wire() {
    let stage = Stage::classic();
    for (value, name) in [
        (HeaderValue::F64(f64::NAN), "x"),
        (HeaderValue::F32(f32::INFINITY), "x"),
        (
            HeaderValue::Array(vec![HeaderValue::F64(f64::NEG_INFINITY)]),
            "x",
        ),
    ] {
        let message = Publish::text("x")
            .routing_key(Q)
            .header(name, value.clone());
        let error = stage.mq.publish_with(message).unwrap_err();
        assert!(error.is_invalid(), "{value:?}: {error}");
        assert!(error.to_string().contains("\"x\""), "{error}");
    }
    stage.mq.publish("", Q, &1).unwrap();
    assert_eq!(stage.raw.count(Q), 1);
}

#[test]
fn what_amqp_cannot_hold_is_refused_and_the_connection_lives() {
    let stage = Stage::classic();
    let long = "é".repeat(128);
    let too_long = [
        Publish::text("x").routing_key(&long),
        Publish::text("x").exchange(&long),
        Publish::text("x").routing_key(Q).reply_to(&long),
        Publish::text("x").routing_key(Q).correlation_id(&long),
        Publish::text("x").routing_key(Q).content_type(&long),
        Publish::text("x").routing_key(Q).header(&long, 1),
        Publish::text("x").routing_key(Q).header(
            "nested",
            [(long.clone(), 1_i32)].into_iter().collect::<Headers>(),
        ),
        Publish::text("x")
            .routing_key(Q)
            .properties(|properties| properties.app_id = Some("x".repeat(256))),
        Publish::text("x")
            .routing_key(Q)
            .header("big", "x".repeat(131_072)),
    ];
    for message in too_long {
        let error = stage.mq.publish_with(message).unwrap_err();
        assert!(error.is_invalid(), "{error}");
        assert!(error.to_string().len() < 2000, "{error}");
    }
    // Just as long as they may be.
    let longest = "x".repeat(255);
    stage.raw.classic(&longest);
    let message = Publish::text("x")
        .routing_key(&longest)
        .correlation_id(&longest)
        .id(&longest)
        .header(&longest, "x".repeat(120_000));
    stage.mq.publish_with(message).unwrap();
    let got = stage.raw.get(&longest).unwrap();
    assert_eq!(got.message_id(), Some(longest.as_str()));
    assert_eq!(got.header_text(&longest).map(str::len), Some(120_000));
}

#[test]
fn unknown_reserved_headers_are_carried_and_not_shown() {
    let stage = Stage::classic();
    let carried = || {
        vec![
            ("x-acemq-route", AmqpValue::LongString("a,b".to_owned())),
            ("x-acemq-route-position", AmqpValue::LongInt(2)),
            ("x-acemq-route-id", AmqpValue::LongString("r-1".to_owned())),
            (
                "x-acemq-from-the-future",
                AmqpValue::FieldArray(vec![AmqpValue::ShortShortUInt(1), AmqpValue::Void]),
            ),
            ("x-acemq-claim", AmqpValue::LongString("claim".to_owned())),
            ("x-acemq-causation", AmqpValue::LongString("c".to_owned())),
            ("x-acemq-origin", AmqpValue::LongString("go@x".to_owned())),
            ("x-acemq-type", AmqpValue::LongString("kind".to_owned())),
            ("x-acemq-version", AmqpValue::LongInt(3)),
        ]
    };
    let mut headers = table(carried());
    headers.insert(
        "tenant".to_owned(),
        AmqpValue::LongString("acme".to_owned()),
    );
    stage
        .raw
        .send(Q, "1", AmqpProperties::default().with_headers(headers));
    let shown = stage.retrying(&by_long_rung(2), |message| {
        let names = message.headers().iter().map(|(name, _)| name.to_owned());
        (names.collect::<Vec<_>>(), message.envelope().clone())
    });
    let rung = stage.raw.wait_for_get(LONG_RUNG, LIMIT);
    stage.raw.send(Q, "1", rung.properties.clone());
    let dead = stage.dead();
    for copy in [&rung, &dead] {
        for (name, value) in carried() {
            assert_eq!(copy.header(name), Some(&value), "{name}");
        }
    }
    for (names, envelope) in shown.all() {
        assert!(names.contains(&"tenant".to_owned()));
        let reserved: Vec<_> = names
            .iter()
            .filter(|name| name.starts_with("x-acemq-"))
            .collect();
        assert!(reserved.is_empty(), "{reserved:?}");
        assert_eq!(envelope.kind(), "kind");
        assert_eq!(envelope.version(), 3);
        assert_eq!(envelope.origin(), "go@x");
        assert_eq!(
            (envelope.causation(), envelope.claim()),
            (Some("c"), Some("claim"))
        );
    }
}

#[test]
fn age_counts_from_the_first_publish() {
    let stage = Stage::new();
    let envelope = stage.mq.publish("", Q, &1).unwrap();
    let first_seen = envelope.first_seen_millis();
    let seen = stage.retrying(&soon(3), |message| message.envelope().first_seen_millis());
    let dead = stage.dead();
    assert_eq!(seen.all(), [first_seen; 3]);
    assert_eq!(dead.header_number("x-acemq-first-seen"), first_seen);
}
