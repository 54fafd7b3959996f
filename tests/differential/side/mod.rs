//! One of the two brokers, and the clients of a program on it.

mod steps;

use super::client::Client;
use super::peer::{PATIENCE, Raw, code, dial, memory, wait_until};
use super::program::{CHANNELS, EXCHANGES, LINKS, QUEUES};
use super::seat::{Heard, Seat};
use super::show::{shown, told};
use crate::broker::Broker;
use crate::time::instant::monotonic;
use crate::transport::amqp::{AmqpTransport, BrokerUrl};
use crate::transport::{Channel, Dialled, Failure, Transport};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a program sees of one step, on either broker.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// The answer to the step itself.
    pub(super) answer: String,
    /// What the consumers heard, by the number of the consumer, in order.
    pub(super) heard: BTreeMap<usize, Vec<String>>,
    /// Channel and tag of each delivery among that.
    pub(super) tags: BTreeMap<usize, Vec<u64>>,
    /// How many messages are ready in each queue, or why that is not known.
    pub(super) ready: BTreeMap<&'static str, Result<usize, u16>>,
}

/// A broker with the links and channels of a program.
pub(super) struct Side {
    transport: Box<dyn Transport>,
    client: Client,
    links: [Option<Dialled>; LINKS],
    /// For declarations, each on a channel that nothing else uses.
    admins: [Option<Box<dyn Channel>>; LINKS],
    seats: [Option<Seat>; CHANNELS.len()],
    /// What was delivered and is not settled: the tags, and the consumers unless it was fetched.
    unsettled: [Vec<(u64, Option<usize>)>; CHANNELS.len()],
    /// The consumers of each channel.
    consumers: [Vec<usize>; CHANNELS.len()],
    /// The queues that each channel has consumed from, as often as it began to.
    consumed: [Vec<&'static str>; CHANNELS.len()],
    /// The queue of each consumer with a prefetch.
    limited: BTreeMap<usize, &'static str>,
    /// What happened last may have happened in another way.
    pub(super) is_open: bool,
    /// The queues and exchanges that were declared, or nearly.
    declared: BTreeSet<String>,
    /// Channels that hold what was drained: given back it would be dead-lettered, perhaps.
    drains: Vec<Seat>,
    last_consumer: usize,
    /// Consumers that heard something in this step.
    seen: Seen,
}

impl Side {
    pub(super) fn real(url: &str) -> Self {
        let transport = AmqpTransport {
            url: BrokerUrl::parse(&format!("{url}?heartbeat=0")).unwrap(),
            information: String::new(),
            #[cfg(feature = "tls")]
            tls: None,
        };
        Self::new(Box::new(transport), Client::Real(Box::new(Raw::open(url))))
    }

    pub(super) fn embedded(broker: &Broker) -> Self {
        Self::new(Box::new(memory(broker)), Client::Embedded(broker.clone()))
    }

    fn new(transport: Box<dyn Transport>, client: Client) -> Self {
        Self {
            transport,
            client,
            links: Default::default(),
            admins: Default::default(),
            seats: Default::default(),
            unsettled: Default::default(),
            consumers: Default::default(),
            consumed: Default::default(),
            limited: BTreeMap::new(),
            is_open: false,
            declared: BTreeSet::new(),
            drains: Vec::new(),
            last_consumer: 0,
            seen: Seen::default(),
        }
    }

    fn link(&mut self, link: usize) -> &mut Dialled {
        let transport = &self.transport;
        self.links[link].get_or_insert_with(|| dial(&**transport))
    }

    fn admin(&mut self, link: usize) -> &dyn Channel {
        if self.admins[link].is_none() {
            let channel = self.link(link).link.open_channel().unwrap();
            self.admins[link] = Some(channel);
        }
        &**self.admins[link].as_ref().unwrap()
    }

