//! The broker: reads what its links send, in order, and sends what follows from it.

use super::faults::Faults;
use super::profile::Profile;
use super::refusal::Refusal;
use super::state::settle::Verdict;
use super::state::{ChannelId, Effect, LinkId, Moment, State};
use super::timer;
use super::wire::{Answer, Client, Operation, Port, Request, Wire};
use crate::clock::Clock;
use crate::transport::{Failure, LinkEvent};
use crossbeam_channel::Sender;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What a client reads when the broker drops its link.
pub(super) const CLOSED: &str = "the broker closed the connection";

/// An embedded broker: RabbitMQ's behaviour in this process, for tests and for trying things out.
///
/// Connections reach it at its [`url`](Self::url). It is made to be no kinder than RabbitMQ; where versions differ it
/// follows its [`Profile`](crate::testing::Profile). It has one virtual host and one user, `guest`, who may do everything until
/// [`refuse`](Self::refuse) says otherwise.
///
/// Handles are cheap to clone and all the same broker. One that was made here ends with its last handle and connection; one
/// that was made by a URL, `memory://orders`, stays until the process ends, and [`named`](Self::named) is its handle.
///
/// There are four groups of methods: making it, looking at what is [in it](Self::queues), doing what
/// [another client](Self::publish) could do, and letting things [go wrong](Self::drop_connections). The guide to
/// [testing](crate::docs::testing) has examples.
#[derive(Clone)]
pub struct Broker(Arc<Shared>);

/// A broker that others keep alive.
pub(super) struct WeakBroker(Weak<Shared>);

impl WeakBroker {
    pub(super) fn upgrade(&self) -> Option<Broker> {
        self.0.upgrade().map(Broker)
    }
}

/// What the handles share, and the timer thread holds weakly.
pub(super) struct Shared {
    name: String,
    clock: Arc<dyn Clock>,
    hub: Mutex<Hub>,
    /// Dropped with the broker, which ends the timer thread.
    changed: Sender<()>,
}

/// Everything behind the lock.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) state: State,
    pub(super) wires: BTreeMap<LinkId, Wire>,
    pub(super) faults: Faults,
    last_request: u64,
}

impl Broker {
    /// Starts a broker and its timer thread. Times to live and ages follow `clock`.
    pub(crate) fn start(
        name: impl Into<String>,
        profile: Profile,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let name = name.into();
        let (changed, changes) = crossbeam_channel::bounded(1);
        let shared = Arc::new(Shared {
            name,
            clock,
            hub: Mutex::new(Hub {
                state: State::new(profile),
                wires: BTreeMap::new(),
                faults: Faults::default(),
                last_request: 0,
            }),
            changed,
        });
        timer::start(&shared, changes)?;
        Ok(Self(shared))
    }

    pub(super) fn downgrade(&self) -> WeakBroker {
        WeakBroker(Arc::downgrade(&self.0))
    }

    /// The clock that times to live and its connections follow.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.0.clock()
    }

    /// What it was started as.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// The version that it behaves like.
    pub(crate) fn profile(&self) -> Profile {
        self.0.hub.lock().state.profile
    }

    /// Works on the broker's memory, and sends what follows.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Hub, Moment) -> R) -> R {
        self.0.with(work)
    }

    /// Looks, and changes nothing.
    pub(super) fn look<R>(&self, look: impl FnOnce(&Hub) -> R) -> R {
        look(&self.0.hub.lock())
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryBroker").field(&self.0.name).finish()
    }
}

impl Shared {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Hub, Moment) -> R) -> R {
        let mut hub = self.hub.lock();
        let (before, links) = (hub.due(), hub.wires.len());
        let at = Moment {
            now: self.clock.now(),
            epoch_millis: self.clock.epoch_millis(),
        };
        let result = work(&mut hub, at);
        hub.read(at);
        let is_moved = hub.due() != before || hub.wires.len() != links;
        drop(hub);
        if is_moved {
            // One token is enough: the timer looks at everything.
            let _ = self.changed.try_send(());
        }
        result
    }

    /// Lets everything go that is over, and says when there is more.
    pub(super) fn expire(&self) -> Option<Instant> {
        let mut hub = self.hub.lock();
        let at = Moment {
            now: self.clock.now(),
            epoch_millis: self.clock.epoch_millis(),
        };
        if !hub.faults.frozen {
            hub.state.expire(at);
            hub.send();
        }
        hub.due()
    }

    /// How often heartbeats are sent, if any link has them.
    pub(super) fn heartbeat(&self) -> Option<Duration> {
        let hub = self.hub.lock();
        let all = hub.wires.values().map(|wire| wire.heartbeat);
        all.filter(|heartbeat| !heartbeat.is_zero()).min()
    }

    /// Sends every client a heartbeat, or has it find that none has come for too long.
    pub(super) fn beat(&self) {
        self.with(|hub, _| {
            if hub.faults.frozen {
                hub.give_up_silent();
            } else {
                hub.wires.values().for_each(Wire::note_sent);
            }
        });
    }
}

