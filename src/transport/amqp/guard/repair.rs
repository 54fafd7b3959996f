//! Repairs arguments, properties and tables in place, so that amiquip can parse them.

use super::invalid;
use std::io;

/// The maximum nesting depth of tables and arrays; the outermost counts as 1. amiquip's parser
/// recurses, and a debug build overflows its stack at 560 levels.
const DEEPEST: u32 = 32;
/// The limit for a message body, which is that of RabbitMQ. amiquip allocates the size that a
/// content header announces.
const LARGEST_BODY: u64 = 512 << 20;

/// The wire type of an argument or a property.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    Octet,
    Short,
    Long,
    LongLong,
    ShortString,
    LongString,
    Table,
}

/// The properties of a message, in the order of their flags from the highest.
const PROPERTIES: [Argument; 14] = {
    use Argument::{LongLong, Octet, ShortString, Table};
    [
        ShortString, // content-type
        ShortString, // content-encoding
        Table,       // headers
        Octet,       // delivery-mode
        Octet,       // priority
        ShortString, // correlation-id
        ShortString, // reply-to
        ShortString, // expiration
        ShortString, // message-id
        LongLong,    // timestamp
        ShortString, // type
        ShortString, // user-id
        ShortString, // app-id
        ShortString, // cluster-id
    ]
};

/// Repairs the arguments at the start of `bytes`; `None` if they are truncated, which cannot be
/// repaired.
pub(super) fn arguments(layout: &[Argument], mut bytes: &mut [u8]) -> Option<()> {
    for argument in layout {
        let len = argument.repair(bytes)?;
        bytes = &mut bytes[len..];
    }
    Some(())
}

/// Repairs the properties in the payload of a header frame. Truncated properties are removed by
/// clearing their flags.
pub(super) fn content_header(payload: &mut [u8]) -> io::Result<()> {
    // Class, weight, body size, flags.
    let Some(([_, _, _, _, size @ .., high, low], mut rest)) =
        payload.split_first_chunk_mut::<14>()
    else {
        return Err(invalid("the broker sent a truncated header frame"));
    };
    let size: &[u8; 8] = size;
    let body = u64::from_be_bytes(*size);
    if body > LARGEST_BODY {
        return Err(invalid(format!(
            "the broker announced a message of {body} bytes, but the limit is {LARGEST_BODY}"
        )));
    }
    let flags = u16::from_be_bytes([*high, *low]);
    for (index, property) in PROPERTIES.iter().enumerate() {
        let flag = 0x8000_u16 >> index;
        if flags & flag == 0 {
            continue;
        }
        let Some(len) = property.repair(rest) else {
            // Keeps the flags above this one, whose properties precede it.
            let before = !(flag | (flag - 1));
            [*high, *low] = (flags & before).to_be_bytes();
            return Ok(());
        };
        rest = &mut rest[len..];
    }
    Ok(())
}

impl Argument {
    /// Repairs the value at the start of `bytes` and returns its length; `None` if it is truncated.
    fn repair(self, bytes: &mut [u8]) -> Option<usize> {
        let (prefix, len): (usize, usize) = match self {
            Self::Octet => (0, 1),
            Self::Short => (0, 2),
            Self::Long => (0, 4),
            Self::LongLong => (0, 8),
            Self::ShortString => (1, usize::from(*bytes.first()?)),
            Self::LongString | Self::Table => (4, long_len(bytes)?),
        };
        let content = bytes.get_mut(prefix..prefix.checked_add(len)?)?;
        match self {
            Self::ShortString | Self::LongString => text(content),
            Self::Table => entries(content, Container::Table, 1),
            _ => {}
        }
        Some(prefix + len)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Container {
    Table,
    Array,
}

/// Repairs the entries of a table or an array at nesting depth `depth`.
///
/// A name that is truncated or has no value needs no repair: amiquip's parser treats it as the end
/// of the table, and nothing after it can be parsed.
fn entries(mut bytes: &mut [u8], container: Container, depth: u32) {
    while !bytes.is_empty() {
        if container == Container::Table {
            let Some(len) = Argument::ShortString.repair(bytes) else {
                return;
            };
            bytes = &mut bytes[len..];
        }
        let len = value(bytes, depth);
        bytes = &mut bytes[len..];
    }
}

/// Repairs the value at the start of `bytes` and returns its length, both including the type byte.
/// `depth` is the nesting depth of its container, which ends with `bytes`.
fn value(bytes: &mut [u8], depth: u32) -> usize {
    let Some((kind, rest)) = bytes.split_first_mut() else {
        return 0;
    };
    let len = match *kind {
        b'V' => Some(0),
        b't' | b'b' | b'B' => Some(1),
        b's' | b'U' | b'u' => Some(2),
        b'I' | b'i' | b'f' => Some(4),
        b'D' => Some(5),
        b'L' | b'l' | b'd' | b'T' => Some(8),
        b'S' | b'x' | b'A' | b'F' => long_len(rest).and_then(|len| len.checked_add(4)),
        _ => None,
    };
    let Some(content) = len.and_then(|len| rest.get_mut(..len)) else {
        return all_as_bytes(bytes);
    };
    match *kind {
        b'S' if std::str::from_utf8(&content[4..]).is_err() => *kind = b'x',
        b'A' | b'F' if depth == DEEPEST => *kind = b'x',
        b'A' => entries(&mut content[4..], Container::Array, depth + 1),
        b'F' => entries(&mut content[4..], Container::Table, depth + 1),
        _ => {}
    }
    1 + content.len()
}

/// Turns a value of unknown length, with the rest of its table, into one byte array.
///
/// The length of the array overwrites the first four bytes of the value. Fewer bytes than that stay
/// unchanged: amiquip's parser treats them as the end of the table.
fn all_as_bytes(bytes: &mut [u8]) -> usize {
    let all = bytes.len();
    if let Some(([kind, len @ ..], content)) = bytes.split_first_chunk_mut::<5>() {
        *kind = b'x';
        // Never saturates, because the length of a frame has four bytes too.
        *len = u32::try_from(content.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes();
    }
    all
}

/// Replaces every byte that is not UTF-8 with a question mark.
fn text(mut bytes: &mut [u8]) {
    while let Err(error) = std::str::from_utf8(bytes) {
        let from = error.valid_up_to();
        // `error_len` is `None` for a truncated character at the end.
        let to = error.error_len().map_or(bytes.len(), |len| from + len);
        bytes[from..to].fill(b'?');
        bytes = &mut bytes[to..];
    }
}

fn long_len(bytes: &[u8]) -> Option<usize> {
    let len = bytes.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*len) as usize)
}
