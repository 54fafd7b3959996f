//! Tests that copies carry what belongs to the message, reach only its own queue, and keep its
//! original address.

use amiquip::{AmqpProperties, AmqpValue, FieldTable};
use amq_protocol_types::DecimalValue;
use rungmq::{Ack, Connection, HeaderValue, Message, Properties, naming};
use serde_json::Value;

use super::{LIMIT, LONG_RUNG, Q, Seen, Stage, THRESHOLD, by_long_rung, by_rung, soon};
use crate::harness::{Got, Node, Raw, Vhost, table};

/// A header of every type there is, nested ones included.
fn every_type() -> FieldTable {
    use AmqpValue as V;
    let flat = || {
        table([
            ("bool", V::Boolean(false)),
            ("i8", V::ShortShortInt(i8::MIN)),
            ("u8", V::ShortShortUInt(u8::MAX)),
            ("i16", V::ShortInt(i16::MIN)),
            ("u16", V::ShortUInt(u16::MAX)),
            ("i32", V::LongInt(i32::MIN)),
            ("u32", V::LongUInt(u32::MAX)),
            ("i64", V::LongLongInt(i64::MIN)),
            ("f32", V::Float(1.5)),
            ("f64", V::Double(-0.1)),
            (
                "decimal",
                V::DecimalValue(DecimalValue {
                    scale: 2,
                    value: 314,
                }),
            ),
            ("text", V::LongString("déjà vu".to_owned())),
            ("empty", V::LongString(String::new())),
            ("bytes", V::ByteArray(vec![0, 0xFF, 0xFE])),
            ("timestamp", V::Timestamp(1_700_000_000)),
            ("void", V::Void),
        ])
    };
    let mut headers = flat();
    headers.insert("table".to_owned(), V::FieldTable(flat()));
    let array: Vec<_> = flat()
        .into_values()
        .chain([V::FieldTable(flat())])
        .collect();
    headers.insert("array".to_owned(), V::FieldArray(array));
    headers.insert("empty table".to_owned(), V::FieldTable(FieldTable::new()));
    headers.insert("empty array".to_owned(), V::FieldArray(Vec::new()));
    headers
}

fn full(delivery_mode: u8) -> AmqpProperties {
    AmqpProperties::default()
        .with_content_type("application/json".to_owned())
        .with_content_encoding("identity".to_owned())
        .with_delivery_mode(delivery_mode)
        .with_priority(7)
        .with_correlation_id("correlation".to_owned())
        .with_reply_to("replies".to_owned())
        .with_message_id("id-1".to_owned())
        .with_timestamp(1_700_000_000)
        .with_type_("order".to_owned())
        .with_app_id("shop".to_owned())
        .with_headers(every_type())
}

/// What the handler saw at one hop.
#[derive(Clone, Debug, PartialEq)]
struct Hop {
    attempt: u32,
    properties: Properties,
    headers: rungmq::Headers,
}

impl Hop {
    fn of(message: &Message<Value>) -> Self {
        Self {
            attempt: message.attempt(),
            properties: message.properties().clone(),
            headers: message.headers().clone(),
        }
    }
}

/// Checks what every kind of copy must have.
#[track_caller]
fn assert_carried(copy: &Got, attempt: i32) {
    let properties = &copy.properties;
    let expected = full(2);
    assert_eq!(properties.content_type(), expected.content_type());
    assert_eq!(properties.content_encoding(), expected.content_encoding());
    assert_eq!(properties.delivery_mode(), &Some(2), "persistent always");
    assert_eq!(properties.priority(), &Some(7));
    assert_eq!(properties.correlation_id(), expected.correlation_id());
    assert_eq!(properties.reply_to(), expected.reply_to());
    assert_eq!(properties.message_id(), expected.message_id());
    assert_eq!(properties.timestamp(), expected.timestamp());
    assert_eq!(properties.type_(), expected.type_());
    assert_eq!(properties.app_id(), expected.app_id());
    assert_eq!(properties.expiration(), &None);
    assert_eq!(properties.user_id(), &None);
    for (name, value) in every_type() {
        assert_eq!(copy.header(&name), Some(&value), "{name}");
    }
    assert_eq!(
        copy.header("x-acemq-attempt"),
        Some(&AmqpValue::LongInt(attempt))
    );
    assert_eq!(copy.header_text("x-acemq-id"), Some("id-1"));
    assert_eq!(copy.text(), "1");
}

