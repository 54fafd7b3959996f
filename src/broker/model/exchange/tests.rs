//! Topic patterns, headers, and what is bound.

use super::*;
use proptest::prelude::*;

/// The rule, word by word, as slowly as can be.
fn matches_slowly(pattern: &[&str], key: &[&str]) -> bool {
    match (pattern, key) {
        ([], []) => true,
        (["#", rest @ ..], _) => {
            matches_slowly(rest, key) || (!key.is_empty() && matches_slowly(pattern, &key[1..]))
        }
        ([word, pattern @ ..], [first, key @ ..]) => {
            (*word == "*" || word == first) && matches_slowly(pattern, key)
        }
        _ => false,
    }
}

proptest! {
    #[test]
    fn topics_match_word_by_word(
        pattern in prop::collection::vec(prop::sample::select(vec!["a", "b", "", "*", "#"]), 1..6),
        key in prop::collection::vec(prop::sample::select(vec!["a", "b", ""]), 1..6),
    ) {
        let (pattern, key) = (pattern.join("."), key.join("."));
        let expected = matches_slowly(&words(&pattern), &words(&key));
        prop_assert_eq!(topic_matches(&pattern, &key), expected);
    }

    #[test]
    fn a_key_matches_itself_and_everything(key in "[a-c.]{0,8}") {
        prop_assert!(topic_matches(&key, &key));
        prop_assert!(topic_matches("#", &key));
        prop_assert_eq!(topic_matches("*", &key), !key.is_empty() && !key.contains('.'));
    }
}

fn table<V: Into<HeaderValue>>(entries: impl IntoIterator<Item = (&'static str, V)>) -> Headers {
    entries.into_iter().collect()
}

#[test]
fn headers_match_all_or_any_and_those_with_x_only_when_asked() {
    let sent = table([("a", "1"), ("b", "2"), ("x-c", "3")]);
    for (kind, asked, expected) in [
        (None, table([("a", "1"), ("b", "2")]), true),
        (None, table([("a", "1"), ("b", "3")]), false),
        (Some("any"), table([("a", "9"), ("b", "2")]), true),
        (Some("any"), table([("a", "9")]), false),
        (Some("any"), table([("x-c", "3")]), false),
        (Some("all"), table([("x-c", "9")]), true),
        (Some("any-with-x"), table([("x-c", "3")]), true),
        (Some("all-with-x"), table([("x-c", "9")]), false),
        (Some("all"), Headers::new(), true),
        (Some("any"), Headers::new(), false),
    ] {
        let mut asked = asked;
        if let Some(kind) = kind {
            asked.insert("x-match", kind);
        }
        for profile in [Profile::V3_10, Profile::V4_0] {
            assert_eq!(headers_match(&asked, &sent, profile), expected, "{asked:?}");
        }
    }
}

#[test]
fn a_header_without_a_value_asks_for_its_name_only_and_widths_do_not_matter() {
    let matches = |asked: HeaderValue, sent: HeaderValue, profile| {
        headers_match(&table([("h", asked)]), &table([("h", sent)]), profile)
    };
    let timestamp = HeaderValue::Timestamp(5);
    for profile in [Profile::V3_10, Profile::V4_0] {
        assert!(matches(HeaderValue::Void, 5.into(), profile));
        assert!(matches(5_i64.into(), 5_i8.into(), profile));
        assert!(!matches("5".into(), 5.into(), profile));
        let is_known = profile == Profile::V3_10;
        assert_eq!(
            matches(timestamp.clone(), timestamp.clone(), profile),
            is_known
        );
    }
}

#[test]
fn a_binding_of_a_headers_exchange_must_say_how_it_matches() {
    let mut exchange = Exchange::new("h", ExchangeKind::Headers, true);
    let mut bind = |x_match: HeaderValue| {
        let binding = Binding {
            queue: "q".to_owned(),
            routing_key: String::new(),
            arguments: table([("x-match", x_match)]),
        };
        exchange.check(&binding).map(|()| exchange.bind(binding))
    };
    assert_eq!(bind("some".into()).unwrap_err().code, 406);
    assert_eq!(bind(1.into()).unwrap_err().code, 406);
    bind("any-with-x".into()).unwrap();
    bind("any-with-x".into()).unwrap();
    assert_eq!(exchange.bindings.len(), 1, "the same twice is one");
}

#[test]
fn an_exchange_that_differs_is_named_with_both_values() {
    let existing = Exchange::new("e", ExchangeKind::Direct, true);
    let none = Headers::new();
    let check = |kind, durable, internal| {
        check_equivalent(&existing, kind, durable, internal, &none).map_err(|refusal| refusal.text)
    };
    assert_eq!(check(ExchangeKind::Direct, true, false), Ok(()));
    let text = "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'e' in vhost '/': received 'topic' but \
                current is 'direct'";
    assert_eq!(check(ExchangeKind::Topic, true, false).unwrap_err(), text);
    let durable = check(ExchangeKind::Direct, false, false).unwrap_err();
    assert!(durable.ends_with("received 'false' but current is 'true'"));
    assert!(check(ExchangeKind::Direct, true, true).is_err());
}
