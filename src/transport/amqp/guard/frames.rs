//! Follows the frames: which may pass, which are looked into, which are too large.

use super::{invalid, methods, repair};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Type, channel and payload size.
pub(super) const FRAME_HEADER: usize = 7;
pub(super) const FRAME_END: u8 = 0xCE;

pub(super) const METHOD: u8 = 1;
pub(super) const HEADER: u8 = 2;
pub(super) const BODY: u8 = 3;
pub(super) const HEARTBEAT: u8 = 8;

/// The largest payload of any frame. For method and header frames frame_max is no measure: the broker adds headers to a
/// message (`x-death` among them) and sends a larger header frame than it would take. Body frames keep to frame_max.
pub(super) const LARGEST_FRAME: usize = 16 << 20;
/// A peer that announces more before the negotiation is over speaks another protocol.
const LARGEST_HANDSHAKE_FRAME: usize = 1 << 20;

/// The negotiated `frame_max`, known once the connection is open.
#[derive(Clone, Debug)]
pub(in crate::transport::amqp) struct FrameMax(Arc<AtomicUsize>);

impl FrameMax {
    /// `usize::MAX` when the broker set no limit.
    pub(in crate::transport::amqp) fn get(&self) -> usize {
        match self.0.load(Ordering::Acquire) {
            0 => usize::MAX,
            bytes => bytes,
        }
    }
}

/// What a frame begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    kind: u8,
    channel: u16,
    pub(super) payload: usize,
}

impl Head {
    pub(super) fn read(bytes: &[u8; FRAME_HEADER]) -> Self {
        let [kind, high, low, size @ ..] = *bytes;
        Self {
            kind,
            channel: u16::from_be_bytes([high, low]),
            payload: u32::from_be_bytes(size) as usize,
        }
    }

    /// Makes the frame a heartbeat of the same length. It stands for nothing, and nobody looks into it; taking the frame
    /// out would only mean to move everything behind it.
    pub(super) fn blank(self, bytes: &mut [u8; FRAME_HEADER]) {
        bytes[..3].copy_from_slice(&[HEARTBEAT, 0, 0]);
    }
}

/// What is to be done with a frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    /// Passes as it comes.
    Pass,
    /// Is dropped as it comes.
    Blank,
    /// Has to be whole, for [`Frames::inspect`].
    Inspect,
}

/// One connection's frames, in the order in which they come.
#[derive(Debug)]
pub(super) struct Frames {
    frame_max: FrameMax,
    /// Whether connection.tune has passed.
    tuned: bool,
    /// The channels that the broker has closed and not opened again. It goes on sending what it had under way, and amiquip
    /// has forgotten these channels: its next word on them is the broker's channel.open-ok. Content that was cut in two by
    /// the close goes with amiquip's memory of the channel, and its rest is dropped here.
    closed: HashSet<u16>,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            frame_max: FrameMax(Arc::default()),
            tuned: false,
            closed: HashSet::new(),
        }
    }

    pub(super) fn frame_max(&self) -> FrameMax {
        self.frame_max.clone()
    }

    /// Whether a frame can begin with this byte. Asked as soon as there is one: other protocols may send less than a
    /// frame header and wait.
    pub(super) fn check_kind(&self, kind: u8) -> io::Result<()> {
        match kind {
            METHOD | HEARTBEAT => Ok(()),
            HEADER | BODY if self.tuned => Ok(()),
            _ if self.tuned => Err(invalid(format!(
                "the broker sent a frame of unknown type {kind}"
            ))),
            _ => Err(invalid("the peer does not speak AMQP 0-9-1")),
        }
    }

    /// What is to be done with a frame that begins like this.
    pub(super) fn judge(&self, head: Head) -> io::Result<Verdict> {
        if !self.tuned && head.payload > LARGEST_HANDSHAKE_FRAME {
            return Err(invalid("the peer does not speak AMQP 0-9-1"));
        }
        let (name, largest) = match head.kind {
            METHOD => ("method", LARGEST_FRAME),
            HEADER => ("header", LARGEST_FRAME),
            BODY => ("body", self.largest_body_frame()),
            _ => ("heartbeat", 0),
        };
        if head.payload > largest {
            return Err(invalid(format!(
                "the broker announced a {name} frame of {} bytes, where at most {largest} are taken",
                head.payload
            )));
        }
        Ok(match head.kind {
            METHOD => Verdict::Inspect,
            _ if self.is_closed(head.channel) => Verdict::Blank,
            HEADER => Verdict::Inspect,
            _ => Verdict::Pass,
        })
    }

    /// Looks into a whole method or header frame and repairs it; whether it may pass.
    pub(super) fn inspect(&mut self, head: Head, payload: &mut [u8]) -> io::Result<bool> {
        if head.kind == HEADER {
            return repair::content_header(payload).map(|()| true);
        }
        let (method, arguments) = methods::split(payload)?;
        if method != methods::CHANNEL_OPEN_OK && self.is_closed(head.channel) {
            return Ok(false);
        }
        methods::repair(method, arguments)?;
        match method {
            methods::TUNE if !self.tuned => {
                self.tuned = true;
                methods::allow_heartbeats(arguments);
                let frame_max = methods::frame_max(arguments);
                self.frame_max.0.store(frame_max, Ordering::Release);
            }
            methods::CHANNEL_CLOSE if head.channel != 0 => drop(self.closed.insert(head.channel)),
            methods::CHANNEL_OPEN_OK => drop(self.closed.remove(&head.channel)),
            _ => {}
        }
        Ok(true)
    }

    fn is_closed(&self, channel: u16) -> bool {
        !self.closed.is_empty() && self.closed.contains(&channel)
    }

    fn largest_body_frame(&self) -> usize {
        // frame_max counts the frame's header and end.
        self.frame_max
            .get()
            .saturating_sub(FRAME_HEADER + 1)
            .min(LARGEST_FRAME)
    }
}
