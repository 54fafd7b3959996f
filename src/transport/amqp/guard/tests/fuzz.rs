//! Fuzz tests: for any traffic, amiquip receives frames it can parse or an error, and memory is
//! bounded.

use super::wire::{
    Pieces, body, channel_close, channel_open_ok, deliver, entry, frame, guarded, header, headers,
    long, method, open, parsed, read_all, short, tune,
};
use crate::transport::amqp::guard::frames::LARGEST_FRAME;
use crate::transport::amqp::guard::{CHUNK, Guard};
use amq_protocol::frame::generation::{gen_content_header_frame, gen_method_frame};
use amq_protocol::protocol::AMQPClass;
use amq_protocol::protocol::basic::{AMQPMethod, AMQPProperties, Deliver};
use amq_protocol_types::{AMQPValue, DecimalValue, FieldTable};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const CORRUPTED_ROUNDS: u32 = 150_000;
const RANDOM_ROUNDS: u32 = 60_000;

#[test]
fn corrupted_traffic_stays_parsable() {
    let mut random = StdRng::seed_from_u64(20_260_101);
    let samples = samples();
    let (mut passed, mut refused) = (0_u32, 0_u32);
    for round in 0..CORRUPTED_ROUNDS {
        let mut bytes = Vec::new();
        for _ in 0..random.random_range(1..4) {
            bytes.extend(&samples[random.random_range(0..samples.len())]);
        }
        for _ in 0..random.random_range(1..6) {
            corrupt(&mut bytes, &mut random);
        }
        let guard = if random.random_ratio(1, 8) {
            super::new_guard()
        } else {
            open()
        };
        match survives(guard, bytes, &mut random, round) {
            true => passed += 1,
            false => refused += 1,
        }
    }
    // Both results must be common, or the test covers little.
    assert!(
        passed > CORRUPTED_ROUNDS / 10 && refused > CORRUPTED_ROUNDS / 10,
        "{passed} passed, {refused} were refused"
    );
}

/// Valid frames with random contents, so that contents are inspected.
#[test]
fn random_contents_stay_parsable() {
    let mut random = StdRng::seed_from_u64(20_260_102);
    for round in 0..RANDOM_ROUNDS {
        let mut bytes = Vec::new();
        for _ in 0..random.random_range(1..4) {
            let mut content = vec![0; random.random_range(0..120)];
            for byte in &mut content {
                *byte = likely_byte(&mut random);
            }
            let channel = random.random_range(0..3);
            bytes.extend(match random.random_range(0..6) {
                0 => headers(&content),
                1 => header(channel, 3, random.random(), &content),
                2 => deliver(channel, 1, &content),
                3 => frame(random.random_range(0..10), channel, &content),
                4 => body(channel, &content),
                _ => method(
                    channel,
                    random.random_range(1..10) * 10,
                    random.random_range(0..125),
                    &content,
                ),
            });
        }
        survives(open(), bytes, &mut random, round);
    }
}

/// Returns whether all of `bytes` passed; panics if amiquip could not parse the output.
fn survives(mut guard: Guard, bytes: Vec<u8>, random: &mut StdRng, round: u32) -> bool {
    let size = random.random_range(1..200);
    let pieces = bytes.chunks(size).map(<[u8]>::to_vec);
    let room = random.random_range(1..300);
    let (out, end) = read_all(&mut guard, &mut Pieces::new(pieces), || room);
    assert!(out.len() <= bytes.len());
    if let Err(problem) = parsed(&out) {
        panic!("round {round}: {bytes:02x?} came out as {problem}");
    }
    assert!(guard.bytes.len() <= CHUNK, "round {round}: the buffer grew");
    end.is_ok()
}

fn corrupt(bytes: &mut Vec<u8>, random: &mut StdRng) {
    let at = random.random_range(0..bytes.len());
    match random.random_range(0..7) {
        0 => bytes[at] = random.random(),
        1 => bytes[at] ^= 1 << random.random_range(0..8),
        2 => bytes[at] = likely_byte(random),
        3 => bytes[at] = bytes[at].wrapping_add(1),
        4 => bytes.truncate(at.max(1)),
        5 => bytes.insert(at, random.random()),
        _ => {
            let to = random.random_range(at..bytes.len().min(at + 9));
            bytes[at..to].fill(0xFF);
        }
    }
}

/// Mostly type bytes, small lengths, and bytes that are invalid in UTF-8.
fn likely_byte(random: &mut StdRng) -> u8 {
    const TYPES: &[u8] = b"tbBsSuUIilLfdDATFxVZ";
    match random.random_range(0..6) {
        0 | 1 => TYPES[random.random_range(0..TYPES.len())],
        2 => random.random_range(0..20),
        3 => 0xFF,
        4 => 0,
        _ => random.random(),
    }
}

