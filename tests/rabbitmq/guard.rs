//! What amiquip cannot survive: texts that are not UTF-8, nesting, other protocols, frames on a
//! closed channel.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use amiquip::{AmqpProperties, AmqpValue, ExchangeType, FieldTable};
use crossbeam_channel::{RecvTimeoutError, Sender, unbounded};
use rungmq::{Ack, Connection, HeaderValue, Message, RetryPolicy, naming};
use serde_json::Value;

use crate::harness::observed::SOON;
use crate::harness::support::Calls;
use crate::harness::wait::{let_pass, timed};
use crate::harness::{BAD, BAD_BYTES, Node, Vhost, secs, table, wait_until};

/// [`BAD`] where there is only text to show it.
const SHOWN: &str = "???";

type Seen = Message<Value>;

#[test]
fn header_that_is_not_utf_8_arrives_and_is_copied_as_bytes() {
    // One retry waits in the consumer, the other on the broker.
    for delay in [0.1, 0.6] {
        let vhost = Vhost::new();
        let raw = vhost.raw();
        raw.classic("q");
        let mq = Connection::open(vhost.url()).unwrap();
        let (seen, deliveries) = unbounded();
        let _consumer = mq
            .consumer("q")
            .retry_policy(RetryPolicy::fixed(3, secs(delay)).unwrap())
            .retry_threshold(secs(0.5))
            .start(move |message: Seen| {
                seen.send(message).unwrap();
                Ack::retry("not yet")
            })
            .unwrap();

        let headers = table([
            ("before", AmqpValue::LongString("é".to_owned())),
            ("k", AmqpValue::LongString(BAD.to_owned())),
            (
                "nested",
                AmqpValue::FieldArray(vec![AmqpValue::FieldTable(table([("k", BAD)]))]),
            ),
            // Behind them, as the wire has it.
            ("x-acemq-attempt", AmqpValue::LongInt(2)),
            ("z", AmqpValue::LongLongInt(7)),
        ]);
        raw.send("q", "1", AmqpProperties::default().with_headers(headers));

        for attempt in [2, 3] {
            let message = deliveries.recv_timeout(secs(10)).unwrap();
            assert_eq!(message.attempt(), attempt);
            let headers = message.headers();
            let bytes = HeaderValue::Bytes(BAD_BYTES.to_vec());
            assert_eq!(headers.get("before").unwrap().as_str(), Some("é"));
            assert_eq!(headers.get("k"), Some(&bytes));
            let nested = [("k", bytes)].into_iter().collect();
            assert_eq!(
                headers.get("nested"),
                Some(&HeaderValue::Array(vec![HeaderValue::Table(nested)]))
            );
            assert_eq!(headers.get("z").unwrap().as_i64(), Some(7));
        }
        let dead = raw.wait_for_get(&naming::dead_letter_queue("q"), secs(10));
        let bytes = AmqpValue::ByteArray(BAD_BYTES.to_vec());
        assert_eq!(dead.header("k"), Some(&bytes));
        assert_eq!(dead.header_text("before"), Some("é"));
        assert_eq!(dead.header_number("x-acemq-attempt"), Some(3));
        assert_eq!(dead.header_number("z"), Some(7));
        assert!(deliveries.is_empty());
    }
}

