//! The frame guard: a filter over what arrives from the broker, ahead of amiquip.
//!
//! It follows the frames, TLS taken off, and changes in place what amiquip cannot survive; the length of the stream
//! never changes. Everything else passes byte for byte.
//!
//! | what arrives | what amiquip would do | what it gets |
//! |---|---|---|
//! | a long string in a table that is not UTF-8 | lose it and every header behind it | a byte array |
//! | any other text that is not UTF-8 | end the connection, at each redelivery again | `?` for every bad byte |
//! | tables and arrays nested deeper than 32 levels | abort the process by stack overflow | byte arrays |
//! | a value of a type it does not know, or longer than its table | lose it and every header behind it | the rest of that table as one byte array |
//! | properties that end too early | end the connection, at each redelivery again | the properties before |
//! | frames on a channel that the broker has closed | end the connection | heartbeats, which it ignores |
//! | a connection.tune without heartbeats | send none, and notice no dead peer | one that leaves them to the client |
//! | frame and body sizes beyond reason | allocate them | an error, which ends the connection |
//! | methods it cannot read, or another protocol | end the connection | an error that says so |

mod frames;
mod methods;
mod repair;
#[cfg(test)]
mod tests;

pub(super) use frames::FrameMax;

use crate::transport::Activity;
use frames::{FRAME_END, FRAME_HEADER, Frames, Head, LARGEST_FRAME, Verdict};
use std::io::{self, Read};

/// How much is read at once. The buffer grows only for a single method or header frame that is larger.
const CHUNK: usize = 64 * 1024;

/// Guards one connection.
#[derive(Debug)]
pub(super) struct Guard {
    frames: Frames,
    activity: Activity,
    /// In this order: handed out, cleared but not handed out yet, still to be looked at, room.
    bytes: Vec<u8>,
    handed_out: usize,
    cleared: usize,
    filled: usize,
    /// What is left of a frame that passes without being looked at, its end byte included.
    passing: usize,
}

impl Guard {
    pub(super) fn new(activity: Activity) -> Self {
        Self {
            frames: Frames::new(),
            activity,
            bytes: vec![0; CHUNK],
            handed_out: 0,
            cleared: 0,
            filled: 0,
            passing: 0,
        }
    }

    /// The negotiated `frame_max`, for whoever makes frames.
    pub(super) fn frame_max(&self) -> FrameMax {
        self.frames.frame_max()
    }

    /// Reads from `wire` into `buffer` what amiquip may see.
    ///
    /// Like any non-blocking read it hands out what is there, and answers `WouldBlock` only after the wire has done so:
    /// what is held back then is the start of a frame whose rest will wake the reader up.
    ///
    /// # Errors
    ///
    /// Those of the wire, and `InvalidData` for what nobody could repair.
    pub(super) fn read(&mut self, wire: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
        while self.handed_out == self.cleared {
            let cleared = self.clear();
            // What was cleared ahead of an error goes out first; the next call meets the error again.
            if self.handed_out < self.cleared {
                break;
            }
            cleared?;
            if self.fill(wire)? == 0 {
                return Ok(0);
            }
        }
        let ready = &self.bytes[self.handed_out..self.cleared];
        let count = ready.len().min(buffer.len());
        buffer[..count].copy_from_slice(&ready[..count]);
        self.handed_out += count;
        Ok(count)
    }

    /// Goes through what has arrived, as far as that makes whole frames or parts of frames that pass.
    fn clear(&mut self) -> io::Result<()> {
        loop {
            let pending = &mut self.bytes[self.cleared..self.filled];
            let Some(&first) = pending.first() else {
                return Ok(());
            };
            if self.passing > 0 {
                let count = self.passing.min(pending.len());
                if count == self.passing {
                    check_end(pending[count - 1])?;
                }
                self.passing -= count;
                self.cleared += count;
                continue;
            }
            self.frames.check_kind(first)?;
            let Some((head, rest)) = pending.split_first_chunk_mut::<FRAME_HEADER>() else {
                return Ok(());
            };
            let frame = Head::read(head);
            match self.frames.judge(frame)? {
                Verdict::Pass => {}
                Verdict::Blank => frame.blank(head),
                Verdict::Inspect => {
                    let Some((payload, [end, ..])) = rest.split_at_mut_checked(frame.payload)
                    else {
                        return Ok(());
                    };
                    check_end(*end)?;
                    if !self.frames.inspect(frame, payload)? {
                        frame.blank(head);
                    }
                }
            }
            self.cleared += FRAME_HEADER;
            self.passing = frame.payload + 1;
        }
    }

    /// Reads once from the wire. Everything cleared has been handed out.
    fn fill(&mut self, wire: &mut impl Read) -> io::Result<usize> {
        self.bytes.copy_within(self.cleared..self.filled, 0);
        self.filled -= self.cleared;
        (self.handed_out, self.cleared) = (0, 0);
        if self.filled == self.bytes.len() {
            let larger = self.bytes.len() * 2;
            self.bytes
                .resize(larger.min(FRAME_HEADER + LARGEST_FRAME + 1), 0);
        } else if self.filled == 0 && self.bytes.len() > CHUNK {
            self.bytes.truncate(CHUNK);
            self.bytes.shrink_to_fit();
        }
        let count = wire.read(&mut self.bytes[self.filled..])?;
        if count > 0 {
            self.filled += count;
            self.activity.note_read();
        }
        Ok(count)
    }
}

fn check_end(byte: u8) -> io::Result<()> {
    if byte == FRAME_END {
        return Ok(());
    }
    Err(invalid("the broker sent a frame without its end"))
}

/// Data that nothing can be made of.
fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}
