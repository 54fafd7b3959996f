//! A channel of amiquip behind the seam, with its subscription and its confirms.

use super::failure;
use super::table::{amqp_properties, properties, table};
use crate::message::delivery::{Delivery, Outgoing, Returned};
use crate::topology::declaration::{Declaration, ExchangeKind};
use crate::transport::{Channel, Confirm, Confirms, Failure, Gone, Incoming, Subscription};
use amiquip::{
    ConsumerMessage, ConsumerOptions, ExchangeDeclareOptions, ExchangeType, FieldTable, Publish,
    QueueDeclareOptions,
};
use crossbeam_channel::{Receiver, Select, TryRecvError};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::Arc;

pub(super) struct AmqpChannel {
    channel: amiquip::Channel,
    /// amiquip's deliveries by tag, emptied of their content. amiquip settles by its own delivery
    /// only, so they are kept until then.
    unsettled: RefCell<BTreeMap<u64, amiquip::Delivery>>,
}

impl AmqpChannel {
    pub(super) fn new(channel: amiquip::Channel) -> Self {
        Self {
            channel,
            unsettled: RefCell::default(),
        }
    }

    /// Moves the content out of amiquip's delivery and keeps the rest for settling.
    fn take(&self, mut delivery: amiquip::Delivery) -> Delivery {
        let (properties, headers) = properties(&delivery.properties);
        // Frees the headers, which the emptied delivery does not need.
        delivery.properties = amiquip::AmqpProperties::default();
        let taken = Delivery {
            tag: delivery.delivery_tag(),
            redelivered: delivery.redelivered,
            exchange: mem::take(&mut delivery.exchange),
            routing_key: mem::take(&mut delivery.routing_key),
            properties,
            headers,
            body: Arc::new(mem::take(&mut delivery.body)),
        };
        self.unsettled.borrow_mut().insert(taken.tag, delivery);
        taken
    }

    /// Settles the delivery with `tag`. A tag that is no longer known was settled before; it is
    /// skipped, because a second settlement would make the broker close the channel.
    fn settle(
        &self,
        tag: u64,
        settle: impl FnOnce(amiquip::Delivery, &amiquip::Channel) -> amiquip::Result<()>,
    ) -> Result<(), Failure> {
        let delivery = self.unsettled.borrow_mut().remove(&tag);
        debug_assert!(delivery.is_some(), "delivery {tag} was settled twice");
        delivery.map_or(Ok(()), |delivery| {
            settle(delivery, &self.channel).map_err(failure)
        })
    }
}

impl fmt::Debug for AmqpChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AmqpChannel")
            .field(&self.channel.channel_id())
            .finish()
    }
}

impl Channel for AmqpChannel {
    fn declare(&self, declaration: &Declaration) -> Result<(), Failure> {
        match declaration {
            Declaration::Exchange {
                name,
                kind,
                durable,
            } => {
                let options = ExchangeDeclareOptions {
                    durable: *durable,
                    ..ExchangeDeclareOptions::default()
                };
                self.channel
                    .exchange_declare(exchange_type(*kind), name, options)
                    .map(drop)
            }
            Declaration::Queue {
                name,
                durable,
                exclusive,
                auto_delete,
                arguments,
            } => {
                let options = QueueDeclareOptions {
                    durable: *durable,
                    exclusive: *exclusive,
                    auto_delete: *auto_delete,
                    arguments: table(arguments),
                };
                // If the node of a queue is down, RabbitMQ 4 takes more than a minute to answer a
                // declaration, because the answer contains the message count. With nowait it
                // compares the arguments and sends no answer. The qos call waits until that is
                // done: it is answered, or fails with the error of the declaration.
                self.channel
                    .queue_declare_nowait(name, options)
                    .and_then(|_| self.channel.qos(0, 1, false))
            }
            Declaration::Binding {
                queue,
                exchange,
                routing_key,
            } => self
                .channel
                .queue_bind(queue, exchange, routing_key, FieldTable::new()),
        }
        .map_err(failure)
    }

    fn check(&self, declaration: &Declaration) -> Result<(), Failure> {
        match declaration {
            Declaration::Exchange { name, .. } => {
                self.channel.exchange_declare_passive(name).map(drop)
            }
            Declaration::Queue { name, .. } => self.channel.queue_declare_passive(name).map(drop),
            Declaration::Binding { .. } => Ok(()),
        }
        .map_err(failure)
    }

    fn set_prefetch(&self, prefetch: u16) -> Result<(), Failure> {
        self.channel.qos(0, prefetch, false).map_err(failure)
    }

