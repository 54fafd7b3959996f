//! Reads the negotiated `frame_max` off the wire: amiquip does not show it, and a copy must fit it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const FRAME_HEADER: usize = 7;
const METHOD_FRAME: u8 = 1;
const HEARTBEAT_FRAME: u8 = 8;
/// connection.tune is class 10, method 30; its arguments are channel-max, frame-max, heartbeat.
const TUNE: [u8; 4] = [0, 10, 0, 30];
/// No frame before the negotiation is larger than this in practice; a peer that announces more speaks another protocol.
const LARGEST_HANDSHAKE_FRAME: usize = 1 << 20;

/// The negotiated `frame_max`, known once the connection is open.
#[derive(Clone, Debug)]
pub(super) struct FrameMax(Arc<AtomicUsize>);

impl FrameMax {
    /// `usize::MAX` when the broker set no limit.
    pub(super) fn get(&self) -> usize {
        match self.0.load(Ordering::Acquire) {
            0 => usize::MAX,
            bytes => bytes,
        }
    }
}

/// Follows the frames of a handshake until connection.tune has passed; then it looks at nothing any more.
#[derive(Debug)]
pub(super) struct TuneWatch {
    frame_max: FrameMax,
    pending: Option<Vec<u8>>,
}

impl TuneWatch {
    pub(super) fn new() -> (Self, FrameMax) {
        let frame_max = FrameMax(Arc::new(AtomicUsize::new(0)));
        (
            Self {
                frame_max: frame_max.clone(),
                pending: Some(Vec::new()),
            },
            frame_max,
        )
    }

    /// Takes note of bytes that arrived.
    ///
    /// # Errors
    ///
    /// When they cannot be the start of AMQP frames: some other protocol answers on that port.
    pub(super) fn observe(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(pending) = &mut self.pending else {
            return Ok(());
        };
        pending.extend_from_slice(bytes);
        while pending.len() >= FRAME_HEADER {
            let payload =
                u32::from_be_bytes([pending[3], pending[4], pending[5], pending[6]]) as usize;
            let kind = pending[0];
            if !matches!(kind, METHOD_FRAME | HEARTBEAT_FRAME) || payload > LARGEST_HANDSHAKE_FRAME
            {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the peer does not speak AMQP 0-9-1",
                ));
            }
            let frame = FRAME_HEADER + payload + 1;
            if pending.len() < frame {
                return Ok(());
            }
            let arguments = &pending[FRAME_HEADER..FRAME_HEADER + payload];
            if kind == METHOD_FRAME && payload >= 12 && arguments[..4] == TUNE {
                let frame_max =
                    u32::from_be_bytes([arguments[6], arguments[7], arguments[8], arguments[9]]);
                self.frame_max
                    .0
                    .store(frame_max as usize, Ordering::Release);
                self.pending = None;
                return Ok(());
            }
            pending.drain(..frame);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![METHOD_FRAME, 0, 0];
        frame.extend((payload.len() as u32).to_be_bytes());
        frame.extend(payload);
        frame.push(0xCE);
        frame
    }

    #[test]
    fn finds_frame_max_however_the_bytes_are_cut() {
        let mut bytes = frame(&[0, 10, 0, 10, 1, 2, 3]);
        bytes.extend(frame(&[0, 10, 0, 30, 7, 255, 0, 2, 0, 0, 0, 60]));
        for size in 1..bytes.len() {
            let (mut watch, frame_max) = TuneWatch::new();
            for piece in bytes.chunks(size) {
                watch.observe(piece).unwrap();
            }
            assert_eq!(frame_max.get(), 131_072);
        }
    }

    #[test]
    fn zero_is_no_limit() {
        let (mut watch, frame_max) = TuneWatch::new();
        watch
            .observe(&frame(&[0, 10, 0, 30, 0, 0, 0, 0, 0, 0, 0, 0]))
            .unwrap();
        assert_eq!(frame_max.get(), usize::MAX);
    }

    #[test]
    fn another_protocol_is_an_error() {
        let (mut watch, _) = TuneWatch::new();
        assert!(watch.observe(b"HTTP/1.1 400 Bad Request\r\n").is_err());
        let (mut watch, _) = TuneWatch::new();
        assert!(
            watch
                .observe(&[METHOD_FRAME, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF])
                .is_err()
        );
    }
}