#[test]
fn routing_key_and_ids_that_are_not_utf_8_are_handled() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.exchange("events", ExchangeType::Topic);
    raw.classic("q");
    raw.bind("q", "events", "#");
    let mq = Connection::open(vhost.url()).unwrap();
    let (seen, deliveries) = unbounded();
    let _consumer = mq
        .consumer("q")
        .retry_policy(RetryPolicy::fixed(2, secs(0.6)).unwrap())
        .retry_threshold(secs(0.5))
        .start(move |message: Seen| {
            let again = message.attempt() < 2;
            seen.send(message).unwrap();
            match again {
                true => Ack::retry("not yet"),
                false => Ack::accept(),
            }
        })
        .unwrap();
    let other = Pinged::start(&vhost, &mq);

    let properties = AmqpProperties::default()
        .with_message_id(BAD.to_owned())
        .with_correlation_id(BAD.to_owned())
        .with_type_(BAD.to_owned())
        .with_app_id(BAD.to_owned());
    for _ in 0..5 {
        raw.publish("events", BAD, "1", properties.clone());
    }
    raw.publish("events", "sound", "2", AmqpProperties::default());

    let (mut first, mut second) = (0, 0);
    while (first, second) != (6, 6) {
        let message = deliveries.recv_timeout(secs(10)).unwrap();
        assert!(!message.redelivered());
        match message.attempt() {
            1 => first += 1,
            _ => second += 1,
        }
        if *message.payload() == 2 {
            assert_eq!(message.original_routing_key(), "sound");
            continue;
        }
        assert_eq!(message.id(), SHOWN);
        assert_eq!(message.original_exchange(), "events");
        assert_eq!(message.original_routing_key(), SHOWN);
        let properties = message.properties();
        for text in [
            &properties.message_id,
            &properties.correlation_id,
            &properties.message_type,
            &properties.app_id,
        ] {
            assert_eq!(text.as_deref(), Some(SHOWN));
        }
    }
    other.noticed_nothing(20);
}

#[test]
fn headers_nested_5_000_deep_are_handled_and_copied_on() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let mq = Connection::open(vhost.url()).unwrap();
    let other = Pinged::start(&vhost, &mq);
    let (seen, deliveries) = unbounded();
    let _consumer = mq
        .consumer("q")
        .start(move |message: Seen| {
            seen.send(message).unwrap();
            Ack::retry("never")
        })
        .unwrap();

    // Writing and dropping them takes the sender a deep stack, too.
    thread::scope(|scope| {
        thread::Builder::new()
            .stack_size(1 << 30)
            .spawn_scoped(scope, || send_nested(&vhost))
            .unwrap();
    });

    let message = deliveries.recv_timeout(secs(30)).unwrap();
    let headers = message.headers();
    assert_eq!(headers.get("z").unwrap().as_i64(), Some(7));
    let mut depth = 1;
    let mut value = headers.get("n").unwrap();
    while let HeaderValue::Table(inner) = value {
        depth += 1;
        value = inner.get("n").unwrap();
    }
    assert_eq!(depth, 32);
    let HeaderValue::Bytes(deeper) = value else {
        panic!("{value:?}");
    };
    assert!(deeper.len() > 30_000, "{}", deeper.len());

    let dead = raw.wait_for_get(&naming::dead_letter_queue("q"), secs(10));
    let mut value = dead.header("n").unwrap();
    while let AmqpValue::FieldTable(inner) = value {
        value = &inner["n"];
    }
    assert_eq!(value, &AmqpValue::ByteArray(deeper.clone()));
    assert_eq!(dead.header_number("z"), Some(7));
    other.noticed_nothing(10);
}

fn send_nested(vhost: &Vhost<'_>) {
    let mut value = AmqpValue::Boolean(true);
    for _ in 0..5_000 {
        value = AmqpValue::FieldTable(table([("n", value)]));
    }
    let headers: FieldTable = table([("n", value), ("z", AmqpValue::LongInt(7))]);
    let properties = AmqpProperties::default().with_headers(headers);
    vhost.raw().send("q", "1", properties);
}

#[test]
fn peer_that_speaks_another_protocol_is_refused() {
    for greeting in [
        &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
        b"H",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"AMQP\x00\x01\x00\x00",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let peer = thread::spawn(move || answer(&listener.accept().unwrap().0, greeting));
        let url = format!("amqp://guest:secret@127.0.0.1:{port}");
        let (refused, time) = timed(|| Connection::open(url));
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("does not speak AMQP"), "{error}");
        assert!(!error.contains("secret"), "{error}");
        // Well before the connect timeout, which would end a wait for more bytes.
        assert!(time < secs(5), "{time:?}");
        peer.join().unwrap();
    }
}

