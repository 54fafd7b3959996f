//! Clients past the library under test: of the real broker by amiquip, of either one by the transport seam.

use crate::broker::{Broker, MemoryTransport};
use crate::time::instant::monotonic;
use crate::transport::{Dialled, Failure, Transport};
use amiquip::{AmqpValue, Channel, Connection};
use crossbeam_channel::after;
use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

/// How long a call may take that does not take long.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(20);

/// A plain client of one virtual host of the real broker.
pub(super) struct Raw(RefCell<Connection>);

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Raw")
    }
}

impl Raw {
    pub(super) fn open(url: &str) -> Self {
        Self(RefCell::new(Connection::insecure_open(url).unwrap()))
    }

    /// The broker's version, such as `3.10.8`.
    pub(super) fn version(&self) -> String {
        match self.0.borrow().server_properties().get("version") {
            Some(AmqpValue::LongString(version)) => version.clone(),
            other => panic!("the broker names no version: {other:?}"),
        }
    }

    /// Works on a channel of its own. The error is the reply code with which the broker closes it.
    pub(super) fn attempt<T>(
        &self,
        work: impl FnOnce(&Channel) -> amiquip::Result<T>,
    ) -> Result<T, u16> {
        let channel = self.0.borrow_mut().open_channel(None).unwrap();
        match work(&channel) {
            Ok(value) => Ok(value),
            Err(amiquip::Error::ServerClosedChannel { code, .. }) => Err(code),
            Err(error) => panic!("neither done nor refused: {error}"),
        }
    }
}

/// A way to the embedded broker.
pub(super) fn memory(broker: &Broker) -> MemoryTransport {
    MemoryTransport {
        broker: broker.clone(),
        heartbeat: Duration::ZERO,
        channel_max: 2047,
    }
}

/// Connects. A busy node lets a handshake time out now and then, so a failure is tried again for a minute.
pub(super) fn dial(transport: &dyn Transport) -> Dialled {
    let mut dialled = None;
    wait_until(Duration::from_secs(60), "connected", || {
        dialled = transport
            .dial(monotonic() + PATIENCE, &|_| {})
            .map_err(|failure| eprintln!("{failure}"))
            .ok();
        dialled.is_some()
    });
    dialled.unwrap()
}

/// The reply code of a refusal; 0 when there is none.
pub(super) fn code(failure: Failure) -> u16 {
    match failure {
        Failure::Refused { code, .. } => code,
        _ => 0,
    }
}

/// Waits until `condition` holds; panics, naming `what`, when it does not within `limit`.
pub(super) fn wait_until(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let end = monotonic() + limit;
    while !condition() {
        assert!(monotonic() < end, "not within {limit:?}: {what}");
        let_pass(POLL);
    }
}

/// Lets `time` pass on the real broker: for a moment that nothing marks.
pub(super) fn let_pass(time: Duration) {
    let _ = after(time).recv();
}
