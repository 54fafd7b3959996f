//! Everything behind the broker's lock: its model, its connections and its faults.
//!
//! Each connection has an inbox of requests. The hub executes them one at a time, in the order in
//! which all connections sent them, and sends the effects of each before it replies.

use super::connection::{
    ClientChannel, ClientEnd, Operation, Reply, ReplySender, Request, ServerConnection,
};
use super::faults::Faults;
use crate::broker::model::ids::{ChannelId, LinkId, Moment};
use crate::broker::model::profile::Profile;
use crate::broker::model::refusal::Refusal;
use crate::broker::model::settle::Settlement;
use crate::broker::model::{BrokerState, Effect};
use crate::time::instant::{later, monotonic};
use crate::transport::{Failure, LinkEvent};
use std::collections::BTreeMap;
use std::time::Instant;

/// The reason that a client sees when the broker drops its connection.
pub(crate) const CLOSED: &str = "the broker closed the connection";

/// Everything behind the lock.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) state: BrokerState,
    pub(crate) connections: BTreeMap<LinkId, ServerConnection>,
    pub(crate) faults: Faults,
    /// The number of attempts to connect, with or without success.
    pub(crate) attempts: usize,
    /// The number of the last request, of all connections.
    pub(crate) last_request: u64,
}

impl Hub {
    pub(crate) fn new(profile: Profile) -> Self {
        Self {
            state: BrokerState::new(profile),
            connections: BTreeMap::new(),
            faults: Faults::default(),
            attempts: 0,
            last_request: 0,
        }
    }

