//! Everything a broker knows. Operations go in with the time; what clients shall hear comes out as effects.

pub(crate) mod arguments;
pub(crate) mod channel;
pub(crate) mod dead_letter;
pub(crate) mod equivalence;
pub(crate) mod exchange;
pub(crate) mod message;
pub(crate) mod profile;
pub(crate) mod queue;
pub(crate) mod queue_cache;
pub(crate) mod ready;
pub(crate) mod refusal;

mod consume;
pub(crate) mod declare;
mod expire;
mod lost;
pub(crate) mod policy;
pub(crate) mod publish;
pub(crate) mod settle;

use crate::message::delivery::{Delivery, Returned};
use crate::transport::Confirm;
use channel::Channel;
use exchange::Exchange;
use profile::Profile;
use queue::Queue;
use refusal::Refusal;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),+) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub(super) u64);)+
    };
}

ids!(
    /// One connection.
    LinkId,
    /// One channel, of all connections.
    ChannelId,
    /// One consumer, of all channels.
    ConsumerId,
    /// One life of a queue: the same name declared again is another queue.
    QueueId
);

/// The time of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    pub(crate) epoch_millis: i64,
}

/// What a client hears.
#[derive(Debug)]
pub(crate) enum Effect {
    Deliver {
        channel: ChannelId,
        consumer: ConsumerId,
        delivery: Box<Delivery>,
    },
    /// The consumer's queue is gone.
    Cancel {
        channel: ChannelId,
        consumer: ConsumerId,
    },
    Confirm {
        channel: ChannelId,
        confirm: Confirm,
    },
    Return {
        channel: ChannelId,
        returned: Returned,
    },
}

/// How the next confirms are falsified.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConfirmFaults {
    /// So many publishes are nacked and not stored.
    pub(crate) nack: usize,
    /// So many publishes are stored and never confirmed.
    pub(crate) lose: usize,
}

/// A broker's memory.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) profile: Profile,
    pub(crate) exchanges: BTreeMap<String, Exchange>,
    pub(crate) queues: BTreeMap<String, Queue>,
    /// Queues on a node that is down.
    lost: BTreeMap<String, Queue>,
    /// Later ones go before earlier ones.
    policies: Vec<policy::Policy>,
    pub(crate) channels: BTreeMap<ChannelId, Channel>,
    pub(crate) faults: ConfirmFaults,
    /// From a stop until quorum queues have leaders again: what is dead-lettered to them meanwhile is dropped.
    is_leaderless: bool,
    effects: Vec<Effect>,
    /// Queues that may have something to hand out or to drop.
    stirred: BTreeSet<String>,
    letters: VecDeque<publish::Letter>,
    last_id: u64,
}

impl State {
    pub(crate) fn new(profile: Profile) -> Self {
        let exchanges = Exchange::predeclared().into_iter();
        Self {
            profile,
            exchanges: exchanges
                .map(|exchange| (exchange.name.clone(), exchange))
                .collect(),
            queues: BTreeMap::new(),
            lost: BTreeMap::new(),
            policies: Vec::new(),
            channels: BTreeMap::new(),
            faults: ConfirmFaults::default(),
            is_leaderless: false,
            effects: Vec::new(),
            stirred: BTreeSet::new(),
            letters: VecDeque::new(),
            last_id: 0,
        }
    }

    fn id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub(crate) fn open_link(&mut self) -> LinkId {
        LinkId(self.id())
    }

    pub(crate) fn open_channel(&mut self, link: LinkId) -> ChannelId {
        let channel = ChannelId(self.id());
        self.channels.insert(channel, Channel::new(link));
        channel
    }

    pub(crate) fn channels_of(&self, link: LinkId) -> Vec<ChannelId> {
        self.channels
            .iter()
            .filter(|(_, channel)| channel.link == link)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Ends a link and its channels; what is exclusive to it goes with it.
    pub(crate) fn end_link(&mut self, link: LinkId, at: Moment) {
        let channels = self.channels_of(link);
        self.end_channels(&channels, at);
        let exclusive: Vec<String> = self
            .queues
            .values()
            .filter(|queue| queue.owner == Some(link))
            .map(|queue| queue.name.clone())
            .collect();
        for queue in exclusive {
            self.remove_queue(&queue);
        }
        self.settle_down(at);
    }

    /// Ends every link that there is.
    pub(crate) fn end_all_links(&mut self, at: Moment) {
        let links: BTreeSet<LinkId> = self.channels.values().map(|channel| channel.link).collect();
        for link in links {
            self.end_link(link, at);
        }
    }

    /// Ends a channel: what it has not settled goes back.
    pub(crate) fn end_channel(&mut self, channel: ChannelId, at: Moment) {
        self.end_channels(&[channel], at);
        self.settle_down(at);
    }

    fn queue(&self, name: &str) -> Result<&Queue, Refusal> {
        self.queues
            .get(name)
            .ok_or_else(|| Refusal::not_found(format!("no {}", refusal::queue(name))))
    }

    /// The queue, if this link may use it.
    fn open_queue(&mut self, name: &str, link: Option<LinkId>) -> Result<&mut Queue, Refusal> {
        let owner = self.queue(name)?.owner;
        if owner.is_some() && owner != link {
            return Err(locked(name));
        }
        self.queues
            .get_mut(name)
            .ok_or_else(|| Refusal::not_found(format!("no {}", refusal::queue(name))))
    }

    fn exchange(&self, name: &str) -> Result<&Exchange, Refusal> {
        self.exchanges
            .get(name)
            .ok_or_else(|| Refusal::not_found(format!("no {}", refusal::exchange(name))))
    }

    /// A channel that is still there; the callers hold one.
    fn channel(&mut self, channel: ChannelId) -> Result<&mut Channel, Refusal> {
        self.channels
            .get_mut(&channel)
            .ok_or_else(|| Refusal::with_code(504, "the channel is not open"))
    }

    fn link_of(&self, channel: ChannelId) -> Option<LinkId> {
        self.channels.get(&channel).map(|channel| channel.link)
    }
}

fn locked(queue: &str) -> Refusal {
    Refusal::resource_locked(format!(
        "cannot obtain exclusive access to locked {}. It could be originally declared on another connection or the \
         exclusive property value does not match that of the original declaration.",
        refusal::queue(queue)
    ))
}
