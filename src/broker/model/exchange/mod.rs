//! Exchanges: which queues a message goes to.

use super::profile::Profile;
use super::refusal::{self, Refusal};
use crate::message::headers::{HeaderValue, Headers};
use crate::topology::declaration::ExchangeKind;
use std::collections::BTreeSet;

/// An exchange and what is bound to it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exchange {
    pub(crate) name: String,
    pub(crate) kind: ExchangeKind,
    pub(crate) durable: bool,
    /// Nobody may publish to it: messages come from other exchanges and from dead-lettering.
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

    /// The exchanges that are there from the start, but for the default one, which has no bindings of its own.
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

    /// Whether a queue may be bound in that way.
    pub(crate) fn check(&self, binding: &Binding) -> Result<(), Refusal> {
        match self.kind {
            ExchangeKind::Headers => check_x_match(&binding.arguments),
            _ => Ok(()),
        }
    }

    pub(crate) fn bind(&mut self, binding: Binding) {
        if !self.bindings.contains(&binding) {
            self.bindings.push(binding);
        }
    }

    /// Adds the queues that a message with these keys and headers goes to.
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

    /// Where messages go that no binding takes.
    pub(crate) fn alternate(&self) -> Option<&str> {
        self.arguments.get("alternate-exchange")?.as_str()
    }
}

/// Whether the words of `key` match `pattern`: `*` is one word, `#` any number of them.
pub(crate) fn topic_matches(pattern: &str, key: &str) -> bool {
    let pattern = words(pattern);
    let key = words(key);
    // reached[n]: whether the pattern so far matches the first n words.
    let mut reached: Vec<bool> = (0..=key.len()).map(|n| n == 0).collect();
    for word in pattern {
        if word == "#" {
            let first = reached.iter().position(|reached| *reached);
            let first = first.unwrap_or(reached.len());
            reached[first..].fill(true);
        } else {
            for n in (1..reached.len()).rev() {
                reached[n] = reached[n - 1] && (word == "*" || word == key[n - 1]);
            }
            reached[0] = false;
        }
    }
    reached.last().copied().unwrap_or(false)
}

/// An empty key has no words.
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
                "Invalid x-match field value \"{other}\"; expected all, any, all-with-x, or any-with-x"
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
        // 4.x compares seconds with milliseconds.
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

/// What stands in the way of `kind` and `durable` for an exchange that is there already.
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
mod tests;
