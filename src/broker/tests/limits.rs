//! Tests of rejection, delivery limits and length limits.

use super::{broker, broker_of, client, confirm, message, publish, queue, text};
use crate::broker::Profile;
use crate::message::headers::{HeaderValue, Headers};
use crate::topology::declaration::Declaration;

#[test]
fn rejected_message_is_dead_lettered_with_its_death() {
    for profile in [Profile::V3_10, Profile::V4_0] {
        let broker = broker_of(profile);
        let (_link, channel) = client(&broker);
        let arguments = [
            ("x-dead-letter-exchange", "dlx"),
            ("x-dead-letter-routing-key", "dead"),
        ];
        let source = Declaration::durable_queue("q", arguments.into_iter().collect());
        for declaration in [
            source,
            queue("dead"),
            Declaration::direct_exchange("dlx"),
            Declaration::bound_by_name("dead", "dlx"),
        ] {
            channel.declare(&declaration).unwrap();
        }
        let mut outgoing = message("", "q", "a");
        outgoing.properties.expiration = Some("60000".to_owned());
        channel.publish(&outgoing).unwrap();
        let tag = channel.get("q").unwrap().unwrap().tag;
        channel.reject(tag).unwrap();
        let dead = channel.get("dead").unwrap().unwrap();
        assert_eq!(
            (dead.exchange.as_str(), dead.routing_key.as_str()),
            ("dlx", "dead")
        );
        assert_eq!(dead.properties.expiration, None);
        assert!(!dead.redelivered);
        let Some(HeaderValue::Array(deaths)) = dead.headers.get("x-death") else {
            panic!("{:?}", dead.headers);
        };
        let [HeaderValue::Table(death)] = &deaths[..] else {
            panic!("{deaths:?}");
        };
        assert_eq!(death.get("count"), Some(&HeaderValue::I64(1)));
        for (field, value) in [
            ("reason", "rejected"),
            ("queue", "q"),
            ("exchange", ""),
            ("original-expiration", "60000"),
        ] {
            assert_eq!(death.get(field), Some(&value.into()), "{field}");
        }
        let keys = HeaderValue::Array(vec!["q".into()]);
        assert_eq!(death.get("routing-keys"), Some(&keys));
        assert!(matches!(death.get("time"), Some(HeaderValue::Timestamp(_))));
        for end in ["reason", "queue", "exchange"] {
            assert!(dead.headers.contains(&format!("x-first-death-{end}")));
            let last = dead.headers.contains(&format!("x-last-death-{end}"));
            assert_eq!(last, profile == Profile::V4_0);
        }
    }
}

#[test]
fn message_over_the_delivery_limit_is_dead_lettered() {
    let broker = broker_of(Profile::V4_0);
    let (_link, channel) = client(&broker);
    let mut arguments: Headers = [
        ("x-queue-type", "quorum"),
        ("x-dead-letter-exchange", ""),
        ("x-dead-letter-routing-key", "dead"),
    ]
    .into_iter()
    .collect();
    arguments.insert("x-delivery-limit", 2);
    let source = Declaration::durable_queue("q", arguments);
    channel.declare(&source).unwrap();
    channel.declare(&queue("dead")).unwrap();
    publish(&*channel, "q", ["a"]);
    for round in 0..3 {
        let pulled = channel.get("q").unwrap();
        let tag = pulled.unwrap_or_else(|| panic!("round {round}")).tag;
        channel.nack(tag).unwrap();
    }
    assert_eq!(channel.count("q"), Ok(0));
    let dead = channel.get("dead").unwrap().unwrap();
    let reason = dead.headers.get("x-first-death-reason");
    assert_eq!(reason, Some(&"delivery_limit".into()));
}

#[test]
fn full_queue_rejects_or_drops_its_head() {
    let broker = broker();
    let (_link, channel) = client(&broker);
    let full = |name: &str, overflow: &str| {
        let mut arguments: Headers = [("x-overflow", overflow)].into_iter().collect();
        arguments.insert("x-max-length", 1);
        Declaration::durable_queue(name, arguments)
    };
    channel.declare(&full("rejects", "reject-publish")).unwrap();
    channel.declare(&full("drops", "drop-head")).unwrap();
    let confirms = channel.confirms().unwrap();
    let mut acks = Vec::new();
    for queue in ["rejects", "rejects", "drops", "drops"] {
        channel
            .publish(&message("", queue, &acks.len().to_string()))
            .unwrap();
        acks.push(confirm(&*confirms).ack);
    }
    assert_eq!(acks, [true, false, true, true]);
    assert_eq!(text(&channel.get("rejects").unwrap().unwrap()), "0");
    assert_eq!(text(&channel.get("drops").unwrap().unwrap()), "3");
}

#[test]
fn full_quorum_queue_rejects_down_to_four_fifths() {
    let broker = broker();
    let (_link, channel) = client(&broker);
    let mut arguments: Headers = [("x-queue-type", "quorum"), ("x-overflow", "reject-publish")]
        .into_iter()
        .collect();
    arguments.insert("x-max-length", 5);
    channel
        .declare(&Declaration::durable_queue("q", arguments))
        .unwrap();
    let confirms = channel.confirms().unwrap();
    let publish = || {
        publish(&*channel, "q", ["a"]);
        confirm(&*confirms).ack
    };
    let take = || {
        let tag = channel.get("q").unwrap().unwrap().tag;
        channel.ack(tag, false).unwrap();
    };
    // The queue notices that it is over its limit one message late.
    let taken: Vec<bool> = (0..7).map(|_| publish()).collect();
    assert_eq!(taken, [true, true, true, true, true, true, false]);
    take();
    assert!(!publish());
    take();
    assert!(publish());
}
