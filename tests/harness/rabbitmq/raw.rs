//! A client of its own for tests: it looks at the broker past the library under test.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use amiquip::{
    AmqpProperties, Auth, Channel, Confirm, Connection, ConnectionOptions, ConnectionTuning,
    ConsumerMessage, ConsumerOptions, ExchangeDeclareOptions, ExchangeType, FieldTable, Publish,
    QueueDeclareOptions, QueueDeleteOptions, Return,
};
use crossbeam_channel::Receiver;
use mio::event::Evented;
use mio::{Poll, PollOpt, Ready, Token};
use parking_lot::Mutex;

use super::got::{Got, table};
use super::wait::wait_for_value;

/// A character that [`Raw`] puts on the wire as [`BAD_BYTES`]: text that is not UTF-8, for any
/// name, key, id or header.
pub const BAD: &str = "\u{FDD0}";

/// What becomes of [`BAD`].
pub const BAD_BYTES: [u8; 3] = [0xFF, 0xFE, 0xFD];

/// How long the broker may take for an answer.
const LIMIT: Duration = Duration::from_secs(20);

/// A connection with one channel in confirm mode. All methods panic when the broker says no.
///
/// Every publish is confirmed before the call returns. Dropping it cuts the socket, so that a
/// broker that is frozen or gone cannot hold a test up.
pub struct Raw {
    // Dropped in this order, after the socket was shut down.
    channel: Channel,
    confirms: Receiver<Confirm>,
    returns: Receiver<Return>,
    connection: RefCell<Connection>,
    socket: TcpStream,
    published: Cell<u64>,
    unsettled: RefCell<BTreeSet<u64>>,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Raw {
    /// Connects to an `amqp://user:password@host:port/vhost` URL, as [`super::Vhost::url`] and its
    /// like make them.
    #[track_caller]
    pub fn open(url: &str) -> Self {
        Self::try_open(url).unwrap_or_else(|error| panic!("raw client to {url}: {error}"))
    }

    /// The same for a broker that may be down.
    pub fn try_open(url: &str) -> Result<Self, Box<dyn Error>> {
        let target = Target::parse(url);
        let socket = TcpStream::connect_timeout(&target.address, LIMIT)?;
        socket.set_nodelay(true).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let stream = Stream {
            inner: mio::net::TcpStream::from_stream(socket.try_clone().unwrap()).unwrap(),
            seen: Arc::clone(&seen),
        };
        let options = ConnectionOptions::default()
            .auth(Auth::Plain {
                username: target.user,
                password: target.password,
            })
            .virtual_host(target.vhost)
            .heartbeat(0)
            .connection_timeout(Some(LIMIT));
        let mut connection =
            Connection::insecure_open_stream(stream, options, ConnectionTuning::default())?;
        let channel = connection.open_channel(None)?;
        let confirms = channel.listen_for_publisher_confirms()?;
        let returns = channel.listen_for_returns()?;
        channel.enable_publisher_confirms()?;
        Ok(Self {
            channel,
            confirms,
            returns,
            connection: RefCell::new(connection),
            socket,
            published: Cell::new(0),
            unsettled: RefCell::default(),
            seen,
        })
    }

    // Queues

    /// Declares a durable queue with `arguments`.
    #[track_caller]
    pub fn queue(&self, name: &str, arguments: FieldTable) {
        let options = QueueDeclareOptions {
            durable: true,
            arguments,
            ..Default::default()
        };
        self.channel.queue_declare(name, options).unwrap();
    }

    /// Declares a durable classic queue without arguments.
    #[track_caller]
    pub fn classic(&self, name: &str) {
        self.queue(name, FieldTable::new());
    }

    /// Declares a quorum queue.
    #[track_caller]
    pub fn quorum(&self, name: &str) {
        self.queue(name, table([("x-queue-type", "quorum")]));
    }

    /// Deletes a queue with whatever is in it.
    #[track_caller]
    pub fn delete_queue(&self, name: &str) {
        self.channel
            .queue_delete(name, QueueDeleteOptions::default())
            .unwrap();
    }

    /// Throws away what is ready in a queue; returns how many messages that were.
    #[track_caller]
    pub fn purge(&self, queue: &str) -> u32 {
        self.channel.queue_purge(queue).unwrap()
    }

    /// Whether there is such a queue.
    #[track_caller]
    pub fn exists(&self, queue: &str) -> bool {
        self.try_count(queue).is_some()
    }

    /// How many messages are ready in a queue (unacknowledged ones are not).
    #[track_caller]
    pub fn count(&self, queue: &str) -> u32 {
        self.try_count(queue)
            .unwrap_or_else(|| panic!("there is no queue {queue}"))
    }

    /// The same; `None` when there is no such queue.
    #[track_caller]
    pub fn try_count(&self, queue: &str) -> Option<u32> {
        self.declared(queue).map(|(messages, _)| messages)
    }

    /// How many consumers a queue has.
    #[track_caller]
    pub fn consumers(&self, queue: &str) -> u32 {
        self.declared(queue)
            .unwrap_or_else(|| panic!("there is no queue {queue}"))
            .1
    }

    /// Waits until a queue has exactly `n` ready messages.
    #[track_caller]
    pub fn wait_for_count(&self, queue: &str, n: u32, limit: Duration) {
        wait_for_value(limit, &format!("the count of {queue}"), &Some(n), || {
            self.try_count(queue)
        });
    }

    /// Waits until a queue has exactly `n` consumers.
    #[track_caller]
    pub fn wait_for_consumers(&self, queue: &str, n: u32, limit: Duration) {
        wait_for_value(
            limit,
            &format!("the consumers of {queue}"),
            &Some(n),
            || self.declared(queue).map(|(_, consumers)| consumers),
        );
    }

    /// Messages and consumers. On a channel of its own: when the queue is missing the broker closes
    /// it.
    #[track_caller]
    fn declared(&self, queue: &str) -> Option<(u32, u32)> {
        let channel = self.throwaway();
        match channel.queue_declare_passive(queue) {
            Ok(queue) => Some((
                queue.declared_message_count().unwrap(),
                queue.declared_consumer_count().unwrap(),
            )),
            Err(amiquip::Error::ServerClosedChannel { code: 404, .. }) => None,
            Err(error) => panic!("count of {queue}: {error}"),
        }
    }

    // Exchanges

    /// Declares a durable exchange.
    #[track_caller]
    pub fn exchange(&self, name: &str, kind: ExchangeType) {
        let options = ExchangeDeclareOptions {
            durable: true,
            ..Default::default()
        };
        self.channel.exchange_declare(kind, name, options).unwrap();
    }

    /// Deletes an exchange.
    #[track_caller]
    pub fn delete_exchange(&self, name: &str) {
        self.channel.exchange_delete(name, false).unwrap();
    }

    /// Whether there is such an exchange.
    #[track_caller]
    pub fn exchange_exists(&self, name: &str) -> bool {
        match self.throwaway().exchange_declare_passive(name) {
            Ok(_) => true,
            Err(amiquip::Error::ServerClosedChannel { code: 404, .. }) => false,
            Err(error) => panic!("check of {name}: {error}"),
        }
    }

    /// Binds a queue to an exchange.
    #[track_caller]
    pub fn bind(&self, queue: &str, exchange: &str, routing_key: &str) {
        self.channel
            .queue_bind(queue, exchange, routing_key, FieldTable::new())
            .unwrap();
    }

    /// Removes a binding.
    #[track_caller]
    pub fn unbind(&self, queue: &str, exchange: &str, routing_key: &str) {
        self.channel
            .queue_unbind(queue, exchange, routing_key, FieldTable::new())
            .unwrap();
    }

    /// Binds an exchange to another one.
    #[track_caller]
    pub fn bind_exchange(&self, destination: &str, source: &str, routing_key: &str) {
        self.channel
            .exchange_bind(destination, source, routing_key, FieldTable::new())
            .unwrap();
    }

    // Messages in

    /// Publishes straight to a queue, with the properties given; waits for the confirm.
    #[track_caller]
    pub fn send(&self, queue: &str, body: impl AsRef<[u8]>, properties: AmqpProperties) {
        self.publish("", queue, body, properties);
    }

    /// Publishes and waits for the confirm; panics when it is a nack. What no queue takes is
    /// dropped.
    #[track_caller]
    pub fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        body: impl AsRef<[u8]>,
        properties: AmqpProperties,
    ) {
        let acked = self.try_publish(exchange, routing_key, body, properties);
        assert!(
            acked,
            "the broker refused a message to {exchange:?} {routing_key:?}"
        );
    }

