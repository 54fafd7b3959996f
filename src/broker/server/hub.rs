//! What is behind the broker's lock: its memory, its links, and what is wrong with it.

use super::connection::{Answer, Client, Operation, Port, Reply, Request, Wire};
use crate::broker::api::faults::Faults;
use crate::broker::model::profile::Profile;
use crate::broker::model::refusal::Refusal;
use crate::broker::model::settle::Verdict;
use crate::broker::model::{ChannelId, Effect, LinkId, Moment, State};
use crate::time::instant::{later, monotonic};
use crate::transport::{Failure, LinkEvent};
use std::collections::BTreeMap;
use std::time::Instant;

/// What a client reads when the broker drops its link.
pub(crate) const CLOSED: &str = "the broker closed the connection";

/// Everything behind the lock.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) state: State,
    pub(crate) wires: BTreeMap<LinkId, Wire>,
    pub(crate) faults: Faults,
    /// How many have tried to connect.
    pub(crate) attempts: usize,
    pub(crate) last_request: u64,
}

impl Hub {
    pub(crate) fn new(profile: Profile) -> Self {
        Self {
            state: State::new(profile),
            wires: BTreeMap::new(),
            faults: Faults::default(),
            attempts: 0,
            last_request: 0,
        }
    }

    /// When something will be over; never while the broker is frozen or stopped.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.state.due().filter(|_| self.faults.is_running())
    }

    /// When a slow broker reads what was sent next, in real time.
    pub(crate) fn next_read(&self) -> Option<Instant> {
        let readable = self.wires.values().filter(|wire| !wire.blocked);
        let fronts = readable.filter_map(|wire| wire.inbox.front()?.readable_at);
        fronts.min().filter(|_| !self.faults.frozen)
    }

    /// Lets everything go that is over, unless the broker is frozen or stopped.
    pub(crate) fn expire(&mut self, at: Moment) {
        if self.faults.is_running() {
            self.state.expire(at);
            self.send();
        }
    }

    /// Takes an operation in; it is read when its turn comes.
    pub(crate) fn submit(
        &mut self,
        link: LinkId,
        channel: Option<ChannelId>,
        operation: Operation,
        mut reply: Option<Reply>,
    ) {
        self.last_request += 1;
        if let Some(wire) = self.wires.get_mut(&link) {
            match &wire.client {
                Some(client) => client.activity.note_write(),
                // Nobody is left to hear the answer, and whoever asked would wait for as long as this is not read.
                None => reply = None,
            }
            let latency = self.faults.latency;
            wire.inbox.push_back(Request {
                number: self.last_request,
                readable_at: latency.map(|latency| later(monotonic(), latency)),
                channel,
                operation,
                // A client that was cut while it asked hears nothing.
                reply: reply.filter(|_| wire.client.is_some()),
            });
        }
    }

    /// Reads what the links have sent, oldest first, as far as the broker reads at all.
    pub(crate) fn read(&mut self, at: Moment) {
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
        self.wires.values_mut().for_each(Wire::flush);
    }

    fn next_request(&mut self) -> Option<(LinkId, Request)> {
        if self.faults.frozen {
            return None;
        }
        let readable = self.wires.iter_mut().filter(|(_, wire)| !wire.blocked);
        let (link, wire) = readable
            .filter(|(_, wire)| wire.inbox.front().is_some_and(Request::is_readable))
            .min_by_key(|(_, wire)| wire.inbox.front().map(|request| request.number))?;
        Some((*link, wire.inbox.pop_front()?))
    }

    fn obey(&mut self, link: LinkId, request: Request, at: Moment) {
        let Request {
            number,
            readable_at,
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
                    readable_at,
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
        let answer = match channel {
            None => Ok(self.obey_link(link, &operation, at)),
            Some(channel) => self
                .obey_channel(link, channel, operation, at)
                .map_err(|refusal| self.refuse(link, channel, refusal, at)),
        };
        // What follows from the operation is sent before the answer.
        self.send();
        if let Some(reply) = reply {
            self.answer(link, reply, answer);
        }
    }

    fn answer(&mut self, link: LinkId, reply: Reply, answer: Result<Answer, Failure>) {
        match self.wires.get_mut(&link) {
            // Whoever has asked goes on waiting.
            Some(wire) if self.faults.muted => wire.unanswered.push(reply),
            wire => {
                if let Some(wire) = wire {
                    wire.note_sent();
                }
                let _ = reply.send(answer);
            }
        }
    }

    /// Whether a publish of that link is read now. Under an alarm the broker reads the header of the first one, which is
    /// all of an empty message, and then nothing more of that link.
    fn may_publish(&mut self, link: LinkId, is_empty: bool) -> bool {
        let (Some(reason), Some(wire)) = (&self.faults.alarm, self.wires.get_mut(&link)) else {
            return true;
        };
        wire.blocked = true;
        if !self.faults.muted {
            wire.tell(LinkEvent::Blocked(reason.clone()));
        }
        is_empty
    }

    fn obey_link(&mut self, link: LinkId, operation: &Operation, at: Moment) -> Answer {
        match operation {
            Operation::Connect => {
                if let Some(wire) = self.wires.get_mut(&link) {
                    wire.open = true;
                }
                Answer::Done
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
                Answer::Channel(channel, ending)
            }
            _ => {
                self.end_link(link, "the connection was closed", at);
                Answer::Done
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
                if let Some(port) = self.port(link, channel) {
                    let incoming = port.consume(consumer);
                    self.state.settle_down(at);
                    return Ok(Answer::Consumer(consumer, incoming));
                }
                self.state.settle_down(at);
            }
            Operation::Cancel(consumer) => {
                state.cancel(channel, consumer, at)?;
                self.send();
                let is_heard = !self.faults.muted;
                if let Some(port) = self.port(link, channel).filter(|_| is_heard) {
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
                if let Some(port) = self.port(link, channel) {
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

    fn port(&mut self, link: LinkId, channel: ChannelId) -> Option<&mut Port> {
        self.wires.get_mut(&link)?.port(channel)
    }

    /// Closes the channel, or the whole link where RabbitMQ does; what the client is told.
    pub(crate) fn refuse(
        &mut self,
        link: LinkId,
        channel: ChannelId,
        refusal: Refusal,
        at: Moment,
    ) -> Failure {
        let is_over = refusal.ends_link();
        let Refusal { code, text } = refusal;
        if is_over {
            let why = format!("{CLOSED}: {code} {text}");
            self.end_link(link, &why, at);
            return Failure::Lost(why);
        }
        let failure = Failure::Refused { code, text };
        self.close_channel(link, channel, &failure, at);
        failure
    }

    /// Ends a channel on both sides.
    pub(crate) fn close_channel(
        &mut self,
        link: LinkId,
        channel: ChannelId,
        failure: &Failure,
        at: Moment,
    ) {
        self.send();
        if let Some(wire) = self.wires.get_mut(&link)
            && !self.faults.muted
        {
            wire.close_port(channel, failure);
        }
        self.state.end_channel(channel, at);
    }

    /// Ends a link on both sides.
    pub(crate) fn end_link(&mut self, link: LinkId, why: &str, at: Moment) {
        self.send();
        if let Some(mut wire) = self.wires.remove(&link) {
            wire.cut(why);
        }
        self.state.end_link(link, at);
    }

    pub(crate) fn drop_links(&mut self, why: &str, at: Moment) {
        let links: Vec<LinkId> = self.wires.keys().copied().collect();
        for link in links {
            self.end_link(link, why, at);
        }
        // Those of other clients, who hear nothing of it.
        self.state.end_all_links(at);
    }

    /// The client kills its link: it hears nothing more, and the broker finds out when it reads on.
    pub(crate) fn kill(&mut self, link: LinkId, why: &str) {
        if let Some(wire) = self.wires.get_mut(&link)
            && wire.client.is_some()
        {
            wire.cut(why);
            self.submit(link, None, Operation::Vanish, None);
        }
    }

    /// Has clients find that no heartbeat has come for too long.
    pub(crate) fn give_up_silent(&mut self) {
        let silent = self.wires.iter().filter(|(_, wire)| wire.is_given_up());
        let silent: Vec<LinkId> = silent.map(|(link, _)| *link).collect();
        for link in silent {
            self.kill(link, "no heartbeat came");
        }
    }

    /// Sends what the last operation brought about.
    pub(crate) fn send(&mut self) {
        if self.faults.frozen {
            return;
        }
        let effects = self.state.take_effects();
        if self.faults.muted {
            return;
        }
        for effect in effects {
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
