//! Everything a broker knows. Operations go in with the time; what clients shall hear comes out as effects.

mod acquaintance;
mod consume;
pub(super) mod declare;
mod expire;
mod lost;
pub(super) mod policy;
pub(super) mod publish;
pub(super) mod settle;

use super::channel::Channel;
use super::exchange::Exchange;
use super::profile::Profile;
use super::queue::Queue;
use super::refusal::{self, Refusal};
use crate::transport::{Confirm, Delivery, Returned};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),+) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(super) struct $name(pub(super) u64);)+
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
pub(super) struct Moment {
    pub(super) now: Instant,
    pub(super) epoch_millis: i64,
}

/// What a client hears.
#[derive(Debug)]
pub(super) enum Effect {
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
pub(super) struct ConfirmFaults {
    /// So many publishes are nacked and not stored.
    pub(super) nack: usize,
    /// So many publishes are stored and never confirmed.
    pub(super) lose: usize,
}

/// A broker's memory.
#[derive(Debug)]
pub(super) struct State {
    pub(super) profile: Profile,
    pub(super) exchanges: BTreeMap<String, Exchange>,
    pub(super) queues: BTreeMap<String, Queue>,
    /// Queues on a node that is down.
    lost: BTreeMap<String, Queue>,
    /// Later ones go before earlier ones.
    policies: Vec<policy::Policy>,
    pub(super) channels: BTreeMap<ChannelId, Channel>,
    pub(super) faults: ConfirmFaults,
    /// From a stop until quorum queues have leaders again: what is dead-lettered to them meanwhile is dropped.
    is_leaderless: bool,
    effects: Vec<Effect>,
    /// Queues that may have something to hand out or to drop.
    stirred: BTreeSet<String>,
    letters: VecDeque<publish::Letter>,
    last_id: u64,
}

impl State {
    pub(super) fn new(profile: Profile) -> Self {
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

    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub(super) fn open_link(&mut self) -> LinkId {
        LinkId(self.id())
    }

    pub(super) fn open_channel(&mut self, link: LinkId) -> ChannelId {
        let channel = ChannelId(self.id());
        self.channels.insert(channel, Channel::new(link));
        channel
    }

    pub(super) fn channels_of(&self, link: LinkId) -> Vec<ChannelId> {
        self.channels
            .iter()
            .filter(|(_, channel)| channel.link == link)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Ends a link and its channels; what is exclusive to it goes with it.
    pub(super) fn end_link(&mut self, link: LinkId, at: Moment) {
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
    pub(super) fn end_all_links(&mut self, at: Moment) {
        let links: BTreeSet<LinkId> = self.channels.values().map(|channel| channel.link).collect();
        for link in links {
            self.end_link(link, at);
        }
    }

    /// Ends a channel: what it has not settled goes back.
    pub(super) fn end_channel(&mut self, channel: ChannelId, at: Moment) {
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
