//! Exchanges, and the routing of messages to queues.

use super::profile::Profile;
use super::refusal::{self, Refusal};
use crate::message::headers::{HeaderValue, Headers};
use crate::topology::declaration::ExchangeKind;
use std::collections::BTreeSet;

/// An exchange and its bindings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exchange {
    pub(crate) name: String,
    pub(crate) kind: ExchangeKind,
    pub(crate) durable: bool,
    /// Clients may not publish to it: messages come from other exchanges and from dead-lettering.
    pub(crate) internal: bool,
    pub(crate) arguments: Headers,
    pub(crate) bindings: Vec<Binding>,
}

/// A queue bound to an exchange.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Binding {
    pub(crate) queue: String,
    pub(crate) routing_key: String,
    pub(crate) arguments: Headers,
}

impl Exchange {
    pub(crate) fn new(name: &str, kind: ExchangeKind, durable: bool) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            durable,
            internal: false,
            arguments: Headers::new(),
            bindings: Vec::new(),
        }
    }

    /// The predeclared exchanges. The bindings of the default exchange are implicit.
    pub(crate) fn predeclared() -> Vec<Self> {
        let durable = |name, kind| Self::new(name, kind, true);
        let mut trace = durable("amq.rabbitmq.trace", ExchangeKind::Topic);
        trace.internal = true;
        vec![
            durable("", ExchangeKind::Direct),
            durable("amq.direct", ExchangeKind::Direct),
            durable("amq.fanout", ExchangeKind::Fanout),
            durable("amq.headers", ExchangeKind::Headers),
            durable("amq.match", ExchangeKind::Headers),
            durable("amq.topic", ExchangeKind::Topic),
            trace,
        ]
    }

    /// Checks the arguments of a binding.
    pub(crate) fn check(&self, binding: &Binding) -> Result<(), Refusal> {
        match self.kind {
            ExchangeKind::Headers => check_x_match(&binding.arguments),
            _ => Ok(()),
        }
    }

    /// Adds a binding, unless it exists.
    pub(crate) fn bind(&mut self, binding: Binding) {
        if !self.bindings.contains(&binding) {
            self.bindings.push(binding);
        }
    }

    /// Adds the queues that a message with these keys and headers is routed to.
    pub(crate) fn route(
        &self,
        keys: &[String],
        headers: &Headers,
        profile: Profile,
        queues: &mut BTreeSet<String>,
    ) {
        let matching = self.bindings.iter().filter(|binding| match self.kind {
            ExchangeKind::Direct => keys.contains(&binding.routing_key),
            ExchangeKind::Topic => keys
                .iter()
                .any(|key| topic_matches(&binding.routing_key, key)),
            ExchangeKind::Fanout => true,
            ExchangeKind::Headers => headers_match(&binding.arguments, headers, profile),
        });
        queues.extend(matching.map(|binding| binding.queue.clone()));
    }

    /// The exchange that receives the messages without a matching binding.
    pub(crate) fn alternate(&self) -> Option<&str> {
        self.arguments.get("alternate-exchange")?.as_str()
    }
}

/// Whether the words of `key` match `pattern`: `*` is one word, `#` any number of them.
pub(crate) fn topic_matches(pattern: &str, key: &str) -> bool {
    let pattern = words(pattern);
    let key = words(key);
    // reached[n]: whether the pattern so far matches the first n words. One row of dynamic
    // programming keeps patterns with many `#` linear in the length of the key.
    let mut reached: Vec<bool> = (0..=key.len()).map(|n| n == 0).collect();
    for word in pattern {
        if word == "#" {
            let first = reached.iter().position(|reached| *reached);
            let first = first.unwrap_or(reached.len());
            reached[first..].fill(true);
        } else {
            // From the back, since each entry depends on the previous row's entry before it.
            for n in (1..reached.len()).rev() {
                reached[n] = reached[n - 1] && (word == "*" || word == key[n - 1]);
            }
            reached[0] = false;
        }
    }
    reached.last().copied().unwrap_or(false)
}

/// The words of a key; none of an empty one.
fn words(key: &str) -> Vec<&str> {
    if key.is_empty() {
        return Vec::new();
    }
    key.split('.').collect()
}

fn check_x_match(arguments: &Headers) -> Result<(), Refusal> {
    let why = match arguments.get("x-match") {
        None => return Ok(()),
        Some(HeaderValue::Text(text)) => match text.as_str() {
            "all" | "any" | "all-with-x" | "any-with-x" => return Ok(()),
            other => format!(
                "Invalid x-match field value \"{other}\"; \
                 expected all, any, all-with-x, or any-with-x"
            ),
        },
        Some(_) => "Invalid x-match field type; expected longstr".to_owned(),
    };
    Err(Refusal::precondition_failed(why))
}

