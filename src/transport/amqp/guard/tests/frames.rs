//! Tests of frames, sizes and closed channels.

use super::BAD;
use super::wire::{
    Pieces, body, channel_close, channel_open_ok, deliver, entry, frame, guarded, header, headers,
    long, method, open, parsed, read_all, tune,
};
use crate::transport::amqp::guard::frames::LARGEST_FRAME;
use amq_protocol::frame::AMQPFrame;
use std::io;

#[test]
fn closed_channel_is_silent_until_reopened() {
    let content = |channel| {
        [
            deliver(channel, 1, b"k"),
            header(channel, 6, 0, b""),
            body(channel, b"abc"),
            body(channel, b"def"),
        ]
    };
    let start = [
        content(1).concat(),
        // Interrupted by the close.
        content(1)[..3].concat(),
        channel_close(1),
    ]
    .concat();
    let dropped = [
        content(1)[3].clone(),
        content(1).concat(),
        method(1, 20, 41, b""),
        // Invalid frames, which must not be inspected.
        deliver(1, 2, BAD),
        method(1, 99, 99, b""),
    ]
    .concat();
    let others = [content(2).concat(), method(0, 10, 61, b"")].concat();
    let again = [channel_open_ok(1), content(1).concat()].concat();

    let out = guarded(&[&start[..], &dropped, &others, &dropped, &again].concat()).unwrap();
    let is_sound = |frame: &AMQPFrame| *frame != AMQPFrame::Heartbeat(0);
    let kept: Vec<_> = parsed(&out).unwrap().into_iter().filter(is_sound).collect();
    let sent = parsed(&[start, others, again].concat()).unwrap();
    assert_eq!(kept, sent);
}

#[test]
fn excessive_sizes_are_errors() {
    let head = |kind, size: u32| [&[kind, 0, 1][..], &size.to_be_bytes()].concat();
    for (bytes, text) in [
        (
            head(1, LARGEST_FRAME as u32 + 1),
            "method frame of 16777217",
        ),
        (head(2, u32::MAX), "header frame of 4294967295"),
        (
            head(3, 131_065),
            "body frame of 131065 bytes, but the limit is 131064",
        ),
        (head(8, 1), "heartbeat frame of 1"),
        (head(4, 1), "unknown type 4"),
        (
            header(1, (512 << 20) + 1, 0, b""),
            "message of 536870913 bytes",
        ),
        (
            header(1, u64::MAX, 0, b""),
            "message of 18446744073709551615",
        ),
        (frame(2, 1, b"\0\x3C"), "truncated header frame"),
        (frame(1, 1, b"\0\x3C"), "without a method"),
        (method(1, 60, 60, b"\x03abc"), "method 60.60"),
        (method(1, 60, 40, b""), "unexpected method 60.40"),
    ] {
        // Bytes before the error are still handed out.
        let mut guard = open();
        let mut wire = Pieces::new([[body(1, b"before"), bytes].concat()]);
        let (out, end) = read_all(&mut guard, &mut wire, || 5);
        assert_eq!(out, body(1, b"before"));
        let error = end.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains(text), "{error}");
    }
    let mut bytes = body(1, b"x");
    *bytes.last_mut().unwrap() = 0;
    assert!(guarded(&bytes).is_err());
    assert!(guarded(&body(1, &vec![0; 131_064])).is_ok());
    assert!(guarded(&header(1, 512 << 20, 0, b"")).is_ok());
}

#[test]
fn header_frames_may_be_larger_than_frame_max() {
    let entries = entry(b"large", b'x', &long(&vec![7; 3 << 20]));
    let mut guard = open();
    let bytes = headers(&entries);
    let pieces = bytes.chunks(100_000).map(<[u8]>::to_vec);
    let (out, end) = read_all(&mut guard, &mut Pieces::new(pieces), || 4096);
    end.unwrap();
    assert!(out == bytes);
    assert!(
        guard.bytes.capacity() < 1 << 20,
        "the buffer did not shrink"
    );
}

#[test]
fn frame_max_is_found_in_any_fragmentation() {
    let start = method(
        0,
        10,
        10,
        &[&[0, 9][..], &long(b""), &long(b"PLAIN"), &long(b"en")].concat(),
    );
    let bytes = [start, tune(131_072)].concat();
    for size in 1..bytes.len() {
        let mut guard = super::new_guard();
        let pieces = bytes.chunks(size).map(<[u8]>::to_vec);
        let (out, end) = read_all(&mut guard, &mut Pieces::new(pieces), || 4096);
        end.unwrap();
        assert_eq!(out, bytes);
        assert_eq!(guard.frame_max().get(), 131_072);
    }
    let mut guard = super::new_guard();
    let (_, end) = read_all(&mut guard, &mut Pieces::new([tune(0)]), || 4096);
    end.unwrap();
    assert_eq!(guard.frame_max().get(), usize::MAX);
}

#[test]
fn other_protocol_is_an_error_from_its_first_byte() {
    for bytes in [
        &b"HTTP/1.1 400 Bad Request\r\n"[..],
        b"H",
        b"AMQP\0\0\x09\x01",
        b"\x15\x03\x01\0\x02\x02\x28",
        b"\x01\0\0\xFF\xFF\xFF\xFF",
        b"\x03\0\x01\0\0\0\x01x\xCE",
    ] {
        let mut guard = super::new_guard();
        let (out, end) = read_all(&mut guard, &mut Pieces::new([bytes.to_vec()]), || 4096);
        assert_eq!(out, b"");
        let error = end.unwrap_err().to_string();
        assert_eq!(error, "the peer does not speak AMQP 0-9-1");
    }
}

#[test]
fn end_of_stream_is_passed_on() {
    let mut guard = open();
    let mut wire = Pieces::new([[body(1, b"whole"), deliver(1, 1, b"cut")[..9].to_vec()].concat()]);
    wire.eof = true;
    let mut buffer = [0; 4096];
    assert_eq!(guard.read(&mut wire, &mut buffer).unwrap(), 13);
    let error = guard.read(&mut wire, &mut buffer).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    assert_eq!(guard.read(&mut wire, &mut buffer).unwrap(), 0);
}