impl Hub {
    fn due(&self) -> Option<Instant> {
        self.state.due().filter(|_| !self.faults.frozen)
    }

    /// Takes an operation in; it is read when its turn comes.
    pub(super) fn submit(
        &mut self,
        link: LinkId,
        channel: Option<ChannelId>,
        operation: Operation,
        reply: Option<super::wire::Reply>,
    ) {
        self.last_request += 1;
        if let Some(wire) = self.wires.get_mut(&link) {
            if let Some(client) = &wire.client {
                client.activity.note_write();
            }
            wire.inbox.push_back(Request {
                number: self.last_request,
                channel,
                operation,
                reply,
            });
        }
    }

    /// Reads what the links have sent, oldest first, as far as the broker reads at all.
    pub(super) fn read(&mut self, at: Moment) {
        self.send();
        while let Some((link, request)) = self.next_request() {
            if self.faults.drops_before(&request.operation) {
                self.drop_links(CLOSED, at);
            } else {
                self.obey(link, request, at);
                self.send();
            }
            if self.faults.takes_drop() {
                self.drop_links(CLOSED, at);
            }
        }
    }

    fn next_request(&mut self) -> Option<(LinkId, Request)> {
        if self.faults.frozen {
            return None;
        }
        let readable = self.wires.iter_mut().filter(|(_, wire)| !wire.blocked);
        let (link, wire) = readable
            .filter(|(_, wire)| !wire.inbox.is_empty())
            .min_by_key(|(_, wire)| wire.inbox.front().map(|request| request.number))?;
        Some((*link, wire.inbox.pop_front()?))
    }

    fn obey(&mut self, link: LinkId, request: Request, at: Moment) {
        let Request {
            number,
            channel,
            operation,
            reply,
        } = request;
        if let Operation::Publish(message) = &operation
            && !self.may_publish(link, message.body.is_empty())
        {
            if let Some(wire) = self.wires.get_mut(&link) {
                wire.inbox.push_front(Request {
                    number,
                    channel,
                    operation,
                    reply,
                });
            }
            return;
        }
        // What was sent on a channel after the broker had closed it is not looked at.
        let is_closed = channel.is_some_and(|id| !self.state.channels.contains_key(&id));
        if is_closed {
            return;
        }
        let result = match channel {
            None => self.obey_link(link, &operation, at),
            Some(channel) => self.obey_channel(link, channel, operation, at),
        };
        let answer = match (result, channel) {
            (Ok(answer), _) => Ok(answer),
            (Err(refusal), Some(channel)) => {
                let failure: Failure = refusal.into();
                self.close_channel(link, channel, &failure, at);
                if let (Some(wire), true) = (self.wires.get(&link), reply.is_some()) {
                    wire.note_sent();
                }
                Err(failure)
            }
            (Err(refusal), None) => Err(refusal.into()),
        };
        if let Some(reply) = reply {
            if let Some(wire) = self.wires.get(&link) {
                wire.note_sent();
            }
            self.send();
            let _ = reply.send(answer);
        }
    }

    /// Whether a publish of that link is read now. Under an alarm the broker reads the header of the first one, which is
    /// all of an empty message, and then nothing more of that link.
    fn may_publish(&mut self, link: LinkId, is_empty: bool) -> bool {
        let (Some(reason), Some(wire)) = (&self.faults.alarm, self.wires.get_mut(&link)) else {
            return true;
        };
        wire.blocked = true;
        wire.tell(LinkEvent::Blocked(reason.clone()));
        is_empty
    }

    fn obey_link(
        &mut self,
        link: LinkId,
        operation: &Operation,
        at: Moment,
    ) -> Result<Answer, Refusal> {
        match operation {
            Operation::Connect => {
                if let Some(wire) = self.wires.get_mut(&link) {
                    wire.open = true;
                }
                Ok(Answer::Done)
            }
            Operation::OpenChannel => {
                let channel = self.state.open_channel(link);
                let port = Port::default();
                let ending = port.ending.clone();
                if let Some(Client { ports, .. }) = self
                    .wires
                    .get_mut(&link)
                    .and_then(|wire| wire.client.as_mut())
                {
                    ports.insert(channel, port);
                }
                Ok(Answer::Channel(channel, ending))
            }
            _ => {
                self.end_link(link, "the connection was closed", at);
                Ok(Answer::Done)
            }
        }
    }