fn samples() -> Vec<Vec<u8>> {
    let table = [
        entry(b"text", b'S', &long(b"some text")),
        entry(b"number", b'l', &[0, 0, 0, 0, 0, 0, 0, 9]),
        entry(
            b"table",
            b'F',
            &long(&entry(b"in", b'A', &long(b"t\x01VS\0\0\0\x01x"))),
        ),
        entry(b"bytes", b'x', &long(b"\xFF\xFE")),
        entry(b"decimal", b'D', &[2, 0, 0, 0, 1]),
    ]
    .concat();
    let start = [&[0, 9], &long(&table)[..], &long(b"PLAIN"), &long(b"en_US")].concat();
    let properties = [short(b"text/plain"), long(&table), vec![2], short(b"id")].concat();
    vec![
        tune(131_072),
        method(0, 10, 10, &start),
        method(0, 10, 60, &short(b"low on memory")),
        channel_open_ok(1),
        channel_close(1),
        method(1, 60, 21, &short(b"ctag")),
        method(1, 60, 80, &[0, 0, 0, 0, 0, 0, 0, 1, 1]),
        method(1, 50, 11, &[&short(b"q")[..], &[0; 8]].concat()),
        deliver(1, 1, b"order.placed"),
        deliver(2, 1, b"order.placed"),
        header(1, 5, 0xB080, &properties),
        headers(&table),
        body(1, b"hello"),
        frame(8, 0, b""),
    ]
}

#[test]
fn memory_is_bounded_while_a_large_frame_arrives() {
    let announced = header(1, 3, 0x2000, &long(&vec![b'x'; LARGEST_FRAME - 18]));
    let mut guard = open();
    let pieces = announced.chunks(1 << 20).map(<[u8]>::to_vec);
    let (out, end) = read_all(&mut guard, &mut Pieces::new(pieces), || 1 << 20);
    end.unwrap();
    assert_eq!(out.len(), announced.len());
    assert!(guard.bytes.capacity() <= 2 * (LARGEST_FRAME + 8));
    // No memory is allocated for an announced size.
    let mut guard = open();
    let (_, end) = read_all(
        &mut guard,
        &mut Pieces::new([announced[..1000].to_vec()]),
        || 4096,
    );
    end.unwrap();
    assert_eq!(guard.bytes.len(), CHUNK);
}

fn values() -> impl Strategy<Value = AMQPValue> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(AMQPValue::Boolean),
        any::<i8>().prop_map(AMQPValue::ShortShortInt),
        any::<u8>().prop_map(AMQPValue::ShortShortUInt),
        any::<i16>().prop_map(AMQPValue::ShortInt),
        any::<u16>().prop_map(AMQPValue::ShortUInt),
        any::<i32>().prop_map(AMQPValue::LongInt),
        any::<u32>().prop_map(AMQPValue::LongUInt),
        any::<i64>().prop_map(AMQPValue::LongLongInt),
        (-1e9_f32..1e9).prop_map(AMQPValue::Float),
        (-1e9_f64..1e9).prop_map(AMQPValue::Double),
        (any::<u8>(), any::<u32>())
            .prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
        "\\PC{0,12}".prop_map(AMQPValue::LongString),
        vec(any::<u8>(), 0..12).prop_map(AMQPValue::ByteArray),
        any::<u64>().prop_map(AMQPValue::Timestamp),
        Just(AMQPValue::Void),
    ];
    leaf.prop_recursive(4, 24, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(AMQPValue::FieldArray),
            btree_map("\\PC{0,8}", inner, 0..6).prop_map(AMQPValue::FieldTable),
        ]
    })
}

/// A message as amq-protocol encodes it.
fn message(table: FieldTable, key: String, content: &[u8]) -> Vec<u8> {
    let mut room = vec![0; 1 << 17];
    let deliver = AMQPClass::Basic(AMQPMethod::Deliver(Deliver {
        consumer_tag: "ctag".to_owned(),
        delivery_tag: 1,
        redelivered: true,
        exchange: key.clone(),
        routing_key: key.clone(),
    }));
    let properties = AMQPProperties::default()
        .with_headers(table)
        .with_message_id(key)
        .with_delivery_mode(2);
    let (_, end) = gen_method_frame((&mut room, 0), 1, &deliver).unwrap();
    let size = content.len() as u64;
    let (_, end) = gen_content_header_frame((&mut room, end), 1, 60, size, &properties).unwrap();
    room.truncate(end);
    for part in content.chunks(1000) {
        room.extend(body(1, part));
    }
    room
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn valid_traffic_passes_byte_for_byte(
        messages in vec(
            (btree_map("\\PC{0,10}", values(), 0..8), "\\PC{0,20}", vec(any::<u8>(), 0..3000)),
            1..4,
        ),
        cuts in vec(1..400_usize, 1..20),
        room in 1..5000_usize,
    ) {
        let bytes: Vec<u8> = messages
            .into_iter()
            .flat_map(|(table, key, content)| message(table, key, &content))
            .collect();
        let mut rest = &bytes[..];
        let mut pieces = Vec::new();
        for size in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, behind) = rest.split_at(rest.len().min(*size));
            pieces.push(piece.to_vec());
            rest = behind;
        }
        let mut guard = open();
        let (out, end) = read_all(&mut guard, &mut Pieces::new(pieces), || room);
        prop_assert!(end.is_ok(), "{:?}", end);
        prop_assert!(out == bytes);
        prop_assert_eq!(guarded(&bytes).unwrap(), bytes);
    }
}
