//! Tests of copies.

use super::*;
use crate::message::delivery::Delivery;
use crate::message::envelope::Envelope;
use proptest::prelude::*;
use std::sync::Arc;

fn opened(properties: Properties, headers: Headers) -> Opened {
    let envelope = Envelope::read(&properties, &headers, "order.placed", 1_000_000, || {
        "made-up".to_owned()
    });
    let delivery = Delivery {
        tag: 7,
        redelivered: false,
        exchange: "orders".to_owned(),
        routing_key: "order.placed".to_owned(),
        properties,
        headers,
        body: Arc::new(b"body".to_vec()),
    };
    Opened::new(delivery, envelope)
}

fn full() -> Properties {
    let text = |text: &str| Some(text.to_owned());
    Properties {
        content_type: text("application/json"),
        content_encoding: text("gzip"),
        delivery_mode: Some(1),
        priority: Some(7),
        correlation_id: text("correlation"),
        reply_to: text("amq.rabbitmq.reply-to.abc"),
        expiration: text("500"),
        message_id: text("id-1"),
        timestamp: Some(1_700_000_000),
        message_type: text("order"),
        user_id: text("guest"),
        app_id: text("checkout"),
        cluster_id: text("cluster"),
    }
}

/// The copy of [`full`] with these headers for a second attempt, without a frame limit.
fn retry_copy(headers: Headers) -> Outgoing {
    let opened = opened(full(), headers);
    copy(&opened, "orders.new.retry.40s", 2, None, 0, usize::MAX).message
}

#[track_caller]
fn assert_comes_from(copy: &Outgoing, exchange: &str, routing_key: &str) {
    let [from, by] = [ORIGINAL_EXCHANGE, ORIGINAL_ROUTING_KEY].map(|name| copy.headers.get(name));
    assert_eq!(
        (from, by),
        (Some(&exchange.into()), Some(&routing_key.into()))
    );
}

#[test]
fn copy_carries_the_message_but_not_its_path() {
    let nested: Headers = [(
        "deep",
        HeaderValue::Array(vec![HeaderValue::U8(1), HeaderValue::Void]),
    )]
    .into_iter()
    .collect();
    let headers: Headers = [
        ("tenant", HeaderValue::from("acme")),
        ("table", nested.clone().into()),
        ("CC", HeaderValue::Array(vec!["elsewhere".into()])),
        ("BCC", HeaderValue::Array(vec!["elsewhere".into()])),
        ("x-death", HeaderValue::Array(vec![])),
        ("x-first-death-queue", "q".into()),
        ("x-last-death-queue", "q".into()),
        ("x-delivery-count", HeaderValue::I64(3)),
        ("x-acemq-future", "kept".into()),
        ("x-acemq-error", "earlier".into()),
    ]
    .into_iter()
    .collect();
    let copy = retry_copy(headers);
    let expected = Properties {
        delivery_mode: Some(2),
        expiration: None,
        user_id: None,
        cluster_id: None,
        ..full()
    };
    assert_eq!(copy.properties, expected);
    assert_eq!(
        (
            copy.exchange.as_str(),
            copy.routing_key.as_str(),
            copy.mandatory
        ),
        ("", "orders.new.retry.40s", true)
    );
    assert_eq!(copy.headers.get("tenant"), Some(&"acme".into()));
    assert_eq!(copy.headers.get("table"), Some(&nested.into()));
    assert_eq!(copy.headers.get("x-acemq-future"), Some(&"kept".into()));
    assert_eq!(copy.headers.get("x-acemq-error"), Some(&"earlier".into()));
    assert_eq!(copy.headers.get("x-acemq-attempt"), Some(&2_i32.into()));
    assert_comes_from(&copy, "orders", "order.placed");
    for name in [
        "CC",
        "BCC",
        "x-death",
        "x-first-death-queue",
        "x-last-death-queue",
        "x-delivery-count",
    ] {
        assert!(!copy.headers.contains(name), "{name} was carried");
    }
}

#[test]
fn origin_is_written_at_the_first_hop_only() {
    let headers: Headers = [
        (ORIGINAL_EXCHANGE, "first"),
        (ORIGINAL_ROUTING_KEY, "first.key"),
    ]
    .into_iter()
    .collect();
    let copy = retry_copy(headers);
    assert_comes_from(&copy, "first", "first.key");
}

#[test]
fn broker_dead_letter_keeps_its_origin() {
    let death = |exchange: &str, key: &str| {
        let death: Headers = [
            ("exchange", HeaderValue::from(exchange)),
            ("routing-keys", HeaderValue::Array(vec![key.into()])),
        ]
        .into_iter()
        .collect();
        HeaderValue::Table(death)
    };
    let deaths = vec![death("later", "later.key"), death("first", "first.key")];
    let headers: Headers = [("x-death", HeaderValue::Array(deaths))]
        .into_iter()
        .collect();
    let copy = retry_copy(headers);
    assert_comes_from(&copy, "first", "first.key");
}

#[test]
fn id_too_long_for_a_property_stays_in_its_header() {
    let id = "i".repeat(256);
    let headers: Headers = [("x-acemq-id", id.as_str())].into_iter().collect();
    let copy = retry_copy(headers);
    assert_eq!(copy.properties.message_id, None);
    assert_eq!(copy.headers.get("x-acemq-id"), Some(&id.as_str().into()));
}

#[test]
fn long_reason_is_cut_at_a_character_boundary() {
    let copy = copy(
        &opened(full(), Headers::new()),
        "q.dlq",
        1,
        Some(&"€".repeat(100_000)),
        0,
        131_072,
    );
    assert!(copy.left_out.is_empty());
    let reason = copy
        .message
        .headers
        .get("x-acemq-error")
        .and_then(|value| value.as_str())
        .unwrap();
    assert!(
        reason.len() > 100_000 && reason.chars().all(|c| c == '€'),
        "{} bytes",
        reason.len()
    );
    let frame = header_frame_len(&copy.message.properties, &copy.message.headers);
    assert!((131_070..=131_072).contains(&frame), "{frame}");
}

#[test]
fn large_headers_are_left_out_in_order() {
    let headers: Headers = [("small", "s".repeat(100)), ("large", "l".repeat(5_000))]
        .into_iter()
        .collect();
    let copy = copy(&opened(full(), headers), "q.dlq", 1, Some("why"), 0, 4_096);
    assert!(
        copy.left_out.contains(&"large".to_owned()),
        "{:?}",
        copy.left_out
    );
    assert!(copy.left_out.starts_with(&[
        ORIGINAL_EXCHANGE.to_owned(),
        ORIGINAL_ROUTING_KEY.to_owned()
    ]));
    assert!(
        copy.message.headers.contains("small") && copy.message.headers.contains("x-acemq-attempt")
    );
}

proptest! {
    #[test]
    fn every_copy_fits_its_frame(
        reason in prop::option::of(".{0,2000}"),
        sizes in prop::collection::vec(0..3_000_usize, 0..8),
        frame_max in 1_024..8_192_usize,
    ) {
        let headers: Headers = sizes
            .iter()
            .enumerate()
            .map(|(n, size)| (format!("h{n}"), "x".repeat(*size)))
            .collect();
        let copy = copy(&opened(full(), headers), "q", 3, reason.as_deref(), 1_000_000, frame_max);
        let frame = header_frame_len(&copy.message.properties, &copy.message.headers);
        prop_assert!(frame <= frame_max);
        for kept in ["x-acemq-id", "x-acemq-attempt", "x-acemq-first-seen"] {
            prop_assert!(copy.message.headers.contains(kept));
        }
    }
}
