//! Tests of the frame guard, one per repair.

mod frames;
mod fuzz;
mod wire;

use super::Guard;
use super::frames::HEARTBEAT;
use crate::transport::Activity;
use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::AMQPClass;
use amq_protocol::protocol::basic::{AMQPMethod, AMQPProperties};
use amq_protocol_types::{AMQPValue, FieldTable};
use wire::{
    body, channel_close, channel_open_ok, deliver, entry, frame, guarded, header, headers, long,
    method, parsed, short, tune,
};

const BAD: &[u8] = b"a\xFF\xFEb";

fn new_guard() -> Guard {
    Guard::new(Activity::new(std::time::Duration::ZERO))
}

#[test]
fn valid_frames_pass_unchanged() {
    let bytes = [
        tune(131_072),
        frame(HEARTBEAT, 0, b""),
        channel_open_ok(1),
        deliver(1, 1, "schlüssel".as_bytes()),
        headers(&entry(b"a", b'S', &long("é".as_bytes()))),
        body(1, b"\xFF\xFE\xFD"),
        channel_close(2),
    ]
    .concat();
    assert_eq!(guarded(&bytes).unwrap(), bytes);
    assert_eq!(parsed(&bytes).unwrap().len(), 7);
}

#[test]
fn bad_text_in_a_table_becomes_bytes() {
    let nested = entry(b"deep", b'S', &long(BAD));
    let array = [&[b'S'][..], &long(BAD), b"V"].concat();
    let entries = [
        entry(b"bad", b'S', &long(BAD)),
        entry(b"good", b'S', &long(b"fine")),
        entry(b"table", b'F', &long(&nested)),
        entry(b"array", b'A', &long(&array)),
        entry(b"attempt", b'I', &3_i32.to_be_bytes()),
    ]
    .concat();
    let (table, id) = table_of(&guarded(&headers(&entries)).unwrap());
    let bytes = AMQPValue::ByteArray(BAD.to_vec());
    assert_eq!(table["bad"], bytes);
    assert_eq!(table["good"], AMQPValue::LongString("fine".to_owned()));
    assert_eq!(
        table["table"],
        AMQPValue::FieldTable([("deep".to_owned(), bytes.clone())].into())
    );
    assert_eq!(
        table["array"],
        AMQPValue::FieldArray(vec![bytes, AMQPValue::Void])
    );
    assert_eq!(table["attempt"], AMQPValue::LongInt(3));
    assert_eq!(id.as_deref(), Some("id"));
}

#[test]
fn bad_text_outside_a_table_gets_question_marks() {
    let out = guarded(&deliver(1, 7, BAD)).unwrap();
    let AMQPFrame::Method(1, AMQPClass::Basic(AMQPMethod::Deliver(got))) = &first(&out) else {
        panic!("{out:?}");
    };
    assert_eq!(got.routing_key, "a??b");
    assert_eq!(got.exchange, "events");
    assert_eq!(got.delivery_tag, 7);

    // Every property with bad text, since none may end the connection.
    let table = long(&entry(BAD, b't', &[1]));
    let text = short(BAD);
    let time = [0; 8];
    let all: [&[u8]; 14] = [
        &text,
        &text,
        &table,
        &[2],
        &[7],
        &text,
        &text,
        &text,
        &text,
        &time,
        &text,
        &text,
        &text,
        &text,
    ];
    let properties = properties_of(&guarded(&header(1, 0, 0xFFFC, &all.concat())).unwrap());
    assert_eq!(properties.cluster_id().as_deref(), Some("a??b"));
    assert_eq!(properties.correlation_id().as_deref(), Some("a??b"));
    assert_eq!(properties.message_id().as_deref(), Some("a??b"));
    let headers = properties.headers().as_ref().unwrap();
    assert_eq!(headers["a??b"], AMQPValue::Boolean(true));

    // A truncated character at the end.
    let cut = guarded(&deliver(1, 7, b"\xC3\xA9\xC3")).unwrap();
    assert!(cut.windows(4).any(|bytes| bytes == b"\x03\xC3\xA9?"));
}

#[test]
fn reply_texts_and_other_methods_are_repaired() {
    let close = |text: &[u8]| {
        let arguments = [&[1, 64][..], &short(text), &[0, 0, 0, 0]].concat();
        [method(0, 10, 50, &arguments), method(3, 20, 40, &arguments)].concat()
    };
    assert_eq!(guarded(&close(BAD)).unwrap(), close(b"a??b"));
    let returned = |text: &[u8]| {
        let arguments = [&[1, 56], &short(text)[..], &short(text), &short(text)].concat();
        method(1, 60, 50, &arguments)
    };
    assert_eq!(guarded(&returned(BAD)).unwrap(), returned(b"a??b"));
    let start = |kind: u8, text: &[u8]| {
        let properties = long(&entry(b"product", kind, &long(BAD)));
        method(
            0,
            10,
            10,
            &[&[0, 9], &properties[..], &long(text), &long(b"en_US")].concat(),
        )
    };
    assert_eq!(guarded(&start(b'S', BAD)).unwrap(), start(b'x', b"a??b"));
}

