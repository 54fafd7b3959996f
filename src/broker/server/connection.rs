//! One connection as the broker holds it: the requests that are not read yet, and the channels over
//! which the client receives.

use crate::broker::model::Effect;
use crate::broker::model::ids::{ChannelId, ConsumerId};
use crate::message::delivery::{Delivery, Outgoing, Returned};
use crate::time::instant::monotonic;
use crate::topology::declaration::Declaration;
use crate::transport::{Activity, Confirm, Failure, Incoming, LinkEvent};
use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a client asks for: an AMQP method, or the end of its connection.
#[derive(Debug)]
pub(crate) enum Operation {
    Connect,
    OpenChannel,
    CloseChannel,
    CloseLink,
    /// The client's side is gone without a close handshake.
    Vanish,
    Declare(Declaration),
    Check(Declaration),
    Prefetch(u16),
    Consume(String),
    Cancel(ConsumerId),
    Count(String),
    Fetch(String),
    Ack {
        tag: u64,
        multiple: bool,
    },
    Nack {
        tag: u64,
    },
    Reject {
        tag: u64,
    },
    Confirm,
    Publish(Box<Outgoing>),
}

/// The reply to an operation.
#[derive(Debug)]
pub(crate) enum Reply {
    Done,
    Channel(ChannelId, CloseReason),
    Consumer(ConsumerId, Receiver<Incoming>),
    Confirms(Receiver<Confirm>, Receiver<Returned>),
    Count(usize),
    Fetched(Option<Box<Delivery>>),
}

/// Receives the reply of an operation. Dropping it without a reply ends the caller's wait.
pub(crate) type ReplySender = Sender<Result<Reply, Failure>>;

/// An operation in the inbox of its connection.
#[derive(Debug)]
pub(crate) struct Request {
    /// Its place in the order of all connections.
    pub(crate) number: u64,
    /// The request is not read before this real time; none without a latency.
    pub(crate) readable_at: Option<Instant>,
    pub(crate) channel: Option<ChannelId>,
    pub(crate) operation: Operation,
    /// None for operations without a reply, such as publishes and acknowledgements.
    pub(crate) reply: Option<ReplySender>,
}

impl Request {
    pub(crate) fn is_readable(&self) -> bool {
        self.readable_at
            .is_none_or(|readable_at| readable_at <= monotonic())
    }
}

/// Why a channel or connection is closed; shared by the hub, which sets it, and the client.
///
/// Its lock is taken under the hub's lock or alone, and held for one access.
#[derive(Clone, Debug, Default)]
pub(crate) struct CloseReason(Arc<Mutex<Option<Failure>>>);

impl CloseReason {
    /// Sets the reason; the first one stays.
    pub(crate) fn set(&self, failure: Failure) {
        self.0.lock().get_or_insert(failure);
    }

    /// The reason. A refusal by the broker is reported once; after that the channel is just closed.
    pub(crate) fn take(&self) -> Option<Failure> {
        let mut close_reason = self.0.lock();
        let told = close_reason.clone()?;
        if matches!(told, Failure::Refused { .. }) {
            *close_reason = Some(Failure::Lost(
                "the broker has closed the channel".to_owned(),
            ));
        }
        Some(told)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.lock().is_some()
    }
}

/// The client's end of a channel, through which the hub sends to it.
#[derive(Debug, Default)]
pub(crate) struct ClientChannel {
    pub(crate) close_reason: CloseReason,
    confirms: Option<Sender<Confirm>>,
    /// Confirms that are held back until the readable requests are executed, so that one confirm
    /// can cover several.
    pending_confirms: Vec<Confirm>,
    /// Every publish up to this tag has been confirmed.
    settled: u64,
    returns: Option<Sender<Returned>>,
    consumers: HashMap<ConsumerId, Sender<Incoming>>,
}

impl ClientChannel {
    /// Enters confirm mode, and returns the receivers of confirms and returns.
    pub(crate) fn confirm(&mut self) -> (Receiver<Confirm>, Receiver<Returned>) {
        let (confirms, confirmed) = unbounded();
        let (returns, returned) = unbounded();
        self.confirms = Some(confirms);
        self.returns = Some(returns);
        (confirmed, returned)
    }

    /// Adds a consumer, and returns the receiver of its deliveries.
    pub(crate) fn consume(&mut self, consumer: ConsumerId) -> Receiver<Incoming> {
        let (sender, incoming) = unbounded();
        self.consumers.insert(consumer, sender);
        incoming
    }

    /// Replies to a cancel.
    pub(crate) fn cancelled(&mut self, consumer: ConsumerId) {
        if let Some(sender) = self.consumers.remove(&consumer) {
            let _ = sender.send(Incoming::CancelOk);
        }
    }

    /// Sends an effect. A receiver that was dropped is ignored.
    fn send(&mut self, effect: Effect) {
        match effect {
            Effect::Deliver {
                consumer, delivery, ..
            } => {
                if let Some(sender) = self.consumers.get(&consumer) {
                    let _ = sender.send(Incoming::Delivery(*delivery));
                }
            }
            Effect::Cancel { consumer, .. } => {
                if let Some(sender) = self.consumers.remove(&consumer) {
                    let _ = sender.send(Incoming::Cancelled);
                }
            }
            Effect::Confirm { confirm, .. } => self.pending_confirms.push(confirm),
            Effect::Return { returned, .. } => {
                if let Some(returns) = &self.returns {
                    let _ = returns.send(returned);
                }
            }
        }
    }