fn headers_match(arguments: &Headers, headers: &Headers, profile: Profile) -> bool {
    let kind = arguments.get("x-match").and_then(HeaderValue::as_str);
    let with_x = matches!(kind, Some("all-with-x" | "any-with-x"));
    let mut asked = arguments
        .iter()
        .filter(|(name, _)| *name != "x-match" && (with_x || !name.starts_with("x-")));
    let has = |(name, asked): (&str, &HeaderValue)| {
        headers
            .get(name)
            .is_some_and(|value| *asked == HeaderValue::Void || is_same(asked, value, profile))
    };
    if matches!(kind, Some("any" | "any-with-x")) {
        asked.any(has)
    } else {
        asked.all(has)
    }
}

/// Values are compared without their types: a number of one width equals that of another.
fn is_same(asked: &HeaderValue, value: &HeaderValue, profile: Profile) -> bool {
    if let (Some(asked), Some(value)) = (asked.as_i64(), value.as_i64()) {
        return asked == value;
    }
    match (asked, value) {
        // 4.x compares the seconds of one with the milliseconds of the other.
        (HeaderValue::Timestamp(asked), HeaderValue::Timestamp(value)) => match profile {
            Profile::V3_10 => asked == value,
            Profile::V4_0 => *asked == 0 && *value == 0,
        },
        (HeaderValue::Text(asked), HeaderValue::Bytes(value))
        | (HeaderValue::Bytes(value), HeaderValue::Text(asked)) => asked.as_bytes() == value,
        (HeaderValue::F32(asked), HeaderValue::F64(value))
        | (HeaderValue::F64(value), HeaderValue::F32(asked)) => f64::from(*asked) == *value,
        (asked, value) => asked == value,
    }
}

/// Fails when a declaration differs from the existing exchange.
pub(crate) fn check_equivalent(
    existing: &Exchange,
    kind: ExchangeKind,
    durable: bool,
    internal: bool,
    arguments: &Headers,
) -> Result<(), Refusal> {
    let inequivalent = |argument: &str, received: &str, current: &str| {
        Err(Refusal::precondition_failed(format!(
            "inequivalent arg '{argument}' for {}: received {received} but current is {current}",
            refusal::exchange(&existing.name)
        )))
    };
    if kind != existing.kind {
        let [received, current] = [kind, existing.kind].map(|kind| format!("'{kind}'"));
        return inequivalent("type", &received, &current);
    }
    for (argument, received, current) in [
        ("durable", durable, existing.durable),
        ("internal", internal, existing.internal),
    ] {
        if received != current {
            return inequivalent(argument, &format!("'{received}'"), &format!("'{current}'"));
        }
    }
    super::equivalence::check_equivalent(
        &refusal::exchange(&existing.name),
        &["alternate-exchange"],
        &existing.arguments,
        arguments,
    )
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition of a match, by exponential recursion.
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

    const PATTERN_WORDS: [&str; 5] = ["a", "b", "", "*", "#"];

    proptest! {
        #[test]
        fn topic_matches_agrees_with_definition(
            pattern in prop::collection::vec(prop::sample::select(PATTERN_WORDS.to_vec()), 1..6),
            key in prop::collection::vec(prop::sample::select(vec!["a", "b", ""]), 1..6),
        ) {
            let (pattern, key) = (pattern.join("."), key.join("."));
            let expected = matches_slowly(&words(&pattern), &words(&key));
            prop_assert_eq!(topic_matches(&pattern, &key), expected);
        }

        #[test]
        fn key_without_wildcards_matches_itself_and_hash(key in "[a-c.]{0,8}") {
            prop_assert!(topic_matches(&key, &key));
            prop_assert!(topic_matches("#", &key));
            prop_assert_eq!(topic_matches("*", &key), !key.is_empty() && !key.contains('.'));
        }
    }

    fn table<V: Into<HeaderValue>>(
        entries: impl IntoIterator<Item = (&'static str, V)>,
    ) -> Headers {
        entries.into_iter().collect()
    }

    #[test]
    fn headers_match_all_or_any_with_or_without_x() {
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
    fn void_matches_any_value_and_widths_are_ignored() {
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
    fn x_match_is_validated() {
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
    fn inequivalent_exchange_is_refused_with_both_values() {
        let existing = Exchange::new("e", ExchangeKind::Direct, true);
        let none = Headers::new();
        let check = |kind, durable, internal| {
            check_equivalent(&existing, kind, durable, internal, &none)
                .map_err(|refusal| refusal.text)
        };
        assert_eq!(check(ExchangeKind::Direct, true, false), Ok(()));
        let text = "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'e' in vhost '/': \
                    received 'topic' but current is 'direct'";
        assert_eq!(check(ExchangeKind::Topic, true, false).unwrap_err(), text);
        let durable = check(ExchangeKind::Direct, false, false).unwrap_err();
        assert!(durable.ends_with("received 'false' but current is 'true'"));
        assert!(check(ExchangeKind::Direct, true, true).is_err());
    }
}
