//! The pure model of a broker: operations go in with their time, and what clients receive comes out
//! as effects.
//!
//! [`BrokerState`] holds everything. Its methods are in one file for each kind of operation; the
//! types it is made of know nothing of it. An operation marks the queues it touches as dirty and
//! ends with [`run_to_quiescence`](BrokerState::run_to_quiescence), which serves them.

pub(crate) mod arguments;
pub(crate) mod channel;
pub(crate) mod dead_letter;
pub(crate) mod equivalence;
pub(crate) mod exchange;
pub(crate) mod ids;
pub(crate) mod message;
pub(crate) mod profile;
pub(crate) mod queue;
pub(crate) mod ready;
pub(crate) mod refusal;

mod consume;
pub(crate) mod declare;
mod lifecycle;
pub(crate) mod policy;
pub(crate) mod publish;
pub(crate) mod settle;

use crate::message::delivery::{Delivery, Returned};
use crate::transport::Confirm;
use channel::Channel;
use exchange::Exchange;
use ids::{ChannelId, ConsumerId, LinkId, Moment};
use profile::Profile;
use queue::Queue;
use refusal::Refusal;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a client receives.
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
    /// The number of publishes that are nacked and not stored.
    pub(crate) nack: usize,
    /// The number of publishes that are stored and never confirmed.
    pub(crate) lose: usize,
}

/// The state of a broker.
#[derive(Debug)]
pub(crate) struct BrokerState {
    pub(crate) profile: Profile,
    pub(crate) exchanges: BTreeMap<String, Exchange>,
    pub(crate) queues: BTreeMap<String, Queue>,
    /// Queues on a node that is down.
    lost_queues: BTreeMap<String, Queue>,
    /// In the order in which they were set; later ones take precedence.
    policies: Vec<policy::Policy>,
    pub(crate) channels: BTreeMap<ChannelId, Channel>,
    pub(crate) faults: ConfirmFaults,
    /// Set from a stop until quorum queues have leaders again. Dead letters to them are dropped
    /// meanwhile.
    is_leaderless: bool,
    effects: Vec<Effect>,
    /// Queues that may have something to deliver or to drop.
    dirty: BTreeSet<String>,
    /// Dead letters that are not yet routed, oldest first.
    dead_letters: VecDeque<publish::DeadLetter>,
    last_id: u64,
}

impl BrokerState {
    pub(crate) fn new(profile: Profile) -> Self {
        let exchanges = Exchange::predeclared().into_iter();
        Self {
            profile,
            exchanges: exchanges
                .map(|exchange| (exchange.name.clone(), exchange))
                .collect(),
            queues: BTreeMap::new(),
            lost_queues: BTreeMap::new(),
            policies: Vec::new(),
            channels: BTreeMap::new(),
            faults: ConfirmFaults::default(),
            is_leaderless: false,
            effects: Vec::new(),
            dirty: BTreeSet::new(),
            dead_letters: VecDeque::new(),
            last_id: 0,
        }
    }

    /// The next number. All kinds of ids share one sequence, so none of them is zero.
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub(crate) fn open_link(&mut self) -> LinkId {
        LinkId(self.next_id())
    }

    pub(crate) fn open_channel(&mut self, link: LinkId) -> ChannelId {
        let channel = ChannelId(self.next_id());
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

    /// Ends a connection with its channels and its exclusive queues.
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
        self.run_to_quiescence(at);
    }

    /// Ends every connection.
    pub(crate) fn end_all_links(&mut self, at: Moment) {
        let links: BTreeSet<LinkId> = self.channels.values().map(|channel| channel.link).collect();
        for link in links {
            self.end_link(link, at);
        }
    }

    /// Ends a channel and requeues its unsettled messages.
    pub(crate) fn end_channel(&mut self, channel: ChannelId, at: Moment) {
        self.end_channels(&[channel], at);
        self.run_to_quiescence(at);
    }

    fn queue(&self, name: &str) -> Result<&Queue, Refusal> {
        self.queues
            .get(name)
            .ok_or_else(|| Refusal::not_found(format!("no {}", refusal::queue(name))))
    }

    /// The queue, unless it is exclusive to another connection than `link`.
    fn open_queue(&mut self, name: &str, link: Option<LinkId>) -> Result<&mut Queue, Refusal> {
        let owner = self.queue(name)?.owner;
        if owner.is_some() && owner != link {
            return Err(Refusal::locked_queue(name));
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

    /// The channel. Callers execute operations of open channels only, so it exists.
    fn channel(&mut self, channel: ChannelId) -> Result<&mut Channel, Refusal> {
        self.channels
            .get_mut(&channel)
            .ok_or_else(|| Refusal::with_code(504, "the channel is not open"))
    }

    fn link_of(&self, channel: ChannelId) -> Option<LinkId> {
        self.channels.get(&channel).map(|channel| channel.link)
    }
}
