//! amiquip by hand, as a careful service without rungmq: one thread, no reconnection, no deadlines.

use crate::message::{is_copy, of_copy, properties};
use crate::{Bench, IN_FLIGHT, PREFETCH, per_second};
use amiquip::{
    AmqpProperties, Auth, Channel, Confirm, Connection, ConnectionOptions, ConnectionTuning,
    Consumer, ConsumerMessage, ConsumerOptions, Delivery, Publish, Return,
};
use anyhow::{Context, Result, bail, ensure};
use crossbeam_channel::{Receiver, never, select};
use lapin::uri::AMQPUri;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::Instant;

/// Acknowledges each message in the thread that receives.
pub(crate) fn consume(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    let mut connection = connect(&bench.url)?;
    let channel = connection.open_channel(None)?;
    let consumer = subscribe(&channel, queue)?;
    let mut start = None;
    for _ in 0..messages {
        let delivery = delivery(consumer.receiver().recv()?)?;
        start.get_or_insert_with(Instant::now);
        delivery.ack(&channel)?;
    }
    finish(consumer)?;
    channel.close()?;
    let rate = per_second(messages, start.context("no message")?);
    connection.close()?;
    Ok(rate)
}

/// Awaits the confirm of each copy before it takes the next delivery.
pub(crate) fn retry_serial(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    retry(bench, queue, messages, 1)
}

/// Takes deliveries while fewer than 256 copies are unconfirmed.
pub(crate) fn retry_256(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    retry(bench, queue, messages, IN_FLIGHT)
}

/// Two channels on one connection: with a second connection for the copies it was 10 % slower.
fn retry(bench: &Bench, queue: &str, messages: usize, in_flight: usize) -> Result<f64> {
    let mut connection = connect(&bench.url)?;
    let channel = connection.open_channel(None)?;
    let copies = Confirmed::open(&mut connection)?;
    let consumer = subscribe(&channel, queue)?;
    let none = never();
    let mut start = None;
    let mut unconfirmed: BTreeMap<u64, Delivery> = BTreeMap::new();
    let mut sent = 0;
    let mut accepted = 0;
    // A copy may be delivered before its confirm arrives, so the last delivery is not the end.
    while accepted < messages || !unconfirmed.is_empty() {
        let deliveries = if unconfirmed.len() < in_flight {
            consumer.receiver()
        } else {
            &none
        };
        select! {
            recv(deliveries) -> message => {
                let delivery = delivery(message?)?;
                start.get_or_insert_with(Instant::now);
                if is_copy(&delivery) {
                    delivery.ack(&channel)?;
                    accepted += 1;
                } else {
                    copies.publish(queue, &delivery.body, of_copy(&delivery), true)?;
                    sent += 1;
                    unconfirmed.insert(sent, delivery);
                }
            }
            recv(copies.confirms) -> confirm => {
                for original in copies.covered(confirm?, &mut unconfirmed)? {
                    original.ack(&channel)?;
                }
            }
        }
    }
    finish(consumer)?;
    channel.close()?;
    let rate = per_second(messages, start.context("no message")?);
    copies.channel.close()?;
    connection.close()?;
    Ok(rate)
}

/// Awaits each confirm before the next publish.
pub(crate) fn publish_serial(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    publish(bench, queue, messages, 1)
}

/// Publishes while fewer than 16 messages are unconfirmed, as 16 callers do.
pub(crate) fn publish_16(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    publish(bench, queue, messages, 16)
}

/// Publishes while fewer than 256 messages are unconfirmed.
pub(crate) fn publish_256(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    publish(bench, queue, messages, IN_FLIGHT)
}

fn publish(bench: &Bench, queue: &str, messages: usize, in_flight: usize) -> Result<f64> {
    let mut connection = connect(&bench.url)?;
    let publisher = Confirmed::open(&mut connection)?;
    let start = Instant::now();
    publisher.publish_all(queue, bench.body.as_bytes(), messages, in_flight, 0)?;
    let rate = per_second(messages, start);
    publisher.channel.close()?;
    connection.close()?;
    Ok(rate)
}

