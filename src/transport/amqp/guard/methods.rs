//! The methods a broker sends, and the layout of their arguments.

use super::invalid;
use super::repair::{Argument, arguments};
use std::io;

/// A class id and a method id.
pub(super) type Id = (u16, u16);

pub(super) const TUNE: Id = (10, 30);
pub(super) const CHANNEL_OPEN_OK: Id = (20, 11);
pub(super) const CHANNEL_CLOSE: Id = (20, 40);

/// Splits the payload of a method frame into the method and its arguments.
pub(super) fn split(payload: &mut [u8]) -> io::Result<(Id, &mut [u8])> {
    let Some(([a, b, c, d], arguments)) = payload.split_first_chunk_mut() else {
        return Err(invalid("the broker sent a method frame without a method"));
    };
    let id = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
    Ok((id, arguments))
}

/// Repairs the arguments of a method.
pub(super) fn repair(method: Id, bytes: &mut [u8]) -> io::Result<()> {
    let (class, number) = method;
    let Some(layout) = layout(method) else {
        return Err(invalid(format!(
            "the broker sent the unexpected method {class}.{number}"
        )));
    };
    arguments(layout, bytes).ok_or_else(|| {
        invalid(format!(
            "the broker sent truncated arguments of method {class}.{number}"
        ))
    })
}

/// The `frame_max` of a connection.tune; 0 means no limit.
pub(super) fn frame_max(arguments: &[u8]) -> usize {
    match *arguments {
        [_, _, a, b, c, d, ..] => u32::from_be_bytes([a, b, c, d]) as usize,
        _ => 0,
    }
}

/// Replaces a heartbeat of 0 in a connection.tune with the maximum.
///
/// For RabbitMQ, 0 means that the client decides. amiquip takes the smaller of both values and
/// would turn heartbeats off.
pub(super) fn allow_heartbeats(arguments: &mut [u8]) {
    if let [_, _, _, _, _, _, heartbeat @ ..] = arguments
        && heartbeat == [0, 0]
    {
        heartbeat.copy_from_slice(&u16::MAX.to_be_bytes());
    }
}

/// The argument layout of a method. Consecutive bits share one octet.
fn layout(method: Id) -> Option<&'static [Argument]> {
    use Argument::{Long, LongLong, LongString, Octet, Short, ShortString, Table};
    Some(match method {
        // connection.start, secure, tune, open-ok, close, close-ok, blocked, unblocked
        (10, 10) => &[Octet, Octet, Table, LongString, LongString],
        (10, 20) => &[LongString],
        TUNE => &[Short, Long, Short],
        (10, 41 | 60) => &[ShortString],
        // … and channel.close
        (10, 50) | CHANNEL_CLOSE => &[Short, ShortString, Short, Short],
        (10, 51 | 61) => &[],
        // channel.open-ok, flow, flow-ok, close-ok
        CHANNEL_OPEN_OK => &[LongString],
        (20, 20 | 21) => &[Octet],
        (20, 41) => &[],
        // access.request-ok
        (30, 11) => &[Short],
        // exchange.declare-ok, delete-ok, bind-ok, unbind-ok
        (40, 11 | 21 | 31 | 51) => &[],
        // queue.declare-ok, bind-ok, purge-ok, delete-ok, unbind-ok
        (50, 11) => &[ShortString, Long, Long],
        (50, 21 | 51) => &[],
        (50, 31 | 41) => &[Long],
        // basic.qos-ok, recover-ok
        (60, 11 | 111) => &[],
        // basic.consume-ok, cancel, cancel-ok, get-empty
        (60, 21 | 31 | 72) => &[ShortString],
        (60, 30) => &[ShortString, Octet],
        // basic.return, deliver, get-ok
        (60, 50) => &[Short, ShortString, ShortString, ShortString],
        (60, 60) => &[ShortString, LongLong, Octet, ShortString, ShortString],
        (60, 71) => &[LongLong, Octet, ShortString, ShortString, Long],
        // basic.ack, nack
        (60, 80 | 120) => &[LongLong, Octet],
        // confirm.select-ok, tx.select-ok, commit-ok, rollback-ok
        (85, 11) | (90, 11 | 21 | 31) => &[],
        _ => return None,
    })
}
