//! The transport's traits over an embedded broker.
//!
//! A call submits a request to the hub and waits for its reply, which the hub usually sends within
//! the submission, on the caller's thread.

use super::model::ids::{ChannelId, ConsumerId, LinkId};
use super::server::broker::Broker;
use super::server::connection::{CloseReason, Operation, Reply, ServerConnection};
use crate::message::delivery::{Delivery, Outgoing, Returned};
use crate::time::instant::monotonic;
use crate::topology::declaration::Declaration;
use crate::transport::{
    Activity, Channel, Confirm, Confirms, Dialled, Failure, Gone, Incoming, KillSwitch, Link,
    LinkEvent, Subscription, Transport,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Select, TryRecvError, bounded, unbounded};
use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

/// The frame size that RabbitMQ and its clients negotiate.
const FRAME_MAX: usize = 131_072;

/// Connects to an embedded broker.
#[derive(Clone, Debug)]
pub(crate) struct MemoryTransport {
    pub(crate) broker: Broker,
    /// The heartbeat interval; zero is none. A connection closes after two missed heartbeats.
    pub(crate) heartbeat: Duration,
    /// The maximum number of channels of a connection.
    pub(crate) channel_max: u16,
}

impl Transport for MemoryTransport {
    fn dial(&self, limit: Instant, armed: &dyn Fn(KillSwitch)) -> Result<Dialled, String> {
        let activity = Activity::new(self.heartbeat);
        let (events, happened) = unbounded();
        let close_reason = CloseReason::default();
        let connection = ServerConnection::new(
            events,
            close_reason.clone(),
            activity.clone(),
            self.heartbeat,
        );
        let link = self.broker.update(|hub, _| {
            hub.attempts += 1;
            hub.faults.check_connect()?;
            let link = hub.state.open_link();
            hub.connections.insert(link, connection);
            Ok::<_, String>(link)
        })?;
        let kill = kill_switch(&self.broker, link);
        // The switch is armed before the handshake, so that it can end the wait for it.
        armed(kill.clone());
        let memory_link = MemoryLink {
            handle: Handle {
                broker: self.broker.clone(),
                link,
                close_reason,
            },
            events: happened,
            channel_max: self.channel_max,
        };
        memory_link.connect(limit)?;
        Ok(Dialled {
            link: Box::new(memory_link),
            kill,
            frame_max: FRAME_MAX,
            activity,
        })
    }

    fn address(&self) -> String {
        format!("memory://{}", self.broker.name())
    }
}

fn kill_switch(broker: &Broker, link: LinkId) -> KillSwitch {
    let broker = broker.clone();
    KillSwitch::new(move || broker.update(|hub, _| hub.kill(link, "this side cut it off")))
}

/// The access of a connection to its broker.
#[derive(Clone, Debug)]
struct Handle {
    broker: Broker,
    link: LinkId,
    close_reason: CloseReason,
}

impl Handle {
    fn lost(&self) -> Failure {
        let ended = self.close_reason.take();
        ended.unwrap_or_else(|| Failure::Lost("the connection is closed".to_owned()))
    }

    /// Submits an operation, and waits for its reply or the end of the connection.
    fn call(&self, channel: Option<ChannelId>, operation: Operation) -> Result<Reply, Failure> {
        let answer = self.submit(channel, operation)?;
        answer.recv().unwrap_or_else(|_| Err(self.lost()))
    }

    fn submit(
        &self,
        channel: Option<ChannelId>,
        operation: Operation,
    ) -> Result<Receiver<Result<Reply, Failure>>, Failure> {
        let (reply, answer) = bounded(1);
        if self.close_reason.is_set() {
            return Err(self.lost());
        }
        self.broker
            .update(|hub, _| hub.submit(self.link, channel, operation, Some(reply)));
        Ok(answer)
    }

    /// Submits an operation without a reply.
    fn tell(&self, channel: Option<ChannelId>, operation: Operation) {
        self.broker
            .update(|hub, _| hub.submit(self.link, channel, operation, None));
    }
}

struct MemoryLink {
    handle: Handle,
    events: Receiver<LinkEvent>,
    channel_max: u16,
}

impl MemoryLink {
    fn connect(&self, limit: Instant) -> Result<(), String> {
        let answer = self.handle.submit(None, Operation::Connect);
        let answer = answer.map_err(|failure| failure.to_string())?;
        match answer.recv_deadline(limit.max(monotonic())) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(failure)) => Err(failure.to_string()),
            Err(RecvTimeoutError::Timeout) => Err("timed out while connecting".to_owned()),
            Err(RecvTimeoutError::Disconnected) => Err(self.handle.lost().to_string()),
        }
    }
}

impl fmt::Debug for MemoryLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryLink")
            .field(&self.handle.link)
            .finish()
    }
}

impl Link for MemoryLink {
    fn open_channel(&mut self) -> Result<Box<dyn Channel>, Failure> {
        let link = self.handle.link;
        let open = self.handle.broker.inspect(|hub| {
            let connection = hub.connections.get(&link)?;
            Some(connection.client.as_ref()?.channels.len())
        });
        if open.is_some_and(|open| open >= usize::from(self.channel_max)) {
            return Err(Failure::NoChannelLeft);
        }
        match self.handle.call(None, Operation::OpenChannel)? {
            Reply::Channel(id, close_reason) => Ok(Box::new(MemoryChannel {
                handle: self.handle.clone(),
                id,
                close_reason,
                is_closed: Cell::new(false),
            })),
            _ => Err(self.handle.lost()),
        }
    }

    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize {
        select.recv(&self.events)
    }

