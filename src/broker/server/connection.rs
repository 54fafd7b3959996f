//! The client's end of a link: what it has sent that nobody has read yet, and where what it receives goes.

use crate::broker::model::{ChannelId, ConsumerId, Effect};
use crate::message::delivery::{Delivery, Outgoing, Returned};
use crate::time::instant::monotonic;
use crate::topology::declaration::Declaration;
use crate::transport::{Activity, Confirm, Failure, Incoming, LinkEvent};
use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One thing that a client asks for, or tells.
#[derive(Debug)]
pub(crate) enum Operation {
    Connect,
    OpenChannel,
    CloseChannel,
    CloseLink,
    /// The client is gone without a word.
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

/// The broker's answer.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    Channel(ChannelId, Ending),
    Consumer(ConsumerId, Receiver<Incoming>),
    Confirms(Receiver<Confirm>, Receiver<Returned>),
    Count(usize),
    Fetched(Option<Box<Delivery>>),
}

/// Whom the answer goes to; nobody waits for that of a publish or an acknowledgement.
pub(crate) type Reply = Sender<Result<Answer, Failure>>;

/// An operation in the order of all links.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) number: u64,
    /// Not read before this, in real time; at once when there is none.
    pub(crate) readable_at: Option<Instant>,
    pub(crate) channel: Option<ChannelId>,
    pub(crate) operation: Operation,
    pub(crate) reply: Option<Reply>,
}

impl Request {
    pub(crate) fn is_readable(&self) -> bool {
        self.readable_at
            .is_none_or(|readable_at| readable_at <= monotonic())
    }
}

/// Why a channel or link is gone, as its owner finds out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending(Arc<Mutex<Option<Failure>>>);

impl Ending {
    pub(crate) fn set(&self, failure: Failure) {
        self.0.lock().get_or_insert(failure);
    }

    /// The reason. The broker's refusal is told once: after that the channel is just gone.
    pub(crate) fn take(&self) -> Option<Failure> {
        let mut ending = self.0.lock();
        let told = ending.clone()?;
        if matches!(told, Failure::Refused { .. }) {
            *ending = Some(Failure::Lost(
                "the broker has closed the channel".to_owned(),
            ));
        }
        Some(told)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.lock().is_some()
    }
}

/// Where what a channel receives goes.
#[derive(Debug, Default)]
pub(crate) struct Port {
    pub(crate) ending: Ending,
    confirms: Option<Sender<Confirm>>,
    /// Confirms that wait for what else is read, so that one can stand for several.
    confirmed: Vec<Confirm>,
    /// The highest tag up to which everything has been confirmed.
    settled: u64,
    returns: Option<Sender<Returned>>,
    consumers: HashMap<ConsumerId, Sender<Incoming>>,
}

impl Port {
    pub(crate) fn confirm(&mut self) -> (Receiver<Confirm>, Receiver<Returned>) {
        let (confirms, confirmed) = unbounded();
        let (returns, returned) = unbounded();
        self.confirms = Some(confirms);
        self.returns = Some(returns);
        (confirmed, returned)
    }

    pub(crate) fn consume(&mut self, consumer: ConsumerId) -> Receiver<Incoming> {
        let (sender, incoming) = unbounded();
        self.consumers.insert(consumer, sender);
        incoming
    }

    /// Answers a cancel.
    pub(crate) fn cancelled(&mut self, consumer: ConsumerId) {
        if let Some(sender) = self.consumers.remove(&consumer) {
            let _ = sender.send(Incoming::CancelOk);
        }
    }

