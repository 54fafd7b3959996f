//! Which arguments are allowed, and which tables are the same.

use super::*;
use crate::broker::model::equivalence::check_equivalent;

const PROFILES: [Profile; 2] = [Profile::V3_10, Profile::V4_0];

fn table(entries: &[(&str, HeaderValue)]) -> Headers {
    entries.iter().cloned().collect()
}

#[test]
fn nonsense_is_refused() {
    let quorum = || ("x-queue-type", HeaderValue::from("quorum"));
    for entries in [
        vec![("x-queue-type", "fast".into())],
        vec![("x-queue-type", 1.into())],
        vec![("x-message-ttl", "1000".into())],
        vec![("x-message-ttl", (-1).into())],
        vec![("x-message-ttl", 315_360_000_001_i64.into())],
        vec![("x-message-ttl", 1.5_f64.into())],
        vec![("x-expires", 0.into())],
        vec![("x-max-length", (-1).into())],
        vec![("x-max-length-bytes", "1".into())],
        vec![("x-max-priority", 256.into())],
        vec![("x-overflow", "drop-tail".into())],
        vec![("x-overflow", 1.into())],
        vec![("x-dead-letter-exchange", 1.into())],
        vec![("x-dead-letter-routing-key", "k".into())],
        vec![("x-single-active-consumer", "true".into())],
        vec![("x-queue-mode", "quick".into())],
        vec![("x-queue-version", 3.into())],
        vec![("x-delivery-limit", 3.into())],
        vec![("x-max-age", "1h".into())],
        vec![quorum(), ("x-max-priority", 3.into())],
        vec![quorum(), ("x-queue-mode", "lazy".into())],
        vec![quorum(), ("x-dead-letter-strategy", "never".into())],
        vec![quorum(), ("x-quorum-initial-group-size", 0.into())],
    ] {
        for profile in PROFILES {
            let refused = read("q", &table(&entries), profile);
            assert_eq!(
                refused.map_err(|refusal| refusal.code),
                Err(406),
                "{entries:?}"
            );
        }
    }
}

#[test]
fn a_stream_is_not_there() {
    let stream = table(&[("x-queue-type", "stream".into())]);
    for profile in PROFILES {
        assert_eq!(read("q", &stream, profile).unwrap_err().code, 540);
    }
}

#[test]
fn arguments_are_read_and_unknown_ones_passed_over() {
    for profile in PROFILES {
        let arguments = table(&[
            ("x-message-ttl", HeaderValue::U16(5)),
            ("x-dead-letter-exchange", "".into()),
            ("x-dead-letter-routing-key", "k".into()),
            ("x-max-length", 3.into()),
            ("x-overflow", "reject-publish-dlx".into()),
            ("x-my-own", 1.into()),
        ]);
        let (kind, settings) = read("q", &arguments, profile).unwrap();
        assert_eq!(kind, QueueKind::Classic);
        assert_eq!(settings.ttl, Some(5));
        assert_eq!(settings.dead_letter_exchange.as_deref(), Some(""));
        assert_eq!(settings.max_length, Some(3));
        assert_eq!(settings.overflow, Overflow::RejectPublishDlx);
    }
}

#[test]
fn the_delivery_limit_depends_on_the_version() {
    let limit = |value: Option<HeaderValue>, profile| {
        let mut arguments = table(&[("x-queue-type", "quorum".into())]);
        if let Some(value) = value {
            arguments.insert("x-delivery-limit", value);
        }
        read("q", &arguments, profile).unwrap().1.delivery_limit
    };
    assert_eq!(
        PROFILES.map(|profile| limit(None, profile)),
        [None, Some(20)]
    );
    for profile in PROFILES {
        assert_eq!(limit(Some(3.into()), profile), Some(3));
    }
    let negative = PROFILES.map(|profile| limit(Some((-1).into()), profile));
    assert_eq!(negative, [Some(0), None]);
}

#[test]
fn tables_are_the_same_when_their_known_values_are() {
    let known = known(QueueKind::Classic, Profile::V3_10);
    let check = |current: &[(&str, HeaderValue)], received: &[(&str, HeaderValue)]| {
        check_equivalent(
            "queue 'q' in vhost '/'",
            &known,
            &table(current),
            &table(received),
        )
        .map_err(|refusal| refusal.text)
    };
    let ttl = |value: HeaderValue| [("x-message-ttl", value)];
    assert_eq!(check(&ttl(5_i32.into()), &ttl(5_i64.into())), Ok(()));
    assert_eq!(check(&[("x-queue-type", "classic".into())], &[]), Ok(()));
    assert_eq!(check(&[], &[("x-my-own", 1.into())]), Ok(()));
    for (checked, ending) in [
        (
            check(&ttl(5.into()), &[]),
            "received none but current is the value '5' of type 'signedint'",
        ),
        (
            check(&[], &ttl(5_i64.into())),
            "received the value '5' of type 'long' but current is none",
        ),
        (
            check(&ttl(5.into()), &ttl("5".into())),
            "received '5' but current is '5'",
        ),
        (
            check(&[], &[("x-queue-type", "quorum".into())]),
            "received the value 'quorum' of type 'longstr' but current is none",
        ),
    ] {
        let text = checked.unwrap_err();
        assert!(text.ends_with(ending), "{text}");
    }
}