/// A message with all properties passes through rungs into the dead-letter queue.
fn goes_through_everything(delivery_mode: u8) {
    let stage = Stage::classic();
    stage.raw.send(Q, "1", full(delivery_mode));
    let hops = stage.retrying(&by_rung(4), Hop::of);
    let dead = stage.dead();
    assert_carried(&dead, 4);
    let hops = hops.all();
    assert_eq!(
        hops.iter().map(|hop| hop.attempt).collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
    let first = &hops[0];
    assert_eq!(first.properties.delivery_mode, Some(delivery_mode));
    for hop in &hops[1..] {
        let mut expected = first.properties.clone();
        expected.delivery_mode = Some(2);
        assert_eq!(hop.properties, expected, "attempt {}", hop.attempt);
        for (name, value) in first.headers.iter() {
            assert_eq!(hop.headers.get(name), Some(value), "{name}");
        }
    }
    assert_eq!(
        first.headers.get("u8"),
        Some(&HeaderValue::U8(u8::MAX)),
        "and the handler gets the types that came"
    );
}

#[test]
fn transient_message_becomes_persistent_in_rungs_unchanged() {
    goes_through_everything(1);
}

#[test]
fn a_persistent_message_keeps_everything_through_rungs() {
    goes_through_everything(2);
}

#[test]
fn a_copy_lies_in_its_rung_with_everything_it_came_with() {
    let stage = Stage::classic();
    stage.raw.send(Q, "1", full(1));
    stage
        .consumer(&by_long_rung(2))
        .start(|_: Message<Value>| Ack::retry("no stock"))
        .unwrap();
    let rung = stage.raw.wait_for_get(LONG_RUNG, LIMIT);
    assert_carried(&rung, 2);
    assert_eq!(rung.header("x-acemq-error"), None, "a retry is no end");
}

#[test]
fn short_retry_and_parked_copy_keep_all_properties() {
    let stage = Stage::classic();
    stage.raw.send(Q, "1", full(1));
    let hops = Seen::default();
    let seen = hops.clone();
    stage
        .consumer(&soon(2))
        .start(move |message: Message<Value>| {
            seen.push(Hop::of(&message));
            if message.attempt() == 1 {
                Ack::retry("no stock")
            } else {
                Ack::park("who is this?")
            }
        })
        .unwrap();
    let parked = stage.parked();
    assert_carried(&parked, 2);
    let hops = hops.all();
    assert_eq!(hops[1].attempt, 2);
    for (name, value) in hops[0].headers.iter() {
        assert_eq!(hops[1].headers.get(name), Some(value), "{name}");
    }
}

#[test]
fn what_belongs_to_the_journey_stays_behind() {
    let stage = Stage::classic();
    stage.raw.classic("elsewhere");
    let headers = table([
        (
            "CC",
            AmqpValue::FieldArray(vec![AmqpValue::LongString("elsewhere".to_owned())]),
        ),
        ("x-first-death-queue", AmqpValue::LongString("q".to_owned())),
        ("x-last-death-reason", AmqpValue::LongString("r".to_owned())),
        ("x-delivery-count", AmqpValue::LongLongInt(3)),
        ("tenant", AmqpValue::LongString("acme".to_owned())),
    ]);
    let properties = AmqpProperties::default()
        .with_expiration("600000".to_owned())
        .with_user_id("guest".to_owned())
        .with_cluster_id("cluster".to_owned())
        .with_headers(headers);
    stage.raw.send(Q, "1", properties);
    assert_eq!(stage.raw.count("elsewhere"), 1, "CC works");
    stage
        .consumer(&by_long_rung(2))
        .start(|_: Message<Value>| Ack::retry("no stock"))
        .unwrap();
    let rung = stage.raw.wait_for_get(LONG_RUNG, LIMIT);
    for gone in [
        "CC",
        "x-first-death-queue",
        "x-last-death-reason",
        "x-delivery-count",
        "x-death",
    ] {
        assert_eq!(rung.header(gone), None, "{gone}");
    }
    assert_eq!(rung.header_text("tenant"), Some("acme"));
    for gone in [
        rung.properties.expiration(),
        rung.properties.user_id(),
        rung.properties.cluster_id(),
    ] {
        assert_eq!(gone, &None);
    }
    assert_eq!(stage.raw.count("elsewhere"), 1, "nothing fanned out again");
}

#[test]
fn the_brokers_own_record_of_a_rung_stays_behind() {
    let stage = Stage::classic();
    stage.send("1");
    let headers = stage.retrying(&by_rung(2), |message| message.headers().contains("x-death"));
    let dead = stage.dead();
    assert_eq!(headers.all(), [false, true], "the rung adds it");
    for name in dead.properties.headers().as_ref().unwrap().keys() {
        assert!(!name.contains("death"), "{name}");
    }
}

#[test]
fn a_message_goes_round_the_same_rung_many_times() {
    // RabbitMQ 3.x drops a message without a word when it takes it for a dead-letter cycle.
    let stage = Stage::new();
    stage.send("1");
    let policy = rungmq::RetryPolicy::fixed(6, THRESHOLD).unwrap();
    let attempts = stage.retrying(&policy, Message::attempt);
    assert_eq!(stage.dead().header_number("x-acemq-attempt"), Some(6));
    assert_eq!(attempts.all(), [1, 2, 3, 4, 5, 6]);
    stage.settled(&[("retried", 5), ("dead_lettered", 1)]);
}

/// The copies survive a restart, even those of a transient message.
#[test]
fn copies_survive_a_restart_of_the_broker() {
    let node = Node::start();
    let vhost = Vhost::on(&node);
    let raw = vhost.raw();
    raw.classic(Q);
    let mq = Connection::builder(vhost.url())
        .retry_threshold(THRESHOLD)
        .open()
        .unwrap();
    for body in ["1", "2", "3"] {
        let transient = AmqpProperties::default().with_delivery_mode(1);
        raw.send(Q, body, transient);
    }
    mq.consumer(Q)
        .retry_policy(by_long_rung(2))
        .start(|message: Message<u32>| match message.payload() {
            1 => Ack::retry("no stock"),
            2 => Ack::reject("no"),
            _ => Ack::park("hm"),
        })
        .unwrap();
    let places = [
        (LONG_RUNG.to_owned(), "1"),
        (naming::dead_letter_queue(Q), "2"),
        (naming::parked_queue(Q), "3"),
    ];
    for (queue, _) in &places {
        raw.wait_for_count(queue, 1, LIMIT);
    }
    mq.close().unwrap();
    drop(raw);
    node.restart();
    let raw = Raw::open(&vhost.url());
    for (queue, body) in &places {
        assert_eq!(raw.wait_for_get(queue, LIMIT).text(), *body, "{queue}");
    }
}