/// Greets, and then waits for the other side to go.
fn answer(mut peer: &TcpStream, greeting: &[u8]) {
    peer.read_exact(&mut [0; 8]).unwrap();
    peer.write_all(greeting).unwrap();
    let _ = peer.read_to_end(&mut Vec::new());
}

#[test]
fn channel_closed_by_the_broker_leaves_other_channels_alone() {
    let node = Node::start();
    // Before any channel opens. A delivery may be held for 3 s, and the channel looks every second.
    node.eval(
        "application:set_env(rabbit, consumer_timeout, 3000), \
         application:set_env(rabbit, channel_tick_interval, 1000)",
    );
    let vhost = Vhost::on(&node);
    let raw = vhost.raw();
    // The more channels die, the surer one of them has deliveries under way.
    let queues = ["busy-1", "busy-2", "busy-3", "busy-4"];
    let connections = || vhost.list_connections(&["pid"]);
    let others = connections();
    let mq = Connection::open(vhost.url()).unwrap();
    let mut ours = connections();
    ours.retain(|connection| !others.contains(connection));
    assert_eq!(ours.len(), 1);
    let other = Pinged::start(&vhost, &mq);

    // Of two handlers one is stuck, and deliveries flow past it, prefetch always full.
    let (release, stuck) = unbounded::<()>();
    let consumers = queues.map(|queue| {
        let stuck = stuck.clone();
        raw.classic(queue);
        raw.send(queue, "\"stuck\"", AmqpProperties::default());
        mq.consumer(queue)
            .concurrency(2)
            .prefetch(100)
            .start(move |message: Seen| {
                if *message.payload() == "stuck" {
                    let _ = stuck.recv_timeout(secs(30));
                }
            })
            .unwrap()
    });
    let flood: Vec<_> = (0..500).map(|n| n.to_string()).collect();
    let timeouts = || node.log().matches("timed out waiting").count();
    let mut floods = 0;
    while timeouts() < queues.len() {
        for queue in queues {
            raw.send_all(queue, &flood, &AmqpProperties::default());
        }
        floods += 1;
        assert!(floods < 500, "the channels are still open");
    }
    let_pass(secs(1));
    other.noticed_nothing(10);
    assert!(
        connections().contains(&ours[0]),
        "the connection is another one"
    );
    drop((release, consumers));
}

/// A second consumer on a connection, which must not notice what happens to the first: one message
/// after the other arrives there, soon, once, and for the first time.
struct Pinged {
    pinger: JoinHandle<()>,
    count: Calls,
    stop: Sender<()>,
}

impl Pinged {
    fn start(vhost: &Vhost<'_>, mq: &Connection) -> Self {
        let raw = vhost.raw();
        raw.classic("pinged");
        let (pinged, pings) = unbounded();
        let consumer = mq
            .consumer("pinged")
            .start(move |message: Message<u32>| {
                pinged
                    .send((*message.payload(), message.redelivered()))
                    .unwrap();
            })
            .unwrap();
        let (stop, stopped) = unbounded();
        let arrived = Calls::default();
        let count = arrived.clone();
        let pinger = thread::spawn(move || {
            let mut count = 0_u32;
            while stopped.recv_timeout(secs(0.02)) == Err(RecvTimeoutError::Timeout) {
                raw.send("pinged", count.to_string(), AmqpProperties::default());
                let ping = pings.recv_timeout(secs(10));
                assert_eq!(ping, Ok((count, false)));
                count += 1;
                arrived.add();
            }
            assert!(pings.is_empty());
            assert!(consumer.is_running());
        });
        Self {
            pinger,
            count,
            stop,
        }
    }

    fn noticed_nothing(self, least: usize) {
        wait_until(SOON, "the pings", || {
            self.count.count() >= least || self.pinger.is_finished()
        });
        drop(self.stop);
        self.pinger.join().unwrap();
    }
}