#[test]
fn values_below_32_levels_become_bytes() {
    for kind in [b'F', b'A'] {
        let mut value = Vec::new();
        for _ in 0..5_000 {
            value = match kind {
                b'F' => entry(b"n", kind, &long(&value)),
                _ => [&[kind][..], &long(&value)].concat(),
            };
        }
        let entries = match kind {
            b'F' => value,
            _ => entry(b"n", kind, &long(&value)),
        };
        let (table, id) = table_of(&guarded(&headers(&entries)).unwrap());
        assert_eq!(id.as_deref(), Some("id"));
        let mut value = &table["n"];
        let mut depth = 1;
        while let Some(inner) = inner(value) {
            value = inner;
            depth += 1;
        }
        assert_eq!(depth, 32);
        let AMQPValue::ByteArray(rest) = value else {
            panic!("{value:?}");
        };
        assert!(rest.len() > 20_000, "{}", rest.len());
    }

    let mut sound = entry(b"n", b'V', b"");
    for _ in 1..32 {
        sound = entry(b"n", b'F', &long(&sound));
    }
    assert_eq!(guarded(&headers(&sound)).unwrap(), headers(&sound));
}

fn inner(value: &AMQPValue) -> Option<&AMQPValue> {
    match value {
        AMQPValue::FieldTable(table) => table.get("n"),
        AMQPValue::FieldArray(values) => values.first(),
        _ => None,
    }
}

#[test]
fn unknown_type_becomes_bytes_with_the_rest() {
    let entries = [
        entry(b"attempt", b'I', &[0, 0, 0, 3]),
        entry(b"new", b'Z', b"\x01\x02\x03\x04\x05\x06"),
        entry(b"lost", b't', &[1]),
    ]
    .concat();
    let (table, id) = table_of(&guarded(&headers(&entries)).unwrap());
    assert_eq!(table["attempt"], AMQPValue::LongInt(3));
    assert_eq!(
        table["new"],
        AMQPValue::ByteArray(b"\x05\x06\x04lostt\x01".to_vec())
    );
    assert_eq!(id.as_deref(), Some("id"));

    // Too short for a byte array, so the table ends there.
    let nested = [entry(b"one", b't', &[1]), entry(b"two", b'Z', b"\x01\x02")].concat();
    let entries = [
        entry(b"table", b'F', &long(&nested)),
        entry(b"attempt", b'I', &[0, 0, 0, 3]),
    ]
    .concat();
    let (table, _) = table_of(&guarded(&headers(&entries)).unwrap());
    let one = [("one".to_owned(), AMQPValue::Boolean(true))];
    assert_eq!(table["table"], AMQPValue::FieldTable(one.into()));
    assert_eq!(table["attempt"], AMQPValue::LongInt(3));
}

#[test]
fn value_longer_than_its_table_is_shortened() {
    for kind in *b"SxFA" {
        let nested = [b"\x01n", &[kind][..], &[0xFF; 4], b"abc"].concat();
        let entries = [
            entry(b"table", b'F', &long(&nested)),
            entry(b"attempt", b'I', &[0, 0, 0, 3]),
        ]
        .concat();
        let (table, id) = table_of(&guarded(&headers(&entries)).unwrap());
        let value = AMQPValue::ByteArray(b"abc".to_vec());
        assert_eq!(
            table["table"],
            AMQPValue::FieldTable([("n".to_owned(), value)].into())
        );
        assert_eq!(table["attempt"], AMQPValue::LongInt(3));
        assert_eq!(id.as_deref(), Some("id"));
    }
    // A name longer than its table ends the table.
    let (table, id) = table_of(
        &guarded(&headers(
            &[&entry(b"a", b'V', b"")[..], b"\x09name"].concat(),
        ))
        .unwrap(),
    );
    assert_eq!(table.len(), 1);
    assert_eq!(id.as_deref(), Some("id"));
}

#[test]
fn truncated_properties_are_removed() {
    let table = long(&entry(b"a", b'V', b""));
    for rest in [&b""[..], b"\x09short"] {
        let bytes = header(1, 0, 0x2480, &[&table, rest].concat());
        let properties = properties_of(&guarded(&bytes).unwrap());
        assert_eq!(properties.headers().as_ref().unwrap().len(), 1);
        assert_eq!(properties.correlation_id(), &None);
        assert_eq!(properties.message_id(), &None);
    }
    let longer = [0, 0, 0, 99, 1, b'a', b'V'];
    let properties =
        properties_of(&guarded(&header(1, 0, 0xA080, &[&b"\x01t"[..], &longer].concat())).unwrap());
    assert_eq!(properties.content_type().as_deref(), Some("t"));
    assert_eq!(properties.headers(), &None);
}

fn first(bytes: &[u8]) -> AMQPFrame {
    parsed(bytes).unwrap().remove(0)
}

fn properties_of(bytes: &[u8]) -> AMQPProperties {
    match first(bytes) {
        AMQPFrame::Header(_, _, header) => header.properties,
        other => panic!("{other:?}"),
    }
}

/// The headers and the message id of the first frame.
fn table_of(bytes: &[u8]) -> (FieldTable, Option<String>) {
    let properties = properties_of(bytes);
    (
        properties.headers().clone().unwrap(),
        properties.message_id().clone(),
    )
}
