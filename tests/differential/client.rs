//! What the seam lacks, done by another client.

use super::peer::{self, Raw};
use crate::broker::Broker;
use crate::error::Error;
use crate::message::headers::{HeaderValue, Headers};
use crate::topology::declaration::ExchangeKind;
use amiquip::{AmqpValue, ExchangeDeclareOptions, ExchangeType, FieldTable, QueueDeleteOptions};

/// A client of the real broker or of the embedded one. What it is refused it is told with a reply code.
pub(super) enum Client {
    Real(Box<Raw>),
    Embedded(Broker),
}

impl Client {
    pub(super) fn declare_exchange(
        &self,
        name: &str,
        kind: ExchangeKind,
        arguments: &Headers,
    ) -> Result<(), u16> {
        match self {
            Self::Real(raw) => {
                let options = ExchangeDeclareOptions {
                    durable: true,
                    arguments: table(arguments),
                    ..ExchangeDeclareOptions::default()
                };
                raw.attempt(|channel| {
                    channel
                        .exchange_declare(exchange_type(kind), name, options)
                        .map(drop)
                })
            }
            Self::Embedded(broker) => broker.declare_exchange(name, kind, arguments).map_err(code),
        }
    }

    pub(super) fn bind(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Headers,
    ) -> Result<(), u16> {
        match self {
            Self::Real(raw) => raw.attempt(|channel| {
                channel.queue_bind(queue, exchange, routing_key, table(arguments))
            }),
            Self::Embedded(broker) => broker
                .bind(queue, exchange, routing_key, arguments)
                .map_err(code),
        }
    }

    pub(super) fn unbind(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Headers,
    ) -> Result<(), u16> {
        match self {
            Self::Real(raw) => raw.attempt(|channel| {
                channel.queue_unbind(queue, exchange, routing_key, table(arguments))
            }),
            Self::Embedded(broker) => broker
                .unbind(queue, exchange, routing_key, arguments)
                .map_err(code),
        }
    }

    pub(super) fn delete_exchange(&self, name: &str) -> Result<(), u16> {
        match self {
            Self::Real(raw) => raw.attempt(|channel| channel.exchange_delete(name, false)),
            Self::Embedded(broker) => broker.delete_exchange(name).map_err(code),
        }
    }

    pub(super) fn delete_queue(&self, name: &str) -> Result<(), u16> {
        match self {
            Self::Real(raw) => {
                let options = QueueDeleteOptions::default();
                raw.attempt(|channel| channel.queue_delete(name, options).map(drop))
            }
            Self::Embedded(broker) => {
                // As its owner, whom another client is not.
                check_not_exclusive(broker, name)?;
                broker.delete_queue(name);
                Ok(())
            }
        }
    }

    pub(super) fn purge(&self, queue: &str) -> Result<usize, u16> {
        match self {
            Self::Real(raw) => raw
                .attempt(|channel| channel.queue_purge(queue))
                .map(|purged| purged as usize),
            Self::Embedded(broker) => {
                check_not_exclusive(broker, queue)?;
                broker.purge(queue).map_err(code)
            }
        }
    }

    /// Fetches a message on a channel of its own, and acknowledges it twice; `Ok` when there was none.
    pub(super) fn ack_twice(&self, queue: &str) -> Result<(), u16> {
        match self {
            Self::Real(raw) => raw.attempt(|channel| {
                let Some(got) = channel.basic_get(queue, false)? else {
                    return Ok(());
                };
                got.delivery.clone().ack(channel)?;
                got.delivery.ack(channel)?;
                channel.qos(0, 0, false)
            }),
            Self::Embedded(broker) => {
                let mut dialled = peer::dial(&peer::memory(broker));
                let channel = dialled.link.open_channel().map_err(peer::code)?;
                let twice = channel.get(queue).and_then(|pulled| {
                    let Some(delivery) = pulled else {
                        return Ok(());
                    };
                    channel.ack(delivery.tag, false)?;
                    channel.ack(delivery.tag, false)?;
                    channel.set_prefetch(0)
                });
                twice.map_err(peer::code)
            }
        }
    }
}

fn check_not_exclusive(broker: &Broker, queue: &str) -> Result<(), u16> {
    match broker.queue(queue) {
        Some(queue) if queue.exclusive => Err(405),
        _ => Ok(()),
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

fn code(error: Error) -> u16 {
    match error {
        Error::Broker { code, .. } => code,
        other => panic!("not a refusal: {other}"),
    }
}

/// The few kinds of values that programs use.
fn table(headers: &Headers) -> FieldTable {
    headers
        .iter()
        .map(|(name, value)| {
            let value = match value {
                HeaderValue::Text(text) => AmqpValue::LongString(text.clone()),
                HeaderValue::I64(number) => AmqpValue::LongLongInt(*number),
                HeaderValue::I32(number) => AmqpValue::LongInt(*number),
                HeaderValue::Bool(flag) => AmqpValue::Boolean(*flag),
                HeaderValue::Void => AmqpValue::Void,
                other => panic!("no program has {other:?} in an argument of a binding or exchange"),
            };
            (name.to_owned(), value)
        })
        .collect()
}