    /// Calls on the link's channel for declarations, which is replaced when it was closed.
    fn administer<T>(
        &mut self,
        link: usize,
        call: impl FnOnce(&dyn Channel) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let result = call(self.admin(link));
        if result.is_err() {
            self.admins[link] = None;
        }
        result
    }

    fn seat(&mut self, channel: usize) -> &Seat {
        if self.seats[channel].is_none() {
            let open = self.link(CHANNELS[channel]).link.open_channel().unwrap();
            self.seats[channel] = Some(Seat::open(open).unwrap());
        }
        self.seats[channel].as_ref().unwrap()
    }

    /// A channel that is gone is opened again when it is needed.
    fn forget(&mut self, channel: usize) -> Option<Seat> {
        let consumed = std::mem::take(&mut self.consumed[channel]);
        // A quorum queue takes back what the consumers of a channel hold in the order of their tags, which are random.
        let are_twins = has_twins(&consumed);
        // A queue that has not heard of it yet hands it what another one, which has, dead-letters.
        let are_several = self.consumers[channel].len() > 1;
        self.is_open |= are_twins || are_several;
        self.unsettled[channel].clear();
        self.consumers[channel].clear();
        self.seats[channel].take()
    }

    fn note<T>(&mut self, channel: usize, result: Result<T, Failure>) -> Option<T> {
        match result {
            Ok(value) => {
                "done".clone_into(&mut self.seen.answer);
                Some(value)
            }
            Err(failure) => {
                let is_lost = matches!(failure, Failure::Lost(_));
                self.seen.answer = told(failure);
                self.listen_to_the_end(channel);
                self.forget(channel);
                if is_lost {
                    // Its other channels end with it, in any order.
                    let link = CHANNELS[channel];
                    self.is_open |= self.is_contested(link);
                    self.kill(link);
                }
                None
            }
        }
    }

    fn kill(&mut self, link: usize) {
        if let Some(dialled) = self.links[link].take() {
            dialled.kill.throw();
            self.admins[link] = None;
            for (channel, of_link) in CHANNELS.into_iter().enumerate() {
                if of_link == link
                    && let Some(seat) = self.forget(channel)
                {
                    // Gone already.
                    drop(seat.close());
                }
            }
            drop(dialled);
        }
    }

    fn hear(&mut self, channel: usize, number: usize, heard: Heard) {
        let line = match heard {
            Heard::Delivery(delivery) => {
                self.unsettled[channel].push((delivery.tag, Some(number)));
                self.unsettled[channel].sort_unstable();
                let tags = self.seen.tags.entry(number).or_default();
                tags.push(delivery.tag);
                shown(&delivery)
            }
            Heard::Cancelled => {
                self.consumers[channel].retain(|other| *other != number);
                "cancelled".to_owned()
            }
            Heard::Ended(failure) => told(failure),
        };
        self.seen.heard.entry(number).or_default().push(line);
    }

    /// The consumers of a channel that is over hear of it a moment after the call that ended it.
    fn listen_to_the_end(&mut self, channel: usize) {
        let began = monotonic();
        while !self.consumers[channel].is_empty() && began.elapsed() < PATIENCE {
            self.listen(channel);
        }
    }

    /// Takes in what the consumers of a channel have heard.
    fn listen(&mut self, channel: usize) {
        let Some(seat) = &self.seats[channel] else {
            return;
        };
        if self.consumers[channel].is_empty() {
            return;
        }
        let heard = seat.heard();
        let is_over = heard
            .iter()
            .any(|(_, heard)| matches!(heard, Heard::Ended(_)));
        for (number, heard) in heard {
            self.hear(channel, number, heard);
        }
        if is_over {
            self.forget(channel);
        }
    }

