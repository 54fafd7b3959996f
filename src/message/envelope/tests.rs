//! Tests of the envelope.

use super::*;
use proptest::prelude::*;

const NOW: i64 = 1_760_000_000_000;

fn read(headers: &Headers) -> Envelope {
    Envelope::read(&Properties::default(), headers, "order.placed", NOW, || {
        "new".to_owned()
    })
}

fn read_one(name: &str, value: impl Into<HeaderValue>) -> Envelope {
    read(&Headers::from_iter([(name, value)]))
}

fn written(envelope: &Envelope) -> Headers {
    let mut headers = Headers::new();
    envelope.write(&mut headers, NOW);
    headers
}

#[test]
fn foreign_message_gets_all_defaults() {
    let envelope = read(&Headers::new());
    assert_eq!(envelope.id(), "new");
    assert_eq!(envelope.kind(), "order.placed");
    assert_eq!(envelope.version(), 1);
    assert_eq!(envelope.correlation(), "new");
    assert_eq!(envelope.causation(), None);
    assert_eq!(envelope.attempt(), 1);
    assert_eq!(envelope.first_seen_millis(), None);
    assert_eq!(envelope.origin(), "");
    assert_eq!(envelope.error(), None);
    assert_eq!(envelope.claim(), None);
    assert_eq!(envelope.age(NOW), None);
}

#[test]
fn id_prefers_header_then_property_then_new() {
    let read = |header: Option<&str>, property: Option<&str>| {
        let headers = header.map(|id| (ID, id)).into_iter().collect();
        let properties = Properties {
            message_id: property.map(str::to_owned),
            ..Properties::default()
        };
        let envelope = Envelope::read(&properties, &headers, "", NOW, || "new".to_owned());
        assert_eq!(envelope.correlation(), envelope.id());
        envelope.id().to_owned()
    };
    assert_eq!(read(Some("header"), Some("property")), "header");
    assert_eq!(read(None, Some("property")), "property");
    assert_eq!(read(Some(""), Some("property")), "property");
    assert_eq!(read(None, Some("")), "new");
    assert_eq!(read(None, None), "new");
}

#[test]
fn empty_texts_are_absent() {
    let all = |text: &str| {
        let names = [CORRELATION, CAUSATION, ORIGIN, ERROR, CLAIM];
        read(&names.map(|name| (name, text)).into_iter().collect())
    };
    let full = all("text");
    assert_eq!(full.correlation(), "text");
    assert_eq!(
        (full.causation(), full.error(), full.claim()),
        (Some("text"), Some("text"), Some("text"))
    );
    assert_eq!(full.origin(), "text");
    assert_eq!(all(""), read(&Headers::new()));
    assert_eq!(read_one(TYPE, "kind").kind(), "kind");
    assert_eq!(read_one(CLAIM, b"bytes".to_vec()).claim(), Some("bytes"));
}

#[test]
fn counts_accept_integers_and_decimal_text() {
    for (value, count) in [
        (HeaderValue::I8(2), 2),
        (HeaderValue::U8(200), 200),
        (HeaderValue::I16(300), 300),
        (HeaderValue::U16(60_000), 60_000),
        (HeaderValue::I32(70_000), 70_000),
        (HeaderValue::U32(u32::MAX), 2_147_483_647),
        (HeaderValue::I64(3_000_000_000), 2_147_483_647),
        (HeaderValue::I64(i64::MIN), 1),
        (HeaderValue::I32(0), 1),
        (HeaderValue::I32(-7), 1),
        ("2".into(), 2),
        (" 2 ".into(), 2),
        ("\t+2\n".into(), 2),
        ("99999999999999999999999".into(), 2_147_483_647),
        ("-99999999999999999999999".into(), 1),
        (b" 4 ".to_vec().into(), 4),
        (b"\xff4".to_vec().into(), 1),
        (vec![0, 0, 0, 4].into(), 1),
        ("".into(), 1),
        ("-".into(), 1),
        ("--4".into(), 1),
        ("4 5".into(), 1),
        ("4.0".into(), 1),
        ("0x4".into(), 1),
        ("٤".into(), 1),
        (HeaderValue::F32(4.0), 1),
        (HeaderValue::F64(4.0), 1),
        (HeaderValue::Bool(true), 1),
        (HeaderValue::Timestamp(4), 1),
        (HeaderValue::Decimal { scale: 0, value: 4 }, 1),
        (HeaderValue::Array(vec![4_i32.into()]), 1),
        (Headers::from_iter([("n", 4)]).into(), 1),
        (HeaderValue::Void, 1),
    ] {
        assert_eq!(
            read_one(ATTEMPT, value.clone()).attempt(),
            count,
            "{value:?}"
        );
        assert_eq!(
            read_one(VERSION, value.clone()).version(),
            count,
            "{value:?}"
        );
    }
}