    /// Publishes and waits for the confirm: true for an ack, false for a nack.
    #[track_caller]
    pub fn try_publish(
        &self,
        exchange: &str,
        routing_key: &str,
        body: impl AsRef<[u8]>,
        properties: AmqpProperties,
    ) -> bool {
        self.write(exchange, routing_key, body.as_ref(), properties);
        self.await_confirms(LIMIT).expect("a confirm in time")
    }

    /// Publishes all bodies straight to a queue, pipelined; returns when all are confirmed.
    #[track_caller]
    pub fn send_all<B: AsRef<[u8]>>(
        &self,
        queue: &str,
        bodies: impl IntoIterator<Item = B>,
        properties: &AmqpProperties,
    ) {
        for body in bodies {
            self.write("", queue, body.as_ref(), properties.clone());
        }
        let acked = self
            .await_confirms(LIMIT * 3)
            .expect("all confirms in time");
        assert!(acked, "the broker refused a message to {queue}");
    }

    /// Publishes and waits only `limit` for the confirm: for a broker that may be blocked. `None`
    /// is no answer. The connection is of no use for publishing after that.
    #[track_caller]
    pub fn publish_within(&self, limit: Duration, queue: &str, body: &[u8]) -> Option<bool> {
        self.write("", queue, body, AmqpProperties::default());
        self.await_confirms(limit)
    }

