//! The frame guard: a filter between the broker and amiquip that repairs frames amiquip cannot
//! handle.
//!
//! The guard parses the plaintext stream and repairs it in place, so the length of the stream never
//! changes. Everything else passes byte for byte.
//!
//! | what arrives | what amiquip would do | what amiquip receives |
//! |---|---|---|
//! | a long string in a table that is not UTF-8 | lose it and all later headers | a byte array |
//! | any other text that is not UTF-8 | end the connection, at each redelivery | `?` per bad byte |
//! | tables and arrays deeper than 32 levels | overflow the stack | byte arrays |
//! | a value of unknown type or length | lose it and all later headers | a byte array |
//! | truncated properties | end the connection, at each redelivery | the complete properties |
//! | frames on a channel the broker has closed | end the connection | heartbeats |
//! | a connection.tune without heartbeats | send none, miss a dead peer | the maximum heartbeat |
//! | excessive frame and body sizes | allocate them | an error, which ends the connection |
//! | unknown methods, or another protocol | end the connection | an error that names the cause |

mod frames;
mod methods;
mod repair;
#[cfg(test)]
mod tests;

pub(super) use frames::FrameMax;

use crate::transport::Activity;
use frames::{FRAME_END, FRAME_HEADER, FrameAction, Frames, Head, LARGEST_FRAME};
use std::io::{self, Read};

/// The size of one read. The buffer grows only for a larger method or header frame.
const CHUNK: usize = 64 * 1024;

/// The guard of one connection, owned by its socket.
#[derive(Debug)]
pub(super) struct Guard {
    frames: Frames,
    activity: Activity,
    /// The buffer. In order: bytes handed out, cleared bytes, bytes to inspect, free space. The
    /// next three fields are the boundaries.
    bytes: Vec<u8>,
    handed_out: usize,
    cleared: usize,
    filled: usize,
    /// The remaining bytes of a frame that passes without inspection, including its end byte.
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

    /// A handle to the negotiated `frame_max`.
    pub(super) fn frame_max(&self) -> FrameMax {
        self.frames.frame_max()
    }

    /// Reads cleared bytes from `wire` into `buffer`.
    ///
    /// Returns `WouldBlock` only after `wire` has done so. The bytes held back at that point are
    /// the start of a frame whose rest will wake the reader.
    ///
    /// # Errors
    ///
    /// Errors of `wire`, and `InvalidData` for a stream that cannot be repaired.
    pub(super) fn read(&mut self, wire: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
        while self.handed_out == self.cleared {
            let cleared = self.clear();
            // Bytes cleared before an error are handed out first. The next call meets the error
            // again.
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

    /// Clears buffered bytes: complete frames after inspection, and parts of frames that pass.
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
                FrameAction::Pass => {}
                FrameAction::Blank => frame.blank(head),
                FrameAction::Inspect => {
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
            // The payload and the end byte follow without inspection.
            self.passing = frame.payload + 1;
        }
    }

    /// Reads once from `wire`. Requires that all cleared bytes are handed out.
    fn fill(&mut self, wire: &mut impl Read) -> io::Result<usize> {
        // Moves the incomplete frame to the start of the buffer.
        self.bytes.copy_within(self.cleared..self.filled, 0);
        self.filled -= self.cleared;
        (self.handed_out, self.cleared) = (0, 0);
        if self.filled == self.bytes.len() {
            // The buffer is full without a complete frame, so the frame is larger than the buffer.
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
    Err(invalid("the broker sent a frame without its end byte"))
}

/// The error for data that cannot be repaired.
fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}