#[test]
fn malformed_first_seen_gives_no_age_until_the_next_copy() {
    for value in [
        HeaderValue::I64(0),
        HeaderValue::I64(-1),
        HeaderValue::I64(i64::MIN),
        HeaderValue::I64(i64::MAX),
        HeaderValue::I64(NOW + 1),
        HeaderValue::Timestamp(1_700_000_000),
        HeaderValue::F64(1.7e12),
        HeaderValue::Void,
        "yesterday".into(),
        "2025-10-09T08:53:20Z".into(),
        "99999999999999999999999".into(),
    ] {
        let envelope = read_one(FIRST_SEEN, value.clone());
        assert_eq!(envelope.first_seen_millis(), None, "{value:?}");
        assert_eq!(envelope.age(NOW), None, "{value:?}");
        let repaired = written(&envelope);
        assert_eq!(
            repaired.get(FIRST_SEEN),
            Some(&HeaderValue::I64(NOW)),
            "{value:?}"
        );
    }
}

#[test]
fn past_first_seen_gives_an_age_and_is_kept() {
    // The second value is in seconds by mistake: the message looks half a century old.
    for millis in [NOW, 1_760_000_000] {
        for value in [HeaderValue::I64(millis), format!(" {millis} ").into()] {
            let envelope = read_one(FIRST_SEEN, value);
            let age = Duration::from_millis((NOW - millis) as u64);
            assert_eq!(envelope.age(NOW), Some(age));
            assert_eq!(
                written(&envelope).get(FIRST_SEEN),
                Some(&HeaderValue::I64(millis))
            );
        }
    }
    // A clock that was set back does not make the age negative.
    assert_eq!(read_one(FIRST_SEEN, NOW).age(NOW - 5), Some(Duration::ZERO));
}

#[test]
fn new_message_writes_the_wire_types_of_the_contract() {
    let envelope = Envelope::build("order.placed", None, "shop@pod", NOW, "id-1".to_owned());
    let expected = Headers::from_iter([
        (ID, HeaderValue::from("id-1")),
        (TYPE, "order.placed".into()),
        (VERSION, HeaderValue::I32(1)),
        (CORRELATION, "id-1".into()),
        (ATTEMPT, HeaderValue::I32(1)),
        (FIRST_SEEN, HeaderValue::I64(NOW)),
        (ORIGIN, "shop@pod".into()),
    ]);
    assert_eq!(written(&envelope), expected);
    let kind = Envelope::build("order.placed", Some("v2"), "", NOW, String::new());
    assert_eq!(kind.kind(), "v2");
    assert!(!written(&kind).contains(ORIGIN));
}

#[test]
fn copy_changes_attempt_and_error() {
    let envelope = read(&Headers::new());
    assert_eq!(envelope.clone().with_attempt(0).attempt(), 1);
    let last = envelope.clone().with_attempt(u32::MAX);
    assert_eq!(
        written(&last).get(ATTEMPT),
        Some(&HeaderValue::I32(i32::MAX))
    );
    let failed = envelope.with_error("no stock");
    assert_eq!(written(&failed).get(ERROR), Some(&"no stock".into()));
    assert!(!written(&failed.with_error("")).contains(ERROR));
}

#[test]
fn unknown_reserved_headers_are_written_back_unchanged() {
    let route = HeaderValue::Array(vec![1_u8.into(), "b".into()]);
    let headers = Headers::from_iter([
        ("x-acemq-route", route.clone()),
        ("x-acemq-route-position", HeaderValue::I16(3)),
        ("x-acemq-", HeaderValue::Void),
        (CLAIM, HeaderValue::Bytes(vec![0xff])),
        (CAUSATION, HeaderValue::Void),
        (ATTEMPT, "rubbish".into()),
        ("tenant", "acme".into()),
    ]);
    let copy = written(&read(&headers));
    assert_eq!(copy.get("x-acemq-route"), Some(&route));
    assert_eq!(
        copy.get("x-acemq-route-position"),
        Some(&HeaderValue::I16(3))
    );
    assert_eq!(copy.get("x-acemq-"), Some(&HeaderValue::Void));
    assert_eq!(copy.get(CLAIM), Some(&HeaderValue::Bytes(vec![0xff])));
    assert!(
        !copy.contains(CAUSATION),
        "an optional header is never null"
    );
    assert_eq!(copy.get(ATTEMPT), Some(&HeaderValue::I32(1)));
    assert!(!copy.contains("tenant"));
}

