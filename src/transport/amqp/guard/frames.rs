//! Tracks the frames of a connection: which pass, which are inspected, which are too large.

use super::{invalid, methods, repair};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The size of a frame header: type, channel and payload size.
pub(super) const FRAME_HEADER: usize = 7;
pub(super) const FRAME_END: u8 = 0xCE;

pub(super) const METHOD: u8 = 1;
pub(super) const HEADER: u8 = 2;
pub(super) const BODY: u8 = 3;
pub(super) const HEARTBEAT: u8 = 8;

/// The limit for the payload of any frame.
///
/// Method and header frames may exceed `frame_max`: the broker adds headers such as `x-death` to a
/// message and sends a larger header frame than it would accept. Body frames stay within
/// `frame_max`.
pub(super) const LARGEST_FRAME: usize = 16 << 20;
/// The limit for a frame before connection.tune. A peer that announces more speaks another
/// protocol.
const LARGEST_HANDSHAKE_FRAME: usize = 1 << 20;

/// The negotiated `frame_max`, shared between the guard and the dialling thread.
///
/// 0 until the connection is open, and for no limit. The I/O thread stores it with release ordering
/// before amiquip reports the connection as open; the load with acquire ordering pairs with it.
#[derive(Clone, Debug)]
pub(in crate::transport::amqp) struct FrameMax(Arc<AtomicUsize>);

impl FrameMax {
    /// The limit in bytes; `usize::MAX` if the broker set none.
    pub(in crate::transport::amqp) fn get(&self) -> usize {
        match self.0.load(Ordering::Acquire) {
            0 => usize::MAX,
            bytes => bytes,
        }
    }
}

/// A frame header.
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

    /// Turns the frame into a heartbeat of the same length, which amiquip ignores. Removing the
    /// frame would move all bytes after it.
    pub(super) fn blank(self, bytes: &mut [u8; FRAME_HEADER]) {
        bytes[..3].copy_from_slice(&[HEARTBEAT, 0, 0]);
    }
}

/// What to do with a frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum FrameAction {
    /// The frame passes as its bytes arrive.
    Pass,
    /// The frame is blanked as its bytes arrive.
    Blank,
    /// The frame must be complete, for [`Frames::inspect`].
    Inspect,
}

/// The state of one connection, updated with each frame in order.
#[derive(Debug)]
pub(super) struct Frames {
    frame_max: FrameMax,
    /// Whether connection.tune has passed.
    tuned: bool,
    /// Channels that the broker has closed and not reopened.
    ///
    /// The broker keeps sending frames that were in flight, but amiquip has forgotten the channel
    /// until the next channel.open-ok. Content interrupted by the close is discarded with amiquip's
    /// channel, and its remaining frames are blanked here.
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

    /// Checks the first byte of a frame. This does not wait for a complete frame header, because a
    /// peer with another protocol may send less than that and wait.
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

    /// Decides what to do with a frame by its header.
    pub(super) fn judge(&self, head: Head) -> io::Result<FrameAction> {
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
                "the broker announced a {name} frame of {} bytes, but the limit is {largest}",
                head.payload
            )));
        }
        Ok(match head.kind {
            // Methods are inspected even on a closed channel, for its channel.open-ok.
            METHOD => FrameAction::Inspect,
            _ if self.is_closed(head.channel) => FrameAction::Blank,
            HEADER => FrameAction::Inspect,
            _ => FrameAction::Pass,
        })
    }

    /// Repairs a complete method or header frame; returns whether it may pass.
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
            // Only the first tune counts: limits do not change on an open connection.
            methods::TUNE if !self.tuned => {
                self.tuned = true;
                methods::allow_heartbeats(arguments);
                let frame_max = methods::frame_max(arguments);
                self.frame_max.0.store(frame_max, Ordering::Release);
            }
            methods::CHANNEL_CLOSE if head.channel != 0 => {
                self.closed.insert(head.channel);
            }
            methods::CHANNEL_OPEN_OK => {
                self.closed.remove(&head.channel);
            }
            _ => {}
        }
        Ok(true)
    }

    fn is_closed(&self, channel: u16) -> bool {
        !self.closed.is_empty() && self.closed.contains(&channel)
    }

    fn largest_body_frame(&self) -> usize {
        // `frame_max` includes the frame header and the end byte.
        self.frame_max
            .get()
            .saturating_sub(FRAME_HEADER + 1)
            .min(LARGEST_FRAME)
    }
}
