//! A fake transport for unit tests: the test scripts its answers, and it does nothing else.

use super::{
    Activity, Channel, Confirm, Confirms, Dialled, Failure, Gone, KillSwitch, Link, LinkEvent,
    Subscription,
};
use crate::message::delivery::{Delivery, Outgoing, Returned};
use crate::message::headers::Headers;
use crate::topology::declaration::Declaration;
use crossbeam_channel::{Receiver, Select, bounded, unbounded};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Scripts the answers of a channel. No subscription ever succeeds.
type Respond = Arc<dyn Fn(Call, &Declaration) -> Result<(), Failure> + Send + Sync>;

/// The scripted calls of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Declare,
    Check,
    Subscribe,
}

/// A channel that accepts every call unless its script refuses it.
pub(crate) struct FakeChannel(Respond);

impl FakeChannel {
    pub(crate) fn new() -> Self {
        Self(Arc::new(|_, _| Ok(())))
    }
}

impl fmt::Debug for FakeChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeChannel")
    }
}

impl Channel for FakeChannel {
    fn declare(&self, declaration: &Declaration) -> Result<(), Failure> {
        (self.0)(Call::Declare, declaration)
    }

    fn check(&self, declaration: &Declaration) -> Result<(), Failure> {
        (self.0)(Call::Check, declaration)
    }

    fn set_prefetch(&self, _prefetch: u16) -> Result<(), Failure> {
        Ok(())
    }

    fn subscribe(&self, queue: &str) -> Result<Box<dyn Subscription + '_>, Failure> {
        let queue = Declaration::durable_queue(queue, Headers::new());
        (self.0)(Call::Subscribe, &queue)?;
        Err(Failure::TimedOut)
    }

    fn count(&self, _queue: &str) -> Result<usize, Failure> {
        Ok(0)
    }

    fn get(&self, _queue: &str) -> Result<Option<Delivery>, Failure> {
        Ok(None)
    }

    fn ack(&self, _tag: u64, _multiple: bool) -> Result<(), Failure> {
        Ok(())
    }

    fn nack(&self, _tag: u64) -> Result<(), Failure> {
        Ok(())
    }

    fn reject(&self, _tag: u64) -> Result<(), Failure> {
        Ok(())
    }

    fn confirms(&self) -> Result<Box<dyn Confirms>, Failure> {
        Ok(Box::new(FakeConfirms(unbounded().1)))
    }

    fn publish(&self, _message: &Outgoing) -> Result<(), Failure> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}

/// Confirms sent by the test.
#[derive(Debug)]
pub(crate) struct FakeConfirms(pub(crate) Receiver<Confirm>);

impl Confirms for FakeConfirms {
    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize {
        select.recv(&self.0)
    }

    fn next_confirm(&self) -> Result<Option<Confirm>, Gone> {
        Ok(self.0.try_recv().ok())
    }

    fn next_return(&self) -> Option<Returned> {
        None
    }
}

/// A link that lives until its kill switch is triggered.
struct FakeLink {
    life: Receiver<()>,
    respond: Respond,
}

/// A dialled link whose channels answer declarations, checks and subscriptions with `respond`.
pub(crate) fn dialled(
    respond: impl Fn(Call, &Declaration) -> Result<(), Failure> + Send + Sync + 'static,
) -> Dialled {
    let (alive, life) = bounded(0);
    // Dropping the sender disconnects `life`. The lock only makes the kill switch `Sync`.
    let alive = Mutex::new(Some(alive));
    Dialled {
        link: Box::new(FakeLink {
            life,
            respond: Arc::new(respond),
        }),
        kill: KillSwitch::new(move || drop(alive.lock().take())),
        frame_max: 4096,
        activity: Activity::new(Duration::ZERO),
    }
}

impl fmt::Debug for FakeLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeLink")
    }
}

impl Link for FakeLink {
    fn open_channel(&mut self) -> Result<Box<dyn Channel>, Failure> {
        Ok(Box::new(FakeChannel(self.respond.clone())))
    }

    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize {
        select.recv(&self.life)
    }

    fn next_event(&self) -> Result<Option<LinkEvent>, Gone> {
        match self.life.try_recv() {
            Err(error) if error.is_disconnected() => Err(Gone),
            _ => Ok(None),
        }
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        Err("killed by the test".to_owned())
    }
}
