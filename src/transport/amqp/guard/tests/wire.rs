//! Helpers of the guard's tests: frame builders, a fragmenting reader, and amiquip's way of
//! reading.

use crate::transport::amqp::guard::{Guard, frames};
use amq_protocol::frame::{AMQPFrame, parse_frame};
use std::collections::VecDeque;
use std::io::{self, Read};

pub(super) fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend(channel.to_be_bytes());
    frame.extend((payload.len() as u32).to_be_bytes());
    frame.extend(payload);
    frame.push(frames::FRAME_END);
    frame
}

pub(super) fn method(channel: u16, class: u16, method: u16, arguments: &[u8]) -> Vec<u8> {
    let id = [class.to_be_bytes(), method.to_be_bytes()].concat();
    frame(frames::METHOD, channel, &[&id, arguments].concat())
}

/// Encodes a connection.tune.
pub(super) fn tune(frame_max: u32) -> Vec<u8> {
    method(
        0,
        10,
        30,
        &[&[7, 255], &frame_max.to_be_bytes()[..], &[0, 60]].concat(),
    )
}

pub(super) fn channel_close(channel: u16) -> Vec<u8> {
    let arguments = [&404_u16.to_be_bytes()[..], &short(b"gone"), &[0, 50, 0, 10]].concat();
    method(channel, 20, 40, &arguments)
}

pub(super) fn channel_open_ok(channel: u16) -> Vec<u8> {
    method(channel, 20, 11, &long(b""))
}

pub(super) fn deliver(channel: u16, tag: u64, routing_key: &[u8]) -> Vec<u8> {
    let arguments = [
        &short(b"ctag")[..],
        &tag.to_be_bytes(),
        &[0],
        &short(b"events"),
        &short(routing_key),
    ];
    method(channel, 60, 60, &arguments.concat())
}

/// Encodes a content header; `properties` are those of `flags`, in order.
pub(super) fn header(channel: u16, body: u64, flags: u16, properties: &[u8]) -> Vec<u8> {
    let payload = [
        &[0, 60, 0, 0][..],
        &body.to_be_bytes(),
        &flags.to_be_bytes(),
        properties,
    ];
    frame(frames::HEADER, channel, &payload.concat())
}

/// Encodes a content header with a table of headers, followed by a message id.
pub(super) fn headers(entries: &[u8]) -> Vec<u8> {
    header(1, 3, 0x2080, &[long(entries), short(b"id")].concat())
}

pub(super) fn body(channel: u16, content: &[u8]) -> Vec<u8> {
    frame(frames::BODY, channel, content)
}

pub(super) fn short(text: &[u8]) -> Vec<u8> {
    [&[text.len() as u8], text].concat()
}

pub(super) fn long(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32).to_be_bytes(), content].concat()
}

pub(super) fn entry(name: &[u8], kind: u8, value: &[u8]) -> Vec<u8> {
    [&short(name)[..], &[kind], value].concat()
}

/// A reader that returns one piece per read and `WouldBlock` after each; at the end it returns end
/// of file if `eof` is set, else `WouldBlock`.
pub(super) struct Pieces {
    pieces: VecDeque<Vec<u8>>,
    blocks: bool,
    pub(super) eof: bool,
}

impl Pieces {
    pub(super) fn new(pieces: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self {
            pieces: pieces
                .into_iter()
                .filter(|piece| !piece.is_empty())
                .collect(),
            blocks: false,
            eof: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.blocks || (self.pieces.is_empty() && !self.eof) {
            self.blocks = false;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let Some(piece) = self.pieces.front_mut() else {
            return Ok(0);
        };
        let count = piece.len().min(buffer.len());
        assert!(count > 0, "the guard reads into an empty buffer");
        buffer[..count].copy_from_slice(&piece[..count]);
        piece.drain(..count);
        if piece.is_empty() {
            self.pieces.pop_front();
            self.blocks = true;
        }
        Ok(count)
    }
}

/// Reads like amiquip, until `WouldBlock` at each wake-up. Returns the bytes and the result.
pub(super) fn read_all(
    guard: &mut Guard,
    wire: &mut Pieces,
    mut size: impl FnMut() -> usize,
) -> (Vec<u8>, io::Result<()>) {
    let mut all = Vec::new();
    loop {
        let mut buffer = vec![0; size()];
        match guard.read(wire, &mut buffer) {
            Ok(0) => return (all, Ok(())),
            Ok(count) => all.extend(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if wire.is_empty() && !wire.eof {
                    return (all, Ok(()));
                }
            }
            Err(error) => return (all, Err(error)),
        }
    }
}

/// The output of a guard with an open connection for `bytes` in one piece.
pub(super) fn guarded(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut guard = open();
    let mut wire = Pieces::new([bytes.to_vec()]);
    let (out, end) = read_all(&mut guard, &mut wire, || 4096);
    end.map(|()| out)
}

/// A guard after connection.tune, with the default `frame_max` of RabbitMQ.
pub(super) fn open() -> Guard {
    let mut guard = super::new_guard();
    let (_, end) = read_all(&mut guard, &mut Pieces::new([tune(131_072)]), || 4096);
    end.unwrap();
    guard
}

/// Parses the frames in `bytes` like amiquip. The last frame may be incomplete.
pub(super) fn parsed(mut bytes: &[u8]) -> Result<Vec<AMQPFrame>, String> {
    let mut frames = Vec::new();
    while let Some(size) = bytes.get(3..7) {
        let size = u32::from_be_bytes(size.try_into().unwrap()) as usize + 8;
        let Some(frame) = bytes.get(..size) else {
            break;
        };
        match parse_frame(frame) {
            Ok(([], parsed)) => frames.push(parsed),
            other => return Err(format!("{frame:02x?}: {other:?}")),
        }
        bytes = &bytes[size..];
    }
    Ok(frames)
}
