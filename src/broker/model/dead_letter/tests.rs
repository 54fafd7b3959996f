//! Tests of the death record, for both versions.

use super::*;
use crate::message::headers::Properties;
use std::sync::Arc;

const PROFILES: [Profile; 2] = [Profile::V3_10, Profile::V4_0];

fn message(keys: &[&str]) -> Message {
    Message {
        exchange: "orders".to_owned(),
        routing_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        blind_keys: Vec::new(),
        properties: Properties::default(),
        headers: Headers::new(),
        body: Arc::default(),
        deaths: Vec::new(),
        failed_deliveries: 0,
    }
}

fn dead_lettering(reason: DeathReason, queue: &str) -> DeadLettering<'_> {
    DeadLettering {
        reason,
        queue,
        exchange: "dlx",
        routing_key: None,
        epoch_millis: 1_700_000_000_999,
    }
}

/// The message after it died in one queue after the other.
fn die(message: &Message, profile: Profile, ends: &[(DeathReason, &str)]) -> Message {
    ends.iter()
        .fold(message.clone(), |message, (reason, queue)| {
            dead_lettering(*reason, queue).apply(&message, profile)
        })
}

/// Queue, reason and count of each entry.
fn deaths(message: &Message) -> Vec<(String, String, i64)> {
    let Some(HeaderValue::Array(deaths)) = message.headers.get("x-death") else {
        panic!("{:?}", message.headers);
    };
    let entry = |death: &HeaderValue| {
        let HeaderValue::Table(death) = death else {
            panic!("{death:?}");
        };
        let field = |name| text(death, name).unwrap().to_owned();
        (
            field("queue"),
            field("reason"),
            death.get("count").unwrap().as_i64().unwrap(),
        )
    };
    deaths.iter().map(entry).collect()
}

fn entries(entries: &[(&str, &str, i64)]) -> Vec<(String, String, i64)> {
    let owned = |(queue, reason, count): &(&str, &str, i64)| {
        ((*queue).to_owned(), (*reason).to_owned(), *count)
    };
    entries.iter().map(owned).collect()
}

#[test]
fn first_death_is_recorded_completely() {
    for profile in PROFILES {
        let mut before = message(&["order.new", "copy"]);
        before.headers.insert("CC", vec![HeaderValue::from("copy")]);
        before.properties.expiration = Some("500".to_owned());
        let dead_letter = die(&before, profile, &[(DeathReason::Expired, "q")]);
        let Some(HeaderValue::Array(deaths)) = dead_letter.headers.get("x-death") else {
            panic!("{:?}", dead_letter.headers);
        };
        let keys = vec![HeaderValue::from("order.new"), "copy".into()];
        let expected: Headers = [
            ("count", HeaderValue::I64(1)),
            ("reason", "expired".into()),
            ("queue", "q".into()),
            ("time", HeaderValue::Timestamp(1_700_000_000)),
            ("exchange", "orders".into()),
            ("routing-keys", keys.into()),
            ("original-expiration", "500".into()),
        ]
        .into_iter()
        .collect();
        assert_eq!(deaths[..], [HeaderValue::Table(expected)]);
        assert_eq!(dead_letter.properties.expiration, None);
        assert_eq!(dead_letter.exchange, "dlx");
        assert_eq!(dead_letter.routing_keys, before.routing_keys);
    }
}

#[test]
fn repeated_death_is_counted_and_keeps_its_time() {
    for profile in PROFILES {
        let mut later = dead_lettering(DeathReason::Expired, "q");
        later.epoch_millis += 60_000;
        let first = die(&message(&["k"]), profile, &[(DeathReason::Expired, "q")]);
        let second = later.apply(&first, profile);
        assert_eq!(deaths(&second), entries(&[("q", "expired", 2)]));
        let Some(HeaderValue::Array(shown)) = second.headers.get("x-death") else {
            panic!("{:?}", second.headers);
        };
        let HeaderValue::Table(death) = &shown[0] else {
            panic!("{shown:?}");
        };
        let time = HeaderValue::Timestamp(1_700_000_000);
        assert_eq!(death.get("time"), Some(&time));
    }
}