#[test]
fn write_replaces_reserved_headers_only() {
    let mut headers =
        Headers::from_iter([("x-acemq-stale", "x"), (ERROR, "old"), ("tenant", "acme")]);
    read(&Headers::new()).write(&mut headers, NOW);
    assert!(!headers.contains("x-acemq-stale") && !headers.contains(ERROR));
    assert_eq!(headers.get("tenant"), Some(&"acme".into()));
}

#[test]
fn reserved_prefix_is_matched_exactly() {
    let headers = Headers::from_iter([
        ("x-acemq-zebra", 1),
        ("x-acemq-id", 1),
        ("X-Acemq-id", 1),
        ("x-acemq", 1),
        ("x-original-exchange", 1),
    ]);
    assert_eq!(
        reserved_offenders(&headers),
        ["x-acemq-id", "x-acemq-zebra"]
    );
    let application = application_headers(&headers);
    let names: Vec<_> = application.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["X-Acemq-id", "x-acemq", "x-original-exchange"]);
}

fn values() -> impl Strategy<Value = HeaderValue> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(HeaderValue::Bool),
        any::<i8>().prop_map(HeaderValue::I8),
        any::<u8>().prop_map(HeaderValue::U8),
        any::<i16>().prop_map(HeaderValue::I16),
        any::<u16>().prop_map(HeaderValue::U16),
        any::<i32>().prop_map(HeaderValue::I32),
        any::<u32>().prop_map(HeaderValue::U32),
        any::<i64>().prop_map(HeaderValue::I64),
        (1..NOW).prop_map(HeaderValue::I64),
        proptest::num::f32::NORMAL.prop_map(HeaderValue::F32),
        proptest::num::f64::NORMAL.prop_map(HeaderValue::F64),
        (any::<u8>(), any::<u32>())
            .prop_map(|(scale, value)| HeaderValue::Decimal { scale, value }),
        any::<String>().prop_map(HeaderValue::Text),
        "[ \t]?[-+]?[0-9]{0,25}[ \t]?".prop_map(HeaderValue::Text),
        any::<Vec<u8>>().prop_map(HeaderValue::Bytes),
        any::<u64>().prop_map(HeaderValue::Timestamp),
        Just(HeaderValue::Void),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(HeaderValue::Array),
            prop::collection::vec(("[a-z]{0,3}", inner), 0..4)
                .prop_map(|pairs| HeaderValue::Table(pairs.into_iter().collect())),
        ]
    })
}

fn any_headers() -> impl Strategy<Value = Headers> {
    let names = prop_oneof![
        4 => prop::sample::select(ENVELOPE_HEADERS.as_slice()).prop_map(str::to_owned),
        1 => "x-acemq-[a-z-]{0,6}",
        1 => "[a-z-]{0,12}",
    ];
    prop::collection::vec((names, values()), 0..20).prop_map(Headers::from_iter)
}

proptest! {
    #[test]
    fn any_headers_give_an_envelope(headers in any_headers()) {
        let envelope = read(&headers);
        prop_assert!((1..=i32::MAX as u32).contains(&envelope.attempt()));
        prop_assert!((1..=i32::MAX as u32).contains(&envelope.version()));
        prop_assert!(!envelope.id().is_empty() && !envelope.correlation().is_empty());
        prop_assert!(envelope.first_seen_millis().is_none_or(|millis| millis > 0 && millis <= NOW));
        for optional in [envelope.causation(), envelope.error(), envelope.claim()] {
            prop_assert_ne!(optional, Some(""));
        }
    }

    #[test]
    fn written_envelope_reads_back_equal(headers in any_headers()) {
        let first = read(&headers);
        let second = read(&written(&first));
        let expected = Envelope { first_seen: first.first_seen.or(Some(NOW)), ..first };
        prop_assert_eq!(&second, &expected);
        prop_assert_eq!(written(&second), written(&expected));
    }

    #[test]
    fn write_keeps_application_headers(headers in any_headers()) {
        let mut copy = headers.clone();
        read(&headers).write(&mut copy, NOW);
        prop_assert_eq!(application_headers(&copy), application_headers(&headers));
    }

    #[test]
    fn each_hop_adds_one_attempt(attempt in any::<i64>()) {
        let envelope = read_one(ATTEMPT, attempt);
        let next = envelope.attempt().saturating_add(1);
        let copy = read(&written(&envelope.clone().with_attempt(next)));
        let grown = copy.attempt() == envelope.attempt() + 1;
        prop_assert!(grown || copy.attempt() == i32::MAX as u32);
    }
}