    /// When something expires; never while the broker is frozen or stopped.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.state.due().filter(|_| self.faults.is_running())
    }

    /// When the next delayed request becomes readable, in real time.
    pub(crate) fn next_readable_at(&self) -> Option<Instant> {
        let readable = self
            .connections
            .values()
            .filter(|connection| !connection.blocked);
        let fronts = readable.filter_map(|connection| connection.inbox.front()?.readable_at);
        fronts.min().filter(|_| !self.faults.frozen)
    }

    /// Expires what is due, unless the broker is frozen or stopped.
    pub(crate) fn expire(&mut self, at: Moment) {
        if self.faults.is_running() {
            self.state.expire(at);
            self.send();
        }
    }

    /// Puts a request into the inbox of its connection.
    pub(crate) fn submit(
        &mut self,
        link: LinkId,
        channel: Option<ChannelId>,
        operation: Operation,
        mut reply: Option<ReplySender>,
    ) {
        self.last_request += 1;
        if let Some(connection) = self.connections.get_mut(&link) {
            match &connection.client {
                Some(client) => client.activity.note_write(),
                // The client was disconnected while it sent this. Dropping the sender ends its
                // wait, which would otherwise last until a frozen broker reads the request.
                None => reply = None,
            }
            let latency = self.faults.latency;
            connection.inbox.push_back(Request {
                number: self.last_request,
                readable_at: latency.map(|latency| later(monotonic(), latency)),
                channel,
                operation,
                reply,
            });
        }
    }

    /// Executes the readable requests, oldest first.
    pub(crate) fn process_requests(&mut self, at: Moment) {
        self.send();
        while let Some((link, request)) = self.next_request() {
            if self.faults.drops_before(&request.operation) {
                self.drop_connections(CLOSED, at);
            } else {
                self.execute(link, request, at);
                self.send();
            }
            if self.faults.take_drop() {
                self.drop_connections(CLOSED, at);
            }
        }
        self.connections
            .values_mut()
            .for_each(ServerConnection::flush);
    }

    fn next_request(&mut self) -> Option<(LinkId, Request)> {
        if self.faults.frozen {
            return None;
        }
        let readable = self
            .connections
            .iter_mut()
            .filter(|(_, connection)| !connection.blocked);
        let (link, connection) = readable
            .filter(|(_, connection)| connection.inbox.front().is_some_and(Request::is_readable))
            .min_by_key(|(_, connection)| connection.inbox.front().map(|request| request.number))?;
        Some((*link, connection.inbox.pop_front()?))
    }

    fn execute(&mut self, link: LinkId, request: Request, at: Moment) {
        if let Operation::Publish(message) = &request.operation
            && !self.may_publish(link, message.body.is_empty())
        {
            if let Some(connection) = self.connections.get_mut(&link) {
                connection.inbox.push_front(request);
            }
            return;
        }
        let Request {
            channel,
            operation,
            reply,
            ..
        } = request;
        // Requests that follow the close of their channel are ignored.
        let is_closed = channel.is_some_and(|id| !self.state.channels.contains_key(&id));
        if is_closed {
            return;
        }
        let answer = match channel {
            None => Ok(self.execute_on_connection(link, &operation, at)),
            Some(channel) => self
                .execute_on_channel(link, channel, operation, at)
                .map_err(|refusal| self.refuse(link, channel, refusal, at)),
        };
        // RabbitMQ sends the effects of an operation before the reply to it.
        self.send();
        if let Some(reply) = reply {
            self.answer(link, reply, answer);
        }
    }

    fn answer(&mut self, link: LinkId, reply: ReplySender, answer: Result<Reply, Failure>) {
        match self.connections.get_mut(&link) {
            // The reply is lost: keeping its sender keeps the caller waiting.
            Some(connection) if self.faults.muted => connection.unanswered.push(reply),
            connection => {
                if let Some(connection) = connection {
                    connection.note_sent();
                }
                let _ = reply.send(answer);
            }
        }
    }

    /// Whether a publish on that connection is read now. Under an alarm the broker reads the header
    /// of the first publish, which is all of an empty message, and then nothing more of the
    /// connection.
    fn may_publish(&mut self, link: LinkId, is_empty: bool) -> bool {
        let (Some(reason), Some(connection)) =
            (&self.faults.alarm, self.connections.get_mut(&link))
        else {
            return true;
        };
        connection.blocked = true;
        if !self.faults.muted {
            connection.send_event(LinkEvent::Blocked(reason.clone()));
        }
        is_empty
    }

    fn execute_on_connection(&mut self, link: LinkId, operation: &Operation, at: Moment) -> Reply {
        match operation {
            Operation::Connect => {
                if let Some(connection) = self.connections.get_mut(&link) {
                    connection.open = true;
                }
                Reply::Done
            }
            Operation::OpenChannel => {
                let channel = self.state.open_channel(link);
                let client_channel = ClientChannel::default();
                let close_reason = client_channel.close_reason.clone();
                if let Some(ClientEnd { channels, .. }) = self
                    .connections
                    .get_mut(&link)
                    .and_then(|connection| connection.client.as_mut())
                {
                    channels.insert(channel, client_channel);
                }
                Reply::Channel(channel, close_reason)
            }
            _ => {
                self.end_connection(link, "the connection was closed", at);
                Reply::Done
            }
        }
    }

    fn execute_on_channel(
        &mut self,
        link: LinkId,
        channel: ChannelId,
        operation: Operation,
        at: Moment,
    ) -> Result<Reply, Refusal> {
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
                if let Some(client_channel) = self.client_channel(link, channel) {
                    // The receiver has to exist before the first delivery is sent.
                    let incoming = client_channel.consume(consumer);
                    self.state.run_to_quiescence(at);
                    return Ok(Reply::Consumer(consumer, incoming));
                }
                self.state.run_to_quiescence(at);
            }
            Operation::Cancel(consumer) => {
                // Deliveries that precede the reply reach the consumer before it.
                state.cancel(channel, consumer, at)?;
                self.send();
                let is_heard = !self.faults.muted;
                if let Some(client_channel) =
                    self.client_channel(link, channel).filter(|_| is_heard)
                {
                    client_channel.cancelled(consumer);
                }
            }
            Operation::Count(queue) => return state.count(&queue, owner, at).map(Reply::Count),
            Operation::Fetch(queue) => {
                let fetched = state.fetch(channel, &queue, at)?;
                return Ok(Reply::Fetched(fetched.map(Box::new)));
            }
            Operation::Ack { tag, multiple } => {
                state.settle(channel, tag, multiple, Settlement::Ack, at)?;
            }
            Operation::Nack { tag } => {
                state.settle(channel, tag, false, Settlement::Requeue, at)?
            }
            Operation::Reject { tag } => {
                state.settle(channel, tag, false, Settlement::Discard, at)?
            }
            Operation::Confirm => {
                if let Some(channel) = state.channels.get_mut(&channel) {
                    channel.begin_to_confirm();
                }
                if let Some(client_channel) = self.client_channel(link, channel) {
                    let (confirms, returns) = client_channel.confirm();
                    return Ok(Reply::Confirms(confirms, returns));
                }
            }
            Operation::Publish(message) => state.publish(channel, &message, at)?,
            Operation::Connect
            | Operation::OpenChannel
            | Operation::CloseLink
            | Operation::Vanish => {}
        }
        Ok(Reply::Done)
    }

    fn client_channel(&mut self, link: LinkId, channel: ChannelId) -> Option<&mut ClientChannel> {
        self.connections.get_mut(&link)?.client_channel(channel)
    }

    /// Closes the channel, or the connection if the code is hard, and returns the client's failure.
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
            self.end_connection(link, &why, at);
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
        // The effects of earlier operations reach the client before the close.
        self.send();
        if let Some(connection) = self.connections.get_mut(&link)
            && !self.faults.muted
        {
            connection.close_channel(channel, failure);
        }
        self.state.end_channel(channel, at);
    }

    /// Ends a connection on both sides.
    pub(crate) fn end_connection(&mut self, link: LinkId, why: &str, at: Moment) {
        self.send();
        if let Some(mut connection) = self.connections.remove(&link) {
            connection.disconnect(why);
        }
        self.state.end_link(link, at);
    }

    /// Ends every connection.
    pub(crate) fn drop_connections(&mut self, why: &str, at: Moment) {
        let links: Vec<LinkId> = self.connections.keys().copied().collect();
        for link in links {
            self.end_connection(link, why, at);
        }
        // Exclusive consumers of the test have no connection in the hub.
        self.state.end_all_links(at);
    }

    /// Cuts a connection on the client's side. The broker notices when it reads on.
    pub(crate) fn kill(&mut self, link: LinkId, why: &str) {
        if let Some(connection) = self.connections.get_mut(&link)
            && connection.client.is_some()
        {
            // The broker reads the end of the stream after everything that the client has sent.
            connection.disconnect(why);
            self.submit(link, None, Operation::Vanish, None);
        }
    }

    /// Closes the connections of the clients that have missed two heartbeats.
    pub(crate) fn close_silent_connections(&mut self) {
        let silent = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.has_missed_heartbeats());
        let silent: Vec<LinkId> = silent.map(|(link, _)| *link).collect();
        for link in silent {
            self.kill(link, "no heartbeat came");
        }
    }

    /// Sends the effects of the last operation.
    pub(crate) fn send(&mut self) {
        if self.faults.frozen {
            return;
        }
        // A frozen broker keeps its effects for the thaw, a muted one discards them.
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
                self.faults.note_confirm_sent();
            }
            let connection = self.connections.values_mut().find(|connection| {
                connection
                    .client
                    .as_ref()
                    .is_some_and(|client| client.channels.contains_key(&channel))
            });
            if let Some(connection) = connection {
                connection.send(channel, effect);
            }
        }
    }
}