    /// Publishes with the mandatory flag; whether it came back because no queue takes it.
    #[track_caller]
    pub fn comes_back(&self, exchange: &str, routing_key: &str) -> bool {
        let publish = Publish {
            mandatory: true,
            ..Publish::new(b"", routing_key)
        };
        self.write_as(exchange, publish);
        self.await_confirms(LIMIT).expect("a confirm in time");
        self.returns.try_recv().is_ok()
    }

    /// Publishes a request and waits for the answer on direct reply-to; `None` when there is none
    /// within `limit`.
    #[track_caller]
    pub fn request(
        &self,
        queue: &str,
        body: impl AsRef<[u8]>,
        properties: AmqpProperties,
        limit: Duration,
    ) -> Option<Got> {
        const REPLY_TO: &str = "amq.rabbitmq.reply-to";
        let options = ConsumerOptions {
            no_ack: true,
            ..Default::default()
        };
        let consumer = self.channel.basic_consume(REPLY_TO, options).unwrap();
        self.send(queue, body, properties.with_reply_to(REPLY_TO.to_owned()));
        let answer = consumer.receiver().recv_timeout(limit);
        let got = match answer {
            Ok(ConsumerMessage::Delivery(delivery)) => Some(delivery.into()),
            Ok(other) => panic!("the requester got {other:?}"),
            Err(_) => None,
        };
        consumer.cancel().unwrap();
        while matches!(consumer.receiver().recv(), Ok(ConsumerMessage::Delivery(_))) {}
        got
    }

    #[track_caller]
    fn write(&self, exchange: &str, routing_key: &str, body: &[u8], properties: AmqpProperties) {
        self.write_as(
            exchange,
            Publish::with_properties(body, routing_key, properties),
        );
    }

    #[track_caller]
    fn write_as(&self, exchange: &str, publish: Publish<'_>) {
        self.channel.basic_publish(exchange, publish).unwrap();
        self.published.set(self.published.get() + 1);
        self.unsettled.borrow_mut().insert(self.published.get());
    }

    /// Waits until everything written is settled: whether nothing was refused, or `None` when it
    /// takes too long.
    #[track_caller]
    fn await_confirms(&self, limit: Duration) -> Option<bool> {
        let deadline = crossbeam_channel::after(limit);
        let mut unsettled = self.unsettled.borrow_mut();
        let mut acked = true;
        while !unsettled.is_empty() {
            let confirm = crossbeam_channel::select! {
                recv(self.confirms) -> confirm => confirm.expect("the connection lives"),
                recv(deadline) -> _ => return None,
            };
            let (payload, ack) = match confirm {
                Confirm::Ack(payload) => (payload, true),
                Confirm::Nack(payload) => (payload, false),
            };
            acked &= ack;
            if payload.multiple {
                *unsettled = unsettled.split_off(&(payload.delivery_tag + 1));
            } else {
                unsettled.remove(&payload.delivery_tag);
            }
        }
        Some(acked)
    }

    // Messages out

    /// Takes the first message out of a queue.
    #[track_caller]
    pub fn get(&self, queue: &str) -> Option<Got> {
        self.channel
            .basic_get(queue, true)
            .unwrap()
            .map(|got| got.delivery.into())
    }

    /// Takes the first message out of a queue, as soon as there is one.
    #[track_caller]
    pub fn wait_for_get(&self, queue: &str, limit: Duration) -> Got {
        super::wait::wait_for(limit, &format!("a message in {queue}"), || self.get(queue))
    }

    /// Takes all ready messages out of a queue.
    #[track_caller]
    pub fn drain(&self, queue: &str) -> Vec<Got> {
        std::iter::from_fn(|| self.get(queue)).collect()
    }

