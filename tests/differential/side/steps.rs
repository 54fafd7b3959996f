//! How the steps of a program are taken.

use super::{Side, has_twins};
use crate::topology::declaration::Declaration;
use crate::transport::differential::program::Step;
use crate::transport::differential::seat::Heard;
use crate::transport::differential::show::{answered, shown};
use crate::transport::{Channel, Failure};
use std::collections::BTreeSet;

impl Side {
    /// Takes a step.
    pub(in crate::transport::differential) fn take(&mut self, step: &Step) {
        match step {
            Step::Declare { link, declaration } => {
                if let Declaration::Queue { name, .. } | Declaration::Exchange { name, .. } =
                    declaration
                {
                    self.declared.insert(name.clone());
                }
                let result = self.administer(*link, |channel| channel.declare(declaration));
                self.seen.answer = answered(result);
            }
            Step::Check { link, declaration } => {
                let result = self.administer(*link, |channel| channel.check(declaration));
                self.seen.answer = answered(result);
            }
            Step::Publish { channel, message } => {
                let published = self.seat(*channel).publish(message.clone());
                let confirm = self.note(*channel, published.confirm);
                if let Some(confirm) = confirm {
                    self.seen.answer = format!("tag {} ack {}", confirm.tag, confirm.ack);
                }
                for returned in published.returned {
                    let text = format!(
                        "; returned {:?} {:?} {:?} {}",
                        returned.message_id, returned.exchange, returned.routing_key, returned.text
                    );
                    self.seen.answer.push_str(&text);
                }
            }
            Step::Pull { channel, queue } => self.pull(*channel, queue),
            Step::Ack {
                channel,
                which,
                multiple,
            } => {
                let multiple = *multiple;
                self.settle(*channel, *which, multiple, move |channel, tag| {
                    channel.ack(tag, multiple)
                });
            }
            Step::Nack { channel, which } => {
                self.settle(*channel, *which, false, |channel, tag| channel.nack(tag));
            }
            Step::Reject { channel, which } => {
                self.settle(*channel, *which, false, |channel, tag| channel.reject(tag));
            }
            Step::Subscribe {
                channel,
                queue,
                prefetch,
            } => {
                self.last_consumer += 1;
                let number = self.last_consumer;
                let result = self.seat(*channel).subscribe(queue, *prefetch, number);
                if self.note(*channel, result).is_some() {
                    self.consumers[*channel].push(number);
                    self.consumed[*channel].push(queue);
                    if *prefetch > 0 {
                        self.limited.insert(number, queue);
                    }
                }
            }
            Step::Cancel { channel, which } => self.cancel(*channel, *which),
            Step::Close(channel) => {
                self.listen(*channel);
                if let Some(seat) = self.forget(*channel) {
                    self.seen.answer = answered(seat.close());
                }
            }
            Step::Kill(link) => self.kill(*link),
            _ => self.be_another_client(step),
        }
    }

    fn be_another_client(&mut self, step: &Step) {
        let client = &self.client;
        let result = match step {
            Step::Exchange {
                name,
                kind,
                arguments,
            } => {
                self.declared.insert((*name).to_owned());
                client.declare_exchange(name, *kind, arguments)
            }
            Step::Bind {
                queue,
                exchange,
                routing_key,
                arguments,
            } => client.bind(queue, exchange, routing_key, arguments),
            Step::Unbind {
                queue,
                exchange,
                routing_key,
                arguments,
            } => client.unbind(queue, exchange, routing_key, arguments),
            Step::DeleteQueue(queue) => client.delete_queue(queue),
            Step::DeleteExchange(exchange) => client.delete_exchange(exchange),
            Step::AckTwice(queue) => client.ack_twice(queue),
            Step::Purge(queue) => match client.purge(queue) {
                Ok(purged) => {
                    self.seen.answer = format!("purged {purged}");
                    return;
                }
                Err(code) => Err(code),
            },
            _ => unreachable!("{step:?} is for the seam"),
        };
        self.seen.answer = result.map_or_else(
            |code| format!("refused with {code}"),
            |()| "done".to_owned(),
        );
    }

    fn pull(&mut self, channel: usize, queue: &'static str) {
        let result = self.seat(channel).with(move |channel| channel.get(queue));
        match self.note(channel, result) {
            Some(Some(delivery)) => {
                self.seen.answer = format!("tag {} {}", delivery.tag, shown(&delivery));
                self.unsettled[channel].push((delivery.tag, None));
            }
            Some(None) => "empty".clone_into(&mut self.seen.answer),
            None => {}
        }
    }

    fn settle(
        &mut self,
        channel: usize,
        which: usize,
        multiple: bool,
        settle: impl FnOnce(&dyn Channel, u64) -> Result<(), Failure> + Send + 'static,
    ) {
        let unsettled = &mut self.unsettled[channel];
        if unsettled.is_empty() {
            return;
        }
        let at = which % unsettled.len();
        let (tag, consumer) = unsettled.remove(at);
        if multiple {
            let others = unsettled.drain(..at).map(|(_, consumer)| consumer);
            let freed: BTreeSet<usize> = others.chain([consumer]).flatten().collect();
            let limited = freed.iter().filter_map(|number| self.limited.get(number));
            // A queue hears of them one by one, in the order of their tags, which are random: either may be in line first.
            self.is_open |= has_twins(&limited.copied().collect::<Vec<_>>());
        }
        let result = self
            .seat(channel)
            .settle(move |channel| settle(channel, tag));
        self.note(channel, result);
    }

    fn cancel(&mut self, channel: usize, which: usize) {
        let consumers = &self.consumers[channel];
        if consumers.is_empty() {
            return;
        }
        let number = consumers[which % consumers.len()];
        let result = self.seat(channel).cancel(number);
        if let Some(late) = self.note(channel, result) {
            self.consumers[channel].retain(|other| *other != number);
            for delivery in late {
                self.hear(channel, number, Heard::Delivery(delivery));
            }
        }
    }
}