    /// Sends; a receiver that was dropped has nobody behind it any more.
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
            Effect::Confirm { confirm, .. } => self.confirmed.push(confirm),
            Effect::Return { returned, .. } => {
                if let Some(returns) = &self.returns {
                    let _ = returns.send(returned);
                }
            }
        }
    }

    /// Sends the confirms. As RabbitMQ does, one stands for all that come in a row with nothing open before them.
    fn send_confirms(&mut self) {
        let mut confirmed = std::mem::take(&mut self.confirmed).into_iter().peekable();
        while let Some(mut confirm) = confirmed.next() {
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

    /// The last that is heard of the channel.
    pub(crate) fn end(mut self, failure: &Failure) {
        self.send_confirms();
        self.ending.set(failure.clone());
        for sender in self.consumers.into_values() {
            let _ = sender.send(Incoming::Ended(failure.clone()));
        }
    }
}

/// One link, as the broker holds it.
#[derive(Debug)]
pub(crate) struct Wire {
    /// Read in order, unless the broker is frozen or does not read this link.
    pub(crate) inbox: VecDeque<Request>,
    /// Whose answers were lost on the way.
    pub(crate) unanswered: Vec<Reply>,
    /// The client's end; none once it has gone.
    pub(crate) client: Option<Client>,
    /// The broker does not read it until the alarm is over.
    pub(crate) blocked: bool,
    /// Has got through the handshake.
    pub(crate) open: bool,
    /// How often the broker shows that it is there; zero is never.
    pub(crate) heartbeat: Duration,
}

/// What only a client that is still there has.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) ports: HashMap<ChannelId, Port>,
    pub(crate) events: Sender<LinkEvent>,
    pub(crate) ending: Ending,
    pub(crate) activity: Activity,
}

impl Wire {
    pub(crate) fn new(
        events: Sender<LinkEvent>,
        ending: Ending,
        activity: Activity,
        heartbeat: Duration,
    ) -> Self {
        Self {
            inbox: VecDeque::new(),
            unanswered: Vec::new(),
            client: Some(Client {
                ports: HashMap::new(),
                events,
                ending,
                activity,
            }),
            blocked: false,
            open: false,
            heartbeat,
        }
    }

    /// Whether its client has missed two heartbeats.
    pub(crate) fn is_given_up(&self) -> bool {
        let silence = self
            .client
            .as_ref()
            .map(|client| client.activity.last_read().elapsed());
        !self.heartbeat.is_zero() && silence.is_some_and(|silence| silence >= self.heartbeat * 2)
    }

    pub(crate) fn port(&mut self, channel: ChannelId) -> Option<&mut Port> {
        self.client.as_mut()?.ports.get_mut(&channel)
    }

    pub(crate) fn send(&mut self, channel: ChannelId, effect: Effect) {
        self.note_sent();
        if let Some(port) = self.port(channel) {
            port.send(effect);
        }
    }

    /// Nothing more is read now: what was held back goes out.
    pub(crate) fn flush(&mut self) {
        if let Some(client) = &mut self.client {
            client.ports.values_mut().for_each(Port::send_confirms);
        }
    }

    pub(crate) fn tell(&self, event: LinkEvent) {
        if let Some(client) = &self.client {
            client.activity.note_read();
            let _ = client.events.send(event);
        }
    }

    /// What the broker sends is what the client reads.
    pub(crate) fn note_sent(&self) {
        if let Some(client) = &self.client {
            client.activity.note_read();
        }
    }

    /// Closes a channel on the client's side.
    pub(crate) fn close_port(&mut self, channel: ChannelId, failure: &Failure) {
        if let Some(client) = &mut self.client
            && let Some(port) = client.ports.remove(&channel)
        {
            port.end(failure);
        }
    }

    /// The client's end is gone: it hears nothing more, and every call returns. What it has sent is still there.
    pub(crate) fn cut(&mut self, why: &str) {
        let Some(client) = self.client.take() else {
            return;
        };
        let failure = Failure::Lost(why.to_owned());
        client.ending.set(failure.clone());
        self.unanswered.clear();
        for port in client.ports.into_values() {
            port.end(&failure);
        }
        for request in &mut self.inbox {
            request.reply = None;
        }
    }
}