    fn next_event(&self) -> Result<Option<LinkEvent>, Gone> {
        match self.events.try_recv() {
            Ok(event) => Ok(Some(event)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Gone),
        }
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        match self.handle.call(None, Operation::CloseLink) {
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.into_reason()),
        }
    }
}

impl Drop for MemoryLink {
    /// Cuts the connection without a close handshake.
    fn drop(&mut self) {
        let link = self.handle.link;
        let broker = &self.handle.broker;
        broker.update(|hub, _| hub.kill(link, "the connection was closed"));
    }
}

struct MemoryChannel {
    handle: Handle,
    id: ChannelId,
    close_reason: CloseReason,
    is_closed: Cell<bool>,
}

impl MemoryChannel {
    fn call(&self, operation: Operation) -> Result<Reply, Failure> {
        self.check()?;
        let answer = self.handle.submit(Some(self.id), operation)?;
        match answer.recv() {
            // A refusal is reported once: this call reports it, so later ones must not.
            Ok(Err(failure)) => {
                let _ = self.close_reason.take();
                Err(failure)
            }
            Ok(answer) => answer,
            Err(_) => Err(self.ended()),
        }
    }

    fn tell(&self, operation: Operation) -> Result<(), Failure> {
        self.check()?;
        self.handle.tell(Some(self.id), operation);
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        self.close_reason.take().map_or(Ok(()), Err)
    }

    fn ended(&self) -> Failure {
        self.close_reason
            .take()
            .unwrap_or_else(|| self.handle.lost())
    }
}

impl fmt::Debug for MemoryChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryChannel").field(&self.id).finish()
    }
}

impl Channel for MemoryChannel {
    fn declare(&self, declaration: &Declaration) -> Result<(), Failure> {
        self.call(Operation::Declare(declaration.clone())).map(drop)
    }

    fn check(&self, declaration: &Declaration) -> Result<(), Failure> {
        self.call(Operation::Check(declaration.clone())).map(drop)
    }

    fn set_prefetch(&self, prefetch: u16) -> Result<(), Failure> {
        self.call(Operation::Prefetch(prefetch)).map(drop)
    }

    fn subscribe(&self, queue: &str) -> Result<Box<dyn Subscription + '_>, Failure> {
        match self.call(Operation::Consume(queue.to_owned()))? {
            Reply::Consumer(id, incoming) => Ok(Box::new(MemorySubscription {
                channel: self,
                id,
                incoming,
            })),
            _ => Err(self.ended()),
        }
    }

    fn count(&self, queue: &str) -> Result<usize, Failure> {
        match self.call(Operation::Count(queue.to_owned()))? {
            Reply::Count(count) => Ok(count),
            _ => Err(self.ended()),
        }
    }

    fn get(&self, queue: &str) -> Result<Option<Delivery>, Failure> {
        match self.call(Operation::Fetch(queue.to_owned()))? {
            Reply::Fetched(delivery) => Ok(delivery.map(|delivery| *delivery)),
            _ => Err(self.ended()),
        }
    }

    fn ack(&self, tag: u64, multiple: bool) -> Result<(), Failure> {
        self.tell(Operation::Ack { tag, multiple })
    }

    fn nack(&self, tag: u64) -> Result<(), Failure> {
        self.tell(Operation::Nack { tag })
    }

    fn reject(&self, tag: u64) -> Result<(), Failure> {
        self.tell(Operation::Reject { tag })
    }

    fn confirms(&self) -> Result<Box<dyn Confirms>, Failure> {
        match self.call(Operation::Confirm)? {
            Reply::Confirms(confirms, returns) => {
                Ok(Box::new(MemoryConfirms { confirms, returns }))
            }
            _ => Err(self.ended()),
        }
    }

    fn publish(&self, message: &Outgoing) -> Result<(), Failure> {
        self.tell(Operation::Publish(Box::new(message.clone())))
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        self.is_closed.set(true);
        self.call(Operation::CloseChannel).map(drop)
    }
}

impl Drop for MemoryChannel {
    fn drop(&mut self) {
        // A channel that either side has closed needs no second close.
        if !self.is_closed.get() && !self.close_reason.is_set() {
            self.handle.tell(Some(self.id), Operation::CloseChannel);
        }
    }
}

#[derive(Debug)]
struct MemoryConfirms {
    confirms: Receiver<Confirm>,
    returns: Receiver<Returned>,
}

impl Confirms for MemoryConfirms {
    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize {
        select.recv(&self.confirms)
    }

    fn next_confirm(&self) -> Result<Option<Confirm>, Gone> {
        match self.confirms.try_recv() {
            Ok(confirm) => Ok(Some(confirm)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Gone),
        }
    }

    fn next_return(&self) -> Option<Returned> {
        self.returns.try_recv().ok()
    }
}

struct MemorySubscription<'a> {
    channel: &'a MemoryChannel,
    id: ConsumerId,
    incoming: Receiver<Incoming>,
}

impl Subscription for MemorySubscription<'_> {
    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize {
        select.recv(&self.incoming)
    }

    fn next(&self) -> Option<Incoming> {
        match self.incoming.try_recv() {
            Ok(incoming) => Some(incoming),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Incoming::Ended(Failure::Lost(
                "the connection is closed".to_owned(),
            ))),
        }
    }

    fn cancel(&self) -> Result<(), Failure> {
        self.channel.call(Operation::Cancel(self.id)).map(drop)
    }
}

impl Drop for MemorySubscription<'_> {
    /// Cancels the consumer; has no effect on a cancelled one.
    fn drop(&mut self) {
        if !self.channel.close_reason.is_set() {
            let cancel = Operation::Cancel(self.id);
            self.channel.handle.tell(Some(self.channel.id), cancel);
        }
    }
}
