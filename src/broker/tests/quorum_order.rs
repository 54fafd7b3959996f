//! Regression tests for the order in which a quorum queue accepts and delivers messages.

use super::{broker, broker_of, channel, confirm, dial, message, quorum, text};
use crate::broker::Profile;
use crate::message::delivery::Outgoing;
use crate::message::headers::HeaderValue;
use crate::topology::declaration::Declaration;
use crate::transport::Channel;

fn put(channel: &dyn Channel, queue: &str, body: &str, priority: u8) {
    let mut message = message("", queue, body);
    message.properties.priority = Some(priority);
    channel.publish(&message).unwrap();
}

fn pull(channel: &dyn Channel, queue: &str) -> String {
    text(&channel.get(queue).unwrap().expect("nothing is ready"))
}

#[test]
fn purge_resets_the_count_of_taken_messages() {
    for (purges, first) in [(false, "normal"), (true, "high")] {
        let broker = broker_of(Profile::V4_0);
        let mut link = dial(&broker);
        let channel = channel(&mut link);
        channel.declare(&quorum("q")).unwrap();
        for body in ["a", "b"] {
            put(&*channel, "q", body, 0);
            assert_eq!(pull(&*channel, "q"), body);
        }
        if purges {
            assert_eq!(broker.purge("q").unwrap(), 0);
        }
        put(&*channel, "q", "normal", 0);
        put(&*channel, "q", "high", 5);
        assert_eq!(pull(&*channel, "q"), first, "purged: {purges}");
    }
}

/// A queue of length one that dead-letters the message it drops.
fn short(kind: &str, dead: &str) -> Declaration {
    let arguments = [
        ("x-queue-type", kind.into()),
        ("x-max-length", HeaderValue::I64(1)),
        ("x-dead-letter-exchange", "".into()),
        ("x-dead-letter-routing-key", dead.into()),
    ];
    Declaration::durable_queue("short", arguments.into_iter().collect())
}

/// A message for the queue "short" and another one.
fn message_for_both(body: &str, other: &str) -> Outgoing {
    let mut message = message("", "short", body);
    let keys = HeaderValue::Array(vec![other.into()]);
    message.headers = [("BCC", keys)].into_iter().collect();
    message
}

/// The messages of a quorum queue after a queue of that kind dead-lettered "dead" to it, because
/// "new" was published to both.
fn arrived(profile: Profile, kind: &str, has_published: bool) -> Vec<String> {
    let broker = broker_of(profile);
    let (mut link, mut other_link) = (dial(&broker), dial(&broker));
    let (publishing, other) = (channel(&mut link), channel(&mut other_link));
    other.declare(&quorum("q")).unwrap();
    other.declare(&short(kind, "q")).unwrap();
    publishing.publish(&message("", "short", "dead")).unwrap();
    let registered = if has_published { &publishing } else { &other };
    registered.publish(&message("", "q", "old")).unwrap();
    publishing.publish(&message_for_both("new", "q")).unwrap();
    let pulled = std::iter::from_fn(|| other.get("q").unwrap());
    pulled.map(|delivery| text(&delivery)).collect()
}

#[test]
fn classic_dead_letters_precede_a_first_publish() {
    for profile in [Profile::V3_10, Profile::V4_0] {
        for (has_published, order) in [
            (false, ["old", "dead", "new"]),
            (true, ["old", "new", "dead"]),
        ] {
            let arrived = arrived(profile, "classic", has_published);
            assert_eq!(arrived, order, "{profile}, has published: {has_published}");
        }
    }
}

#[test]
fn quorum_dead_letters_follow_a_first_publish() {
    for profile in [Profile::V3_10, Profile::V4_0] {
        let arrived = arrived(profile, "quorum", false);
        assert_eq!(arrived, ["old", "new", "dead"], "{profile}");
    }
}

#[test]
fn dead_letter_during_registration_rejects_nothing() {
    let broker = broker();
    let mut link = dial(&broker);
    let (publishing, other) = (channel(&mut link), channel(&mut link));
    let full = [
        ("x-queue-type", "quorum".into()),
        ("x-max-length", HeaderValue::I64(1)),
        ("x-overflow", "reject-publish".into()),
    ];
    let full = Declaration::durable_queue("q", full.into_iter().collect());
    other.declare(&full).unwrap();
    other.declare(&short("classic", "q")).unwrap();
    other.publish(&message("", "q", "old")).unwrap();
    publishing.publish(&message("", "short", "dead")).unwrap();
    let confirms = publishing.confirms().unwrap();
    for (body, ack) in [("new", true), ("late", false)] {
        publishing.publish(&message_for_both(body, "q")).unwrap();
        assert_eq!(confirm(&*confirms).ack, ack, "{body}");
    }
}