    fn subscribe(&self, queue: &str) -> Result<Box<dyn Subscription + '_>, Failure> {
        let consumer = self
            .channel
            .basic_consume(queue, ConsumerOptions::default())
            .map_err(failure)?;
        let messages = consumer.receiver().clone();
        Ok(Box::new(AmqpSubscription {
            channel: self,
            consumer,
            messages,
        }))
    }

    fn count(&self, queue: &str) -> Result<usize, Failure> {
        let queue = self.channel.queue_declare_passive(queue).map_err(failure)?;
        Ok(queue.declared_message_count().unwrap_or(0) as usize)
    }

    fn get(&self, queue: &str) -> Result<Option<Delivery>, Failure> {
        let got = self.channel.basic_get(queue, false).map_err(failure)?;
        Ok(got.map(|got| self.take(got.delivery)))
    }

    fn ack(&self, tag: u64, multiple: bool) -> Result<(), Failure> {
        if !multiple {
            return self.settle(tag, |delivery, channel| delivery.ack(channel));
        }
        let mut settled = self.unsettled.take();
        // Keeps the tags above `tag`; all others are settled with it.
        self.unsettled
            .replace(settled.split_off(&tag.saturating_add(1)));
        let top = settled.remove(&tag);
        debug_assert!(top.is_some(), "delivery {tag} was settled twice");
        top.map_or(Ok(()), |delivery| {
            delivery.ack_multiple(&self.channel).map_err(failure)
        })
    }

    fn nack(&self, tag: u64) -> Result<(), Failure> {
        self.settle(tag, |delivery, channel| delivery.nack(channel, true))
    }

    fn reject(&self, tag: u64) -> Result<(), Failure> {
        self.settle(tag, |delivery, channel| delivery.reject(channel, false))
    }

    fn confirms(&self) -> Result<Box<dyn Confirms>, Failure> {
        let confirms = self
            .channel
            .listen_for_publisher_confirms()
            .map_err(failure)?;
        // Both listeners are in place before confirm mode starts, so no confirm is lost.
        let returns = self.channel.listen_for_returns().map_err(failure)?;
        self.channel.enable_publisher_confirms().map_err(failure)?;
        Ok(Box::new(AmqpConfirms { confirms, returns }))
    }

    fn publish(&self, message: &Outgoing) -> Result<(), Failure> {
        let publish = Publish {
            body: &message.body,
            routing_key: message.routing_key.clone(),
            mandatory: message.mandatory,
            immediate: false,
            properties: amqp_properties(&message.properties, &message.headers),
        };
        self.channel
            .basic_publish(message.exchange.clone(), publish)
            .map_err(failure)
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        self.channel.close().map_err(failure)
    }
}

fn exchange_type(kind: ExchangeKind) -> ExchangeType {
    match kind {
        ExchangeKind::Direct => ExchangeType::Direct,
        ExchangeKind::Topic => ExchangeType::Topic,
        ExchangeKind::Fanout => ExchangeType::Fanout,
        ExchangeKind::Headers => ExchangeType::Headers,
    }
}

pub(super) fn returned(returned: amiquip::Return) -> Returned {
    Returned {
        message_id: returned.properties.message_id().clone(),
        text: format!("{} {}", returned.reply_code, returned.reply_text),
        exchange: returned.exchange,
        routing_key: returned.routing_key,
    }
}

struct AmqpSubscription<'a> {
    channel: &'a AmqpChannel,
    consumer: amiquip::Consumer<'a>,
    messages: Receiver<ConsumerMessage>,
}

impl Subscription for AmqpSubscription<'_> {
    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize {
        select.recv(&self.messages)
    }

    fn next(&self) -> Option<Incoming> {
        let message = match self.messages.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                return Some(Incoming::Ended(Failure::Lost(
                    "the connection is gone".to_owned(),
                )));
            }
        };
        Some(match message {
            ConsumerMessage::Delivery(delivery) => Incoming::Delivery(self.channel.take(delivery)),
            ConsumerMessage::ServerCancelled => Incoming::Cancelled,
            ConsumerMessage::ClientCancelled => Incoming::CancelOk,
            ConsumerMessage::ServerClosedChannel(error)
            | ConsumerMessage::ServerClosedConnection(error) => Incoming::Ended(failure(error)),
            ConsumerMessage::ClientClosedChannel | ConsumerMessage::ClientClosedConnection => {
                Incoming::Ended(Failure::Lost("the channel is closed".to_owned()))
            }
        })
    }

    fn cancel(&self) -> Result<(), Failure> {
        self.consumer.cancel().map_err(failure)
    }
}

impl Drop for AmqpSubscription<'_> {
    /// amiquip's I/O thread ends the connection if a receiver is dropped early, so the receiver is
    /// drained up to the last message.
    fn drop(&mut self) {
        if self.consumer.cancel().is_ok() {
            while let Ok(message) = self.messages.recv() {
                if !matches!(message, ConsumerMessage::Delivery(_)) {
                    return;
                }
            }
        }
    }
}

/// The listeners for confirms and returns. Both live as long as the channel, because without a
/// listener amiquip logs complete messages.
struct AmqpConfirms {
    confirms: Receiver<amiquip::Confirm>,
    returns: Receiver<amiquip::Return>,
}

impl fmt::Debug for AmqpConfirms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AmqpConfirms")
    }
}

impl Confirms for AmqpConfirms {
    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize {
        select.recv(&self.confirms)
    }

    fn next_confirm(&self) -> Result<Option<Confirm>, Gone> {
        match self.confirms.try_recv() {
            Ok(amiquip::Confirm::Ack(confirm)) => Ok(Some(Confirm {
                tag: confirm.delivery_tag,
                multiple: confirm.multiple,
                ack: true,
            })),
            Ok(amiquip::Confirm::Nack(confirm)) => Ok(Some(Confirm {
                tag: confirm.delivery_tag,
                multiple: confirm.multiple,
                ack: false,
            })),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Gone),
        }
    }

    fn next_return(&self) -> Option<Returned> {
        self.returns.try_recv().ok().map(returned)
    }
}