    /// What there is to see since the last step. The queues are asked `rounds` times, so that what one of them has handed on to
    /// the next has arrived. Those in `missing` are taken for missing, and those found missing in this step, because asking for
    /// one costs a channel.
    pub(super) fn look(&mut self, rounds: usize, missing: &BTreeSet<&'static str>) -> &Seen {
        for _ in 0..rounds {
            for queue in QUEUES {
                let found_missing = self.seen.ready.get(queue) == Some(&Err(404));
                let ready = if found_missing || missing.contains(queue) {
                    Err(404)
                } else {
                    let counted = self.administer(0, |channel| channel.count(queue));
                    counted.map_err(code)
                };
                self.seen.ready.insert(queue, ready);
            }
        }
        for channel in 0..CHANNELS.len() {
            self.listen(channel);
        }
        &self.seen
    }

    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Whether more than one channel of a link has something that goes back when it is killed, or consumes.
    pub(super) fn is_contested(&self, link: usize) -> bool {
        let holds = |channel: &usize| {
            CHANNELS[*channel] == link
                && !(self.unsettled[*channel].is_empty() && self.consumers[*channel].is_empty())
        };
        (0..CHANNELS.len()).filter(holds).count() > 1
    }

    /// Begins a step.
    pub(super) fn begin(&mut self) {
        self.seen = Seen::default();
    }

    /// What is ready in a queue, in order: `ready` messages.
    pub(super) fn drain(&mut self, queue: &'static str, ready: usize) -> Vec<String> {
        let open = self.link(0).link.open_channel().unwrap();
        let seat = Seat::open(open).unwrap();
        let mut drained = seat.with(move |channel| {
            let fetched = std::iter::from_fn(|| channel.get(queue).ok().flatten());
            fetched.map(|delivery| shown(&delivery)).collect::<Vec<_>>()
        });
        self.drains.push(seat);
        if !drained.is_empty() {
            return drained;
        }
        // A quorum queue with a single active consumer lets nobody fetch.
        let open = self.link(0).link.open_channel().unwrap();
        let seat = Seat::open(open).unwrap();
        seat.subscribe(queue, 0, 0).unwrap();
        let began = monotonic();
        while drained.len() < ready && began.elapsed() < Duration::from_secs(20) {
            for (_, heard) in seat.heard() {
                match heard {
                    Heard::Delivery(delivery) => drained.push(shown(&delivery)),
                    Heard::Cancelled => drained.push("cancelled".to_owned()),
                    Heard::Ended(failure) => drained.push(told(failure)),
                }
            }
        }
        self.drains.push(seat);
        drained
    }

    /// Cuts every connection, so that nothing of this side holds an exclusive queue.
    pub(super) fn cut(&mut self) {
        self.drains.clear();
        (0..LINKS).for_each(|link| self.kill(link));
    }

    /// Removes what the programs of an earlier side can have left in the virtual host.
    pub(super) fn clear(&mut self) {
        self.declared = QUEUES
            .iter()
            .chain(&EXCHANGES)
            .map(ToString::to_string)
            .collect();
        self.clean();
    }

    /// Removes everything that a program can have made.
    pub(super) fn clean(&mut self) {
        self.last_consumer = 0;
        self.limited.clear();
        for channel in 0..CHANNELS.len() {
            if let Some(seat) = self.forget(channel) {
                drop(seat.close());
            }
        }
        let declared = std::mem::take(&mut self.declared);
        for queue in QUEUES.iter().filter(|name| declared.contains(**name)) {
            if self.client.delete_queue(queue).is_err() {
                // It is exclusive to a link, and goes with it.
                (0..LINKS).for_each(|link| self.kill(link));
                let is_gone = || self.client.delete_queue(queue).is_ok();
                wait_until(PATIENCE, "an exclusive queue is gone", is_gone);
            }
        }
        for seat in self.drains.drain(..) {
            drop(seat.close());
        }
        for exchange in EXCHANGES.iter().filter(|name| declared.contains(**name)) {
            self.client.delete_exchange(exchange).unwrap();
        }
    }
}

/// Whether a queue is there twice.
fn has_twins(queues: &[&str]) -> bool {
    (0..queues.len()).any(|at| queues[..at].contains(&queues[at]))
}
