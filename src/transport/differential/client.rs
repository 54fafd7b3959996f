//! What the seam lacks, done by another client.

use super::harness::Raw;
use crate::declaration::ExchangeKind;
use crate::error::Error;
use crate::headers::{HeaderValue, Headers};
use crate::transport::memory::Broker;
use amiquip::{AmqpValue, ExchangeDeclareOptions, ExchangeType, FieldTable, QueueDeleteOptions};

/// What a client asks for that the seam cannot; refused with a reply code.
pub(super) trait Client {
    fn declare_exchange(
        &self,
        name: &str,
        kind: ExchangeKind,
        arguments: &Headers,
    ) -> Result<(), u16>;
    fn bind(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Headers,
    ) -> Result<(), u16>;
    fn unbind(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Headers,
    ) -> Result<(), u16>;
    fn delete_exchange(&self, name: &str) -> Result<(), u16>;
    fn delete_queue(&self, name: &str) -> Result<(), u16>;
    fn purge(&self, queue: &str) -> Result<usize, u16>;
    /// Fetches a message on a channel of its own, and acknowledges it twice; `Ok` when there was none.
    fn ack_twice(&self, queue: &str) -> Result<(), u16>;
}

impl Client for Raw {
    fn declare_exchange(
        &self,
        name: &str,
        kind: ExchangeKind,
        arguments: &Headers,
    ) -> Result<(), u16> {
        let kind = match kind {
            ExchangeKind::Direct => ExchangeType::Direct,
            ExchangeKind::Topic => ExchangeType::Topic,
            ExchangeKind::Fanout => ExchangeType::Fanout,
            ExchangeKind::Headers => ExchangeType::Headers,
        };
        let options = ExchangeDeclareOptions {
            durable: true,
            arguments: table(arguments),
            ..ExchangeDeclareOptions::default()
        };
        self.attempt(|channel| channel.exchange_declare(kind, name, options).map(drop))
    }

    fn bind(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Headers,
    ) -> Result<(), u16> {
        self.attempt(|channel| channel.queue_bind(queue, exchange, routing_key, table(arguments)))
    }

    fn unbind(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Headers,
    ) -> Result<(), u16> {
        self.attempt(|channel| channel.queue_unbind(queue, exchange, routing_key, table(arguments)))
    }

    fn delete_exchange(&self, name: &str) -> Result<(), u16> {
        self.attempt(|channel| channel.exchange_delete(name, false))
    }

    fn delete_queue(&self, name: &str) -> Result<(), u16> {
        let options = QueueDeleteOptions::default();
        self.attempt(|channel| channel.queue_delete(name, options).map(drop))
    }

    fn purge(&self, queue: &str) -> Result<usize, u16> {
        self.attempt(|channel| channel.queue_purge(queue))
            .map(|purged| purged as usize)
    }

    fn ack_twice(&self, queue: &str) -> Result<(), u16> {
        self.attempt(|channel| {
            let Some(got) = channel.basic_get(queue, false)? else {
                return Ok(());
            };
            got.delivery.clone().ack(channel)?;
            got.delivery.ack(channel)?;
            channel.qos(0, 0, false)
        })
    }
}

impl Client for Broker {
    fn declare_exchange(
        &self,
        name: &str,
        kind: ExchangeKind,
        arguments: &Headers,
    ) -> Result<(), u16> {
        Self::declare_exchange(self, name, kind, arguments).map_err(code)
    }

    fn bind(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Headers,
    ) -> Result<(), u16> {
        Self::bind(self, queue, exchange, routing_key, arguments).map_err(code)
    }

    fn unbind(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Headers,
    ) -> Result<(), u16> {
        Self::unbind(self, queue, exchange, routing_key, arguments).map_err(code)
    }

    fn delete_exchange(&self, name: &str) -> Result<(), u16> {
        Self::delete_exchange(self, name).map_err(code)
    }

    fn delete_queue(&self, name: &str) -> Result<(), u16> {
        // As its owner, whom another client is not.
        if self.queue(name).is_some_and(|queue| queue.exclusive) {
            return Err(405);
        }
        Self::delete_queue(self, name);
        Ok(())
    }

    fn purge(&self, queue: &str) -> Result<usize, u16> {
        if self.queue(queue).is_some_and(|queue| queue.exclusive) {
            return Err(405);
        }
        Self::purge(self, queue).map_err(code)
    }

    fn ack_twice(&self, queue: &str) -> Result<(), u16> {
        let mut dialled = super::side::dial(&super::side::memory(self));
        let channel = dialled.link.open_channel().map_err(super::side::code)?;
        let twice = channel.pull(queue).and_then(|pulled| {
            let Some(delivery) = pulled else {
                return Ok(());
            };
            channel.ack(delivery.tag, false)?;
            channel.ack(delivery.tag, false)?;
            channel.limit_prefetch(0)
        });
        twice.map_err(super::side::code)
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