#[test]
fn last_death_comes_first_and_v3_reverses_the_others() {
    let ends = [
        (DeathReason::Rejected, "a"),
        (DeathReason::Expired, "b"),
        (DeathReason::MaxLength, "c"),
        (DeathReason::DeliveryLimit, "d"),
    ];
    let (a, b) = (("a", "rejected", 1), ("b", "expired", 1));
    let (c, d) = (("c", "maxlen", 1), ("d", "delivery_limit", 1));
    for (profile, expected) in [
        (Profile::V3_10, [d, b, a, c]),
        (Profile::V4_0, [d, c, b, a]),
    ] {
        let dead_letter = die(&message(&["k"]), profile, &ends);
        assert_eq!(deaths(&dead_letter), entries(&expected), "{profile}");
    }
}

#[test]
fn first_death_headers_are_set_and_on_v4_the_last_too() {
    for profile in PROFILES {
        let ends = [(DeathReason::Rejected, "a"), (DeathReason::Expired, "b")];
        let dead_letter = die(&message(&["k"]), profile, &ends);
        let named = |end: &str, part: &str| {
            let header = format!("x-{end}-death-{part}");
            dead_letter.headers.get(&header).cloned()
        };
        let ends = ["reason", "queue", "exchange"];
        let first = ends.map(|part| named("first", part));
        assert_eq!(
            first,
            ["rejected", "a", "orders"].map(|text| Some(text.into()))
        );
        let last = ends.map(|part| named("last", part));
        match profile {
            Profile::V3_10 => assert_eq!(last, [None, None, None]),
            Profile::V4_0 => {
                assert_eq!(last, ["expired", "b", "dlx"].map(|text| Some(text.into())));
            }
        }
    }
}

#[test]
fn dead_letter_routing_key_replaces_the_others() {
    for (profile, keeps_copies) in [(Profile::V3_10, false), (Profile::V4_0, true)] {
        let mut before = message(&["k", "copy"]);
        before.headers.insert("CC", vec![HeaderValue::from("copy")]);
        let mut rejection = dead_lettering(DeathReason::Rejected, "q");
        rejection.routing_key = Some("dead");
        let dead_letter = rejection.apply(&before, profile);
        assert_eq!(dead_letter.routing_keys, ["dead"]);
        assert_eq!(dead_letter.headers.contains("CC"), keeps_copies);
    }
}

#[test]
fn bcc_keys_are_not_recorded() {
    for profile in PROFILES {
        let mut before = message(&["k", "blind"]);
        before.blind_keys = vec!["blind".to_owned()];
        let dead_letter = die(&before, profile, &[(DeathReason::Rejected, "q")]);
        assert_eq!(
            dead_letter.routing_keys,
            ["k", "blind"],
            "the message is still routed there"
        );
        let shown = format!("{:?}", dead_letter.headers);
        assert!(!shown.contains("blind"), "{shown}");
    }
}

#[test]
fn cycle_needs_deaths_without_a_rejection() {
    for profile in PROFILES {
        let cycle = |ends: &[(DeathReason, &str)], queue: &str| {
            let dead_letter = die(&message(&["k"]), profile, ends);
            let (reason, _) = ends[ends.len() - 1];
            is_cycle(&dead_letter, queue, reason, profile)
        };
        let (expired, rejected) = (DeathReason::Expired, DeathReason::Rejected);
        assert!(cycle(&[(expired, "a")], "a"));
        assert!(!cycle(&[(expired, "a")], "b"));
        assert!(cycle(&[(expired, "a"), (expired, "b")], "a"));
        assert!(!cycle(&[(rejected, "a"), (expired, "b")], "a"));
        assert!(!cycle(&[(expired, "a"), (rejected, "b")], "a"));
    }
}

#[test]
fn only_v3_counts_the_record_of_a_client() {
    let claimed: Headers = [("queue", "a"), ("reason", "expired")]
        .into_iter()
        .collect();
    let mut before = message(&["k"]);
    let twice = vec![
        HeaderValue::Table(claimed.clone()),
        HeaderValue::Table(claimed),
    ];
    before.headers.insert("x-death", twice);
    for (profile, expected, is_believed) in [
        (
            Profile::V3_10,
            entries(&[("b", "expired", 1), ("a", "expired", 2)]),
            true,
        ),
        (Profile::V4_0, entries(&[("b", "expired", 1)]), false),
    ] {
        let dead_letter = die(&before, profile, &[(DeathReason::Expired, "b")]);
        assert_eq!(deaths(&dead_letter), expected);
        let is_dropped = is_cycle(&dead_letter, "a", DeathReason::Expired, profile);
        assert_eq!(is_dropped, is_believed);
        let has_first = dead_letter.headers.contains("x-first-death-queue");
        assert_ne!(has_first, is_believed);
    }
}
