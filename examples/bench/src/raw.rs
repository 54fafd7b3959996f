//! amiquip by hand: what a careful person writes without rungmq, one thread, no reconnection, no deadlines.

use crate::{Bench, IN_FLIGHT, PREFETCH, Queues, per_second};
use amiquip::{
    AmqpProperties, AmqpValue, Auth, Channel, Confirm, Connection, ConnectionOptions,
    ConnectionTuning, Consumer, ConsumerMessage, ConsumerOptions, Delivery, FieldTable, Publish,
    QueueDeclareOptions, QueueDeleteOptions, Return,
};
use anyhow::{Context, Result, bail, ensure};
use crossbeam_channel::{Receiver, never, select};
use lapin::uri::AMQPUri;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::Instant;

/// One acknowledgement a message, in the thread that receives.
pub(crate) fn consume(bench: &Bench, queues: &Queues, messages: usize) -> Result<f64> {
    let mut connection = connect(&bench.url)?;
    let channel = connection.open_channel(None)?;
    let consumer = subscribe(&channel, &queues.source)?;
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

/// Publish, wait for the confirm, acknowledge; then the next one.
pub(crate) fn retry_serial(bench: &Bench, queues: &Queues, messages: usize) -> Result<f64> {
    retry(bench, queues, messages, 1)
}

/// The same with up to 256 copies unconfirmed. Two channels on one connection: a second connection was 10 % slower.
pub(crate) fn retry_in_flight(bench: &Bench, queues: &Queues, messages: usize) -> Result<f64> {
    retry(bench, queues, messages, IN_FLIGHT)
}

fn retry(bench: &Bench, queues: &Queues, messages: usize, in_flight: usize) -> Result<f64> {
    let mut connection = connect(&bench.url)?;
    let channel = connection.open_channel(None)?;
    let copies = Confirmed::open(&mut connection)?;
    let consumer = subscribe(&channel, &queues.source)?;
    let none = never();
    let mut start = None;
    let mut unconfirmed: BTreeMap<u64, Delivery> = BTreeMap::new();
    let mut sent = 0;
    let mut settled = 0;
    while settled < messages {
        let deliveries = if unconfirmed.len() < in_flight {
            consumer.receiver()
        } else {
            &none
        };
        select! {
            recv(deliveries) -> message => {
                let delivery = delivery(message?)?;
                start.get_or_insert_with(Instant::now);
                copies.publish(&queues.copies, &delivery.body, delivery.properties.clone(), true)?;
                sent += 1;
                unconfirmed.insert(sent, delivery);
            }
            recv(copies.confirms) -> confirm => {
                for delivery in copies.covered(confirm?, &mut unconfirmed)? {
                    delivery.ack(&channel)?;
                    settled += 1;
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

/// Publish, wait for the confirm; then the next one.
pub(crate) fn publish_serial(bench: &Bench, queues: &Queues, messages: usize) -> Result<f64> {
    publish(bench, queues, messages, 1)
}

/// The same with up to 256 messages unconfirmed.
pub(crate) fn publish_in_flight(bench: &Bench, queues: &Queues, messages: usize) -> Result<f64> {
    publish(bench, queues, messages, IN_FLIGHT)
}

fn publish(bench: &Bench, queues: &Queues, messages: usize, in_flight: usize) -> Result<f64> {
    let mut connection = connect(&bench.url)?;
    let publisher = Confirmed::open(&mut connection)?;
    let start = Instant::now();
    publisher.publish_all(&queues.source, bench.body.as_bytes(), messages, in_flight)?;
    let rate = per_second(messages, start);
    publisher.channel.close()?;
    connection.close()?;
    Ok(rate)
}

/// Makes, fills and deletes the queues, for every side alike.
pub(crate) struct Admin {
    channel: Channel,
    publisher: Confirmed,
    sent: u64,
    _connection: Connection,
}

impl Admin {
    pub(crate) fn open(url: &str) -> Result<Self> {
        let mut connection = connect(url)?;
        Ok(Self {
            channel: connection.open_channel(None)?,
            publisher: Confirmed::open(&mut connection)?,
            sent: 0,
            _connection: connection,
        })
    }

    pub(crate) fn declare(&mut self, queues: &Queues) -> Result<()> {
        let durable = || QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        self.channel.queue_declare(&queues.source, durable())?;
        self.channel.queue_declare(&queues.copies, durable())?;
        Ok(())
    }

    pub(crate) fn fill(&mut self, queue: &str, body: &[u8], messages: usize) -> Result<()> {
        self.sent = self
            .publisher
            .publish_more(queue, body, messages, IN_FLIGHT, self.sent)?;
        Ok(())
    }

    /// With the queues a rungmq consumer declares beside its own. Deleting a queue that does not exist is no error.
    pub(crate) fn delete(&mut self, queues: &Queues) -> Result<()> {
        let set_aside = ["dlq", "parked"].map(|suffix| format!("{}.{suffix}", queues.source));
        for queue in [&queues.source, &queues.copies]
            .into_iter()
            .chain(&set_aside)
        {
            self.channel
                .queue_delete(queue, QueueDeleteOptions::default())?;
        }
        Ok(())
    }
}

/// A channel in confirm mode, with its listeners.
struct Confirmed {
    channel: Channel,
    confirms: Receiver<Confirm>,
    returns: Receiver<Return>,
}

impl Confirmed {
    fn open(connection: &mut Connection) -> Result<Self> {
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

    fn publish_all(
        &self,
        queue: &str,
        body: &[u8],
        messages: usize,
        in_flight: usize,
    ) -> Result<()> {
        self.publish_more(queue, body, messages, in_flight, 0)?;
        Ok(())
    }

    /// `sent` messages were published on this channel before; returns how many are now.
    fn publish_more(
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

    /// Takes what a confirm settles out of `unconfirmed`. A return comes before its confirm.
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

fn connect(url: &str) -> Result<Connection> {
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

/// What rungmq writes: the same bytes on the wire on every side.
fn properties(number: u64) -> AmqpProperties {
    let id = format!("00000000-0000-4000-8000-{number:012}");
    let text = |text: &str| AmqpValue::LongString(text.into());
    let mut headers = FieldTable::default();
    let mut header = |name: &str, value| headers.insert(name.into(), value);
    header("x-acemq-id", text(&id));
    header("x-acemq-type", text("bench.message"));
    header("x-acemq-version", AmqpValue::LongInt(1));
    header("x-acemq-correlation", text(&id));
    header("x-acemq-attempt", AmqpValue::LongInt(1));
    header(
        "x-acemq-first-seen",
        AmqpValue::LongLongInt(1_700_000_000_000),
    );
    header("x-acemq-origin", text("bench@localhost"));
    AmqpProperties::default()
        .with_delivery_mode(2)
        .with_content_type("application/json".into())
        .with_message_id(id)
        .with_headers(headers)
}