/// A channel in confirm mode, with its listeners.
pub(crate) struct Confirmed {
    channel: Channel,
    confirms: Receiver<Confirm>,
    returns: Receiver<Return>,
}

impl Confirmed {
    pub(crate) fn open(connection: &mut Connection) -> Result<Self> {
        let channel = connection.open_channel(None)?;
        channel.enable_publisher_confirms()?;
        let confirms = channel.listen_for_publisher_confirms()?;
        let returns = channel.listen_for_returns()?;
        Ok(Self {
            channel,
            confirms,
            returns,
        })
    }

    fn publish(
        &self,
        queue: &str,
        body: &[u8],
        properties: AmqpProperties,
        mandatory: bool,
    ) -> Result<()> {
        let message = Publish {
            body,
            routing_key: queue.into(),
            mandatory,
            immediate: false,
            properties,
        };
        Ok(self.channel.basic_publish("", message)?)
    }

    /// `sent` messages were published on this channel before; returns how many are now.
    pub(crate) fn publish_all(
        &self,
        queue: &str,
        body: &[u8],
        messages: usize,
        in_flight: usize,
        mut sent: u64,
    ) -> Result<u64> {
        let mut unconfirmed = BTreeMap::new();
        let last = sent + messages as u64;
        while sent < last || !unconfirmed.is_empty() {
            if sent < last && unconfirmed.len() < in_flight {
                sent += 1;
                self.publish(queue, body, properties(sent), false)?;
                unconfirmed.insert(sent, ());
            } else {
                self.covered(self.confirms.recv()?, &mut unconfirmed)?;
            }
        }
        Ok(sent)
    }

    /// Removes from `unconfirmed` what a confirm settles. A return precedes its confirm.
    fn covered<T>(&self, confirm: Confirm, unconfirmed: &mut BTreeMap<u64, T>) -> Result<Vec<T>> {
        ensure!(self.returns.is_empty(), "a message came back unroutable");
        let Confirm::Ack(confirm) = confirm else {
            bail!("the broker refused a message");
        };
        if confirm.multiple {
            let rest = unconfirmed.split_off(&(confirm.delivery_tag + 1));
            Ok(std::mem::replace(unconfirmed, rest).into_values().collect())
        } else {
            Ok(unconfirmed
                .remove(&confirm.delivery_tag)
                .into_iter()
                .collect())
        }
    }
}

pub(crate) fn connect(url: &str) -> Result<Connection> {
    let uri: AMQPUri = url
        .parse()
        .map_err(|_| anyhow::anyhow!("the URL cannot be read"))?;
    let host = (uri.authority.host.as_str(), uri.authority.port);
    let stream =
        TcpStream::connect(host).with_context(|| format!("no broker at {}:{}", host.0, host.1))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let options = ConnectionOptions::default()
        .auth(Auth::Plain {
            username: uri.authority.userinfo.username,
            password: uri.authority.userinfo.password,
        })
        .virtual_host(uri.vhost);
    let stream = mio::net::TcpStream::from_stream(stream)?;
    Ok(Connection::insecure_open_stream(
        stream,
        options,
        ConnectionTuning::default(),
    )?)
}

fn subscribe<'a>(channel: &'a Channel, queue: &str) -> Result<Consumer<'a>> {
    channel.qos(0, PREFETCH, false)?;
    Ok(channel.basic_consume(queue, ConsumerOptions::default())?)
}

fn delivery(message: ConsumerMessage) -> Result<Delivery> {
    match message {
        ConsumerMessage::Delivery(delivery) => Ok(delivery),
        other => bail!("the consumer ended: {other:?}"),
    }
}

/// Cancels, and reads to the last message: dropping the receiver earlier can end the connection.
fn finish(consumer: Consumer<'_>) -> Result<()> {
    consumer.cancel()?;
    while let Ok(ConsumerMessage::Delivery(_)) = consumer.receiver().recv() {}
    Ok(())
}