    fn obey_channel(
        &mut self,
        link: LinkId,
        channel: ChannelId,
        operation: Operation,
        at: Moment,
    ) -> Result<Answer, Refusal> {
        self.faults.check(&operation)?;
        let state = &mut self.state;
        let owner = Some(link);
        match operation {
            Operation::CloseChannel => {
                let gone = Failure::Lost("the channel was closed".to_owned());
                self.close_channel(link, channel, &gone, at);
            }
            Operation::Declare(declaration) => state.declare(&declaration, owner, at)?,
            Operation::Check(declaration) => state.check(&declaration, owner, at)?,
            Operation::Prefetch(prefetch) => {
                if let Some(channel) = state.channels.get_mut(&channel) {
                    channel.prefetch = prefetch;
                }
            }
            Operation::Consume(queue) => {
                let consumer = state.consume(channel, &queue)?;
                if let Some(port) = self
                    .wires
                    .get_mut(&link)
                    .and_then(|wire| wire.port(channel))
                {
                    let incoming = port.consume(consumer);
                    self.state.settle_down(at);
                    return Ok(Answer::Consumer(consumer, incoming));
                }
                self.state.settle_down(at);
            }
            Operation::Cancel(consumer) => {
                state.cancel(channel, consumer, at)?;
                self.send();
                if let Some(port) = self
                    .wires
                    .get_mut(&link)
                    .and_then(|wire| wire.port(channel))
                {
                    port.cancelled(consumer);
                }
            }
            Operation::Count(queue) => return state.count(&queue, owner, at).map(Answer::Count),
            Operation::Fetch(queue) => {
                let fetched = state.fetch(channel, &queue, at)?;
                return Ok(Answer::Fetched(fetched.map(Box::new)));
            }
            Operation::Ack { tag, multiple } => {
                state.settle(channel, tag, multiple, Verdict::Ack, at)?;
            }
            Operation::Nack { tag } => state.settle(channel, tag, false, Verdict::Requeue, at)?,
            Operation::Reject { tag } => state.settle(channel, tag, false, Verdict::Discard, at)?,
            Operation::Confirm => {
                if let Some(channel) = state.channels.get_mut(&channel) {
                    channel.begin_to_confirm();
                }
                if let Some(port) = self
                    .wires
                    .get_mut(&link)
                    .and_then(|wire| wire.port(channel))
                {
                    let (confirms, returns) = port.confirm();
                    return Ok(Answer::Confirms(confirms, returns));
                }
            }
            Operation::Publish(message) => state.publish(channel, &message, at)?,
            Operation::Connect
            | Operation::OpenChannel
            | Operation::CloseLink
            | Operation::Vanish => {}
        }
        Ok(Answer::Done)
    }

    /// Ends a channel on both sides.
    pub(super) fn close_channel(
        &mut self,
        link: LinkId,
        channel: ChannelId,
        failure: &Failure,
        at: Moment,
    ) {
        self.send();
        if let Some(wire) = self.wires.get_mut(&link) {
            wire.close_port(channel, failure);
        }
        self.state.end_channel(channel, at);
    }

    /// Ends a link on both sides.
    pub(super) fn end_link(&mut self, link: LinkId, why: &str, at: Moment) {
        self.send();
        if let Some(mut wire) = self.wires.remove(&link) {
            wire.cut(why);
        }
        self.state.end_link(link, at);
    }

    pub(super) fn drop_links(&mut self, why: &str, at: Moment) {
        let links: Vec<LinkId> = self.wires.keys().copied().collect();
        for link in links {
            self.end_link(link, why, at);
        }
    }

    /// The client kills its link: it hears nothing more, and the broker finds out when it reads on.
    pub(super) fn kill(&mut self, link: LinkId, why: &str) {
        if let Some(wire) = self.wires.get_mut(&link)
            && wire.client.is_some()
        {
            wire.cut(why);
            self.submit(link, None, Operation::Vanish, None);
        }
    }

    fn give_up_silent(&mut self) {
        let silent = self.wires.iter().filter(|(_, wire)| wire.is_given_up());
        let silent: Vec<LinkId> = silent.map(|(link, _)| *link).collect();
        for link in silent {
            self.kill(link, "no heartbeat came");
        }
    }

    /// Sends what the last operation brought about.
    pub(super) fn send(&mut self) {
        for effect in self.state.take_effects() {
            let channel = match &effect {
                Effect::Deliver { channel, .. }
                | Effect::Cancel { channel, .. }
                | Effect::Confirm { channel, .. }
                | Effect::Return { channel, .. } => *channel,
            };
            if matches!(effect, Effect::Confirm { .. }) {
                self.faults.confirm_sent();
            }
            let wire = self.wires.values_mut().find(|wire| {
                wire.client
                    .as_ref()
                    .is_some_and(|client| client.ports.contains_key(&channel))
            });
            if let Some(wire) = wire {
                wire.send(channel, effect);
            }
        }
    }
}
