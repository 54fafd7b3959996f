//! What may be published.

use super::*;
use std::sync::Arc;

fn outgoing() -> Outgoing {
    Outgoing {
        exchange: "e".to_owned(),
        routing_key: "k".to_owned(),
        mandatory: false,
        properties: Properties::default(),
        headers: Headers::new(),
        body: Arc::default(),
    }
}

fn code(outgoing: &Outgoing, profile: Profile) -> Option<u16> {
    Message::published(outgoing, profile)
        .err()
        .map(|refusal| refusal.code)
}

#[test]
fn times_to_live_are_read_as_rabbitmq_reads_them() {
    for (text, expected) in [
        ("0", Some(0)),
        ("+5", Some(5)),
        ("007", Some(7)),
        ("315360000000", Some(315_360_000_000)),
        ("315360000001", None),
        ("99999999999999999999999999999999999999999999", None),
        ("-1", None),
        ("-0", Some(0)),
        ("", None),
        ("+", None),
        ("5 ", None),
        (" 5", None),
        ("5.0", None),
        ("five", None),
    ] {
        assert_eq!(milliseconds(text).ok(), expected, "{text:?}");
    }
}

#[test]
fn nobody_publishes_in_the_name_of_another() {
    let mut outgoing = outgoing();
    outgoing.properties.user_id = Some("guest".to_owned());
    assert_eq!(code(&outgoing, Profile::V3_10), None);
    outgoing.properties.user_id = Some("admin".to_owned());
    assert_eq!(code(&outgoing, Profile::V3_10), Some(406));
}

#[test]
fn a_body_has_a_largest_size() {
    for (profile, largest) in [(Profile::V3_10, 128 << 20), (Profile::V4_0, 16 << 20)] {
        let mut outgoing = outgoing();
        outgoing.body = Arc::new(vec![0; largest]);
        assert_eq!(code(&outgoing, profile), None);
        outgoing.body = Arc::new(vec![0; largest + 1]);
        assert_eq!(code(&outgoing, profile), Some(406));
    }
}

#[test]
fn copies_go_to_more_keys_and_the_blind_ones_are_not_shown() {
    let mut outgoing = outgoing();
    outgoing
        .headers
        .insert("CC", vec!["copy".into(), HeaderValue::I32(1)]);
    outgoing
        .headers
        .insert("BCC", vec![HeaderValue::from("blind")]);
    let message = Message::published(&outgoing, Profile::V3_10).unwrap();
    assert_eq!(message.routing_keys, ["k", "copy", "blind"]);
    assert_eq!(message.blind_keys, ["blind"]);
    assert!(message.headers.contains("CC") && !message.headers.contains("BCC"));
    for header in ["CC", "BCC"] {
        let mut outgoing = outgoing.clone();
        outgoing.headers.insert(header, "copy");
        assert_eq!(code(&outgoing, Profile::V3_10), Some(406), "{header}");
    }
}

#[test]
fn only_4_writes_an_expiration_anew() {
    let mut outgoing = outgoing();
    outgoing.properties.expiration = Some("+05".to_owned());
    for (profile, expected) in [(Profile::V3_10, "+05"), (Profile::V4_0, "5")] {
        let message = Message::published(&outgoing, profile).unwrap();
        assert_eq!(message.properties.expiration.as_deref(), Some(expected));
        assert_eq!(message.ttl(), Some(5));
    }
}

#[test]
fn nobody_consumes_the_replies_of_a_direct_request() {
    let mut outgoing = outgoing();
    outgoing.properties.reply_to = Some("amq.rabbitmq.reply-to".to_owned());
    assert_eq!(code(&outgoing, Profile::V4_0), Some(406));
}