    /// All ready messages of a queue, which stay in it; they are marked redelivered from then on.
    #[track_caller]
    pub fn browse(&self, queue: &str) -> Vec<Got> {
        let channel = self.throwaway();
        let next = || {
            channel
                .basic_get(queue, false)
                .unwrap()
                .map(|got| got.delivery.into())
        };
        let all = std::iter::from_fn(next).collect();
        // The broker puts them back when the channel closes.
        channel.close().unwrap();
        all
    }

    /// Consumes from a queue for as long as this connection lives, alone, and acknowledges nothing.
    #[track_caller]
    pub fn occupy(&self, queue: &str) {
        let options = ConsumerOptions {
            exclusive: true,
            ..Default::default()
        };
        // Dropped, a consumer would cancel itself.
        std::mem::forget(self.channel.basic_consume(queue, options).unwrap());
    }

    // Refusals

    /// Does something that the broker may refuse, on a channel of its own; the reply code of a
    /// refusal.
    #[track_caller]
    pub fn attempt<T>(&self, work: impl FnOnce(&Channel) -> amiquip::Result<T>) -> Result<T, u16> {
        match work(&self.throwaway()) {
            Ok(value) => Ok(value),
            Err(amiquip::Error::ServerClosedChannel { code, .. }) => Err(code),
            Err(error) => panic!("neither done nor refused: {error}"),
        }
    }

    // The wire

    /// Every byte the broker sent so far: for what no client library shows.
    pub fn seen(&self) -> Vec<u8> {
        self.seen.lock().clone()
    }

    /// Whether the broker sent these bytes.
    pub fn has_seen(&self, bytes: &[u8]) -> bool {
        self.seen
            .lock()
            .windows(bytes.len())
            .any(|window| window == bytes)
    }

    /// Cuts the socket, as a crash of the client would.
    pub fn cut(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    #[track_caller]
    fn throwaway(&self) -> Channel {
        self.connection.borrow_mut().open_channel(None).unwrap()
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Raw")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.cut();
    }
}

impl From<amiquip::Delivery> for Got {
    fn from(delivery: amiquip::Delivery) -> Self {
        Self {
            exchange: delivery.exchange,
            routing_key: delivery.routing_key,
            redelivered: delivery.redelivered,
            properties: delivery.properties,
            body: delivery.body,
        }
    }
}

/// The URL of a broker on 127.0.0.1; everything but letters, digits, `-` and `_` is escaped.
pub(super) fn url(user: &str, password: &str, port: u16, vhost: &str) -> String {
    let [user, password, vhost] = [user, password, vhost].map(|part| {
        part.bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => {
                    char::from(byte).to_string()
                }
                _ => format!("%{byte:02x}"),
            })
            .collect::<String>()
    });
    format!("amqp://{user}:{password}@127.0.0.1:{port}/{vhost}")
}

/// The parts of a URL.
struct Target {
    user: String,
    password: String,
    address: SocketAddr,
    vhost: String,
}

impl Target {
    fn parse(url: &str) -> Self {
        let parts = || {
            let (user, rest) = url.strip_prefix("amqp://")?.split_once(':')?;
            let (password, rest) = rest.split_once('@')?;
            let (address, vhost) = rest.split_once('/')?;
            Some(Self {
                user: unescape(user)?,
                password: unescape(password)?,
                address: address.parse().ok()?,
                vhost: unescape(vhost)?,
            })
        };
        parts().unwrap_or_else(|| panic!("no URL the harness makes: {url}"))
    }
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            _ => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// A socket that spoils what it is asked to on the way out, and keeps what comes in.
struct Stream {
    inner: mio::net::TcpStream,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.seen.lock().extend_from_slice(&buffer[..n]);
        Ok(n)
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        // BAD is as long as BAD_BYTES. One that a short write cuts in two would stay half whole;
        // sockets take small messages in one piece.
        let mut spoilt = buffer.to_vec();
        let mut from = 0;
        while let Some(at) = spoilt[from..]
            .windows(BAD.len())
            .position(|part| part == BAD.as_bytes())
        {
            spoilt[from + at..from + at + BAD.len()].copy_from_slice(&BAD_BYTES);
            from += at + BAD.len();
        }
        self.inner.write(&spoilt)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl amiquip::IoStream for Stream {}

impl Evented for Stream {
    fn register(
        &self,
        poll: &Poll,
        token: Token,
        interest: Ready,
        opts: PollOpt,
    ) -> io::Result<()> {
        self.inner.register(poll, token, interest, opts)
    }

    fn reregister(
        &self,
        poll: &Poll,
        token: Token,
        interest: Ready,
        opts: PollOpt,
    ) -> io::Result<()> {
        self.inner.reregister(poll, token, interest, opts)
    }

    fn deregister(&self, poll: &Poll) -> io::Result<()> {
        Evented::deregister(&self.inner, poll)
    }
}