    /// Sends the pending confirms. As in RabbitMQ, one confirm with `multiple` covers a run of them
    /// that follows only confirmed publishes.
    fn send_confirms(&mut self) {
        let mut confirmed = std::mem::take(&mut self.pending_confirms)
            .into_iter()
            .peekable();
        while let Some(mut confirm) = confirmed.next() {
            // A confirm with `multiple` must not cover a tag before it that is still open.
            if confirm.tag == self.settled + 1 {
                self.settled = confirm.tag;
                while let Some(next) =
                    confirmed.next_if(|next| next.tag == confirm.tag + 1 && next.ack == confirm.ack)
                {
                    self.settled = next.tag;
                    confirm = Confirm {
                        multiple: true,
                        ..next
                    };
                }
            }
            if let Some(confirms) = &self.confirms {
                let _ = confirms.send(confirm);
            }
        }
    }

    /// Closes the channel on the client's side.
    pub(crate) fn end(mut self, failure: &Failure) {
        // Confirms that were held back precede the close.
        self.send_confirms();
        self.close_reason.set(failure.clone());
        for sender in self.consumers.into_values() {
            let _ = sender.send(Incoming::Ended(failure.clone()));
        }
    }
}

/// One connection, as the broker holds it.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    /// Requests in the order in which they are read.
    pub(crate) inbox: VecDeque<Request>,
    /// The senders of the replies that a muted broker lost. Their callers wait until the connection
    /// ends.
    pub(crate) unanswered: Vec<ReplySender>,
    /// None once the client's side is gone.
    pub(crate) client: Option<ClientEnd>,
    /// Not read until the alarm is cleared.
    pub(crate) blocked: bool,
    /// Whether the handshake is done.
    pub(crate) open: bool,
    /// The heartbeat interval; zero is none.
    pub(crate) heartbeat: Duration,
}

/// The client's side of a connection.
#[derive(Debug)]
pub(crate) struct ClientEnd {
    pub(crate) channels: HashMap<ChannelId, ClientChannel>,
    pub(crate) events: Sender<LinkEvent>,
    pub(crate) close_reason: CloseReason,
    pub(crate) activity: Activity,
}

impl ServerConnection {
    pub(crate) fn new(
        events: Sender<LinkEvent>,
        close_reason: CloseReason,
        activity: Activity,
        heartbeat: Duration,
    ) -> Self {
        Self {
            inbox: VecDeque::new(),
            unanswered: Vec::new(),
            client: Some(ClientEnd {
                channels: HashMap::new(),
                events,
                close_reason,
                activity,
            }),
            blocked: false,
            open: false,
            heartbeat,
        }
    }

    /// Whether the client has missed two heartbeats.
    pub(crate) fn has_missed_heartbeats(&self) -> bool {
        let silence = self
            .client
            .as_ref()
            .map(|client| client.activity.last_read().elapsed());
        !self.heartbeat.is_zero() && silence.is_some_and(|silence| silence >= self.heartbeat * 2)
    }

    pub(crate) fn client_channel(&mut self, channel: ChannelId) -> Option<&mut ClientChannel> {
        self.client.as_mut()?.channels.get_mut(&channel)
    }

    pub(crate) fn send(&mut self, channel: ChannelId, effect: Effect) {
        self.note_sent();
        if let Some(client_channel) = self.client_channel(channel) {
            client_channel.send(effect);
        }
    }

    /// Sends the confirms that were held back.
    pub(crate) fn flush(&mut self) {
        if let Some(client) = &mut self.client {
            client
                .channels
                .values_mut()
                .for_each(ClientChannel::send_confirms);
        }
    }

    pub(crate) fn send_event(&self, event: LinkEvent) {
        if let Some(client) = &self.client {
            client.activity.note_read();
            let _ = client.events.send(event);
        }
    }

    /// Notes that the client has received something.
    pub(crate) fn note_sent(&self) {
        if let Some(client) = &self.client {
            client.activity.note_read();
        }
    }

    /// Closes a channel on the client's side.
    pub(crate) fn close_channel(&mut self, channel: ChannelId, failure: &Failure) {
        if let Some(client) = &mut self.client
            && let Some(client_channel) = client.channels.remove(&channel)
        {
            client_channel.end(failure);
        }
    }

    /// Cuts the client's side off: it receives nothing more, and its calls return. Requests that it
    /// has sent stay.
    pub(crate) fn disconnect(&mut self, why: &str) {
        let Some(client) = self.client.take() else {
            return;
        };
        let failure = Failure::Lost(why.to_owned());
        client.close_reason.set(failure.clone());
        // Dropping the senders of replies ends the waits of their callers.
        self.unanswered.clear();
        for client_channel in client.channels.into_values() {
            client_channel.end(&failure);
        }
        for request in &mut self.inbox {
            request.reply = None;
        }
    }
}
