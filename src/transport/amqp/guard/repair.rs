//! Makes arguments, properties and tables readable, in place.

use super::invalid;
use std::io;

/// How deep tables and arrays may lie in one another, the outermost counted as 1. amiquip's reader recurses: a debug build
/// overflows its stack at 560.
const DEEPEST: u32 = 32;
/// RabbitMQ takes no larger messages, and amiquip allocates what a content header announces.
const LARGEST_BODY: u64 = 512 << 20;

/// What a method or a content header consists of.
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

/// The properties of a message, from the highest flag down.
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

/// Makes the arguments at the start of `bytes` readable; `None` when they end too early, for which there is no remedy.
pub(super) fn arguments(layout: &[Argument], mut bytes: &mut [u8]) -> Option<()> {
    for argument in layout {
        let len = argument.repair(bytes)?;
        bytes = &mut bytes[len..];
    }
    Some(())
}

/// Makes the properties in the payload of a header frame readable. Those that end too early are taken away, by their
/// flags.
pub(super) fn content_header(payload: &mut [u8]) -> io::Result<()> {
    // Class, weight, body size, flags.
    let Some(([_, _, _, _, size @ .., high, low], mut rest)) =
        payload.split_first_chunk_mut::<14>()
    else {
        return Err(invalid(
            "the broker sent a header frame that ends too early",
        ));
    };
    let size: &[u8; 8] = size;
    let body = u64::from_be_bytes(*size);
    if body > LARGEST_BODY {
        return Err(invalid(format!(
            "the broker announced a message of {body} bytes, where at most {LARGEST_BODY} are taken"
        )));
    }
    let flags = u16::from_be_bytes([*high, *low]);
    for (index, property) in PROPERTIES.iter().enumerate() {
        let flag = 0x8000_u16 >> index;
        if flags & flag == 0 {
            continue;
        }
        let Some(len) = property.repair(rest) else {
            let before = !(flag | (flag - 1));
            [*high, *low] = (flags & before).to_be_bytes();
            return Ok(());
        };
        rest = &mut rest[len..];
    }
    Ok(())
}

impl Argument {
    /// Makes the value at the start of `bytes` readable and says how long it is; `None` when it would go past their end.
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

/// Makes what is in a table or an array readable, `depth` levels deep.
///
/// A name that does not fit its table, or has no value, needs no repair: amiquip's reader takes it for the end of the
/// table, and nothing can be read behind it.
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

/// Makes the value at the start of `bytes`, its type byte included, readable and says how long it is. `depth` is that of
/// the container it is in, which ends with `bytes`.
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

/// Makes a value that nobody can find the end of, and with it everything up to the end of its table, one byte array. Its
/// length stands where four bytes of the value were. Fewer bytes than that stay as they are: amiquip's reader takes them
/// for the end of the table, and there is no room for another value behind them.
fn all_as_bytes(bytes: &mut [u8]) -> usize {
    let all = bytes.len();
    if let Some(([kind, len @ ..], content)) = bytes.split_first_chunk_mut::<5>() {
        *kind = b'x';
        // It fits: a frame has a length of four bytes, too.
        *len = u32::try_from(content.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes();
    }
    all
}

/// Replaces what is not UTF-8, byte for byte.
fn text(mut bytes: &mut [u8]) {
    while let Err(error) = std::str::from_utf8(bytes) {
        let from = error.valid_up_to();
        let to = error.error_len().map_or(bytes.len(), |len| from + len);
        bytes[from..to].fill(b'?');
        bytes = &mut bytes[to..];
    }
}

fn long_len(bytes: &[u8]) -> Option<usize> {
    let len = bytes.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*len) as usize)
}
