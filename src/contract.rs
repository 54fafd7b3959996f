//! Tests the pure parts of the library against `fixtures/contract.json`.
//!
//! The fixture states the contract with the AceMQ libraries in other languages; it is not generated
//! from this code.

use crate::message::envelope::Envelope;
use crate::message::headers::{HeaderValue, Headers, Properties};
use crate::message::wire;
use crate::metrics::Outcome;
use crate::naming;
use crate::retry::{Decision, RetryLadder, RetryPolicy, Verdict, Wait, decide};
use serde_json::{Map, Value, json};
use std::time::Duration;

const THRESHOLD: Duration = Duration::from_secs(30);

fn contract() -> Value {
    serde_json::from_str(include_str!("../fixtures/contract.json")).unwrap()
}

fn rows(value: &Value) -> &[Value] {
    let rows = value.as_array().unwrap();
    assert!(!rows.is_empty(), "the table is empty");
    rows
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn millis(value: &Value) -> Duration {
    Duration::from_millis(value.as_u64().unwrap())
}

fn millis_of(delays: impl Iterator<Item = Duration>) -> Value {
    delays.map(naming::whole_millis).collect()
}

fn policy(row: &Value) -> Result<RetryPolicy, crate::PolicyError> {
    let attempts = row["attempts"].as_u64().unwrap() as u32;
    let policy = match text(&row["kind"]) {
        "none" => RetryPolicy::none(),
        "fixed" => RetryPolicy::fixed(attempts, millis(&row["delay_ms"]))?,
        "exponential" => {
            RetryPolicy::exponential(attempts, millis(&row["initial_ms"]), millis(&row["cap_ms"]))?
        }
        other => panic!("no such kind: {other}"),
    };
    let jitter = row["jitter"].as_f64().unwrap_or(policy.jitter());
    let limit = row["give_up_after_ms"].as_u64().unwrap_or(0);
    Ok(policy
        .with_jitter(jitter)?
        .give_up_after(Duration::from_millis(limit)))
}

fn named(contract: &Value, name: &Value) -> RetryPolicy {
    let row = rows(&contract["policies"])
        .iter()
        .find(|row| row["name"] == *name);
    policy(row.unwrap()).unwrap()
}

fn table(headers: &Headers) -> Value {
    let argument = |value: &HeaderValue| match value {
        HeaderValue::Text(text) => json!(text),
        HeaderValue::I64(number) => json!(number),
        other => panic!("no argument has this type: {other:?}"),
    };
    headers
        .iter()
        .map(|(name, value)| (name.to_owned(), argument(value)))
        .collect::<Map<_, _>>()
        .into()
}

/// The rungs in the format of the fixture.
fn rungs(ladder: &RetryLadder) -> Vec<Value> {
    let row = |rung| {
        let rung: &crate::Rung = rung;
        json!({
            "queue": rung.queue(),
            "delay_ms": naming::whole_millis(rung.delay()),
            "arguments": table(&ladder.arguments(rung)),
        })
    };
    ladder.rungs().iter().map(row).collect()
}

#[test]
fn policies_match_their_rows() {
    for row in rows(&contract()["policies"]) {
        let policy = policy(row).unwrap();
        assert_eq!(row["attempts"], policy.attempts(), "{row}");
        let limit = policy.limit().unwrap_or_default();
        assert_eq!(
            row["give_up_after_ms"],
            naming::whole_millis(limit),
            "{row}"
        );
        // Without an explicit jitter, each constructor sets the expected default.
        let mut bare = row.clone();
        bare.as_object_mut().unwrap().remove("jitter");
        assert_eq!(
            row["jitter"].as_f64(),
            Some(self::policy(&bare).unwrap().jitter()),
            "{row}"
        );
    }
}

#[test]
fn invalid_policies_are_refused() {
    for row in rows(&contract()["refused_policies"]) {
        assert!(policy(&row["policy"]).is_err(), "{row}");
    }
}

#[test]
fn schedules_and_rungs() {
    let contract = contract();
    let schedules = rows(&contract["schedules"]);
    assert_eq!(schedules.len(), rows(&contract["policies"]).len());
    for row in schedules {
        let policy = named(&contract, &row["policy"]);
        assert_eq!(row["delays_ms"], millis_of(policy.schedule()), "{row}");
        let ladder = RetryLadder::new("q", &policy, THRESHOLD).unwrap();
        let delays = ladder.rungs().iter().map(crate::Rung::delay);
        assert_eq!(row["rungs_ms"], millis_of(delays), "{row}");
        assert!(
            RetryLadder::new("q", &policy, Duration::ZERO)
                .unwrap()
                .is_empty(),
            "{row}"
        );
    }
}

#[test]
fn decisions() {
    let contract = contract();
    for row in rows(&contract["decisions"]) {
        let verdict = Verdict::Retry {
            reason: "no stock".into(),
            fatal: false,
        };
        let policy = named(&contract, &row["policy"]);
        let attempt = row["attempt"].as_u64().unwrap() as u32;
        let decision = decide(
            verdict,
            &policy,
            attempt,
            Some(millis(&row["age_ms"])),
            THRESHOLD,
        );
        let expected = if row["retries"].as_bool().unwrap() {
            let delay = millis(&row["delay_ms"]);
            Decision::Retry(match text(&row["waits"]) {
                "broker" => Wait::Rung(delay),
                "consumer" => Wait::Thread(delay),
                other => panic!("nothing waits there: {other}"),
            })
        } else {
            Decision::DeadLetter {
                reason: text(&row["error"]).into(),
                outcome: Outcome::DeadLettered,
            }
        };
        assert_eq!(decision, expected, "{row}");
    }
}

#[test]
fn reasons() {
    for row in rows(&contract()["reasons"]) {
        let (reason, error) = ("no stock".to_owned(), text(&row["error"]).to_owned());
        let dead_letter = |outcome| Decision::DeadLetter {
            reason: error.clone(),
            outcome,
        };
        let park = Decision::Park {
            reason: error.clone(),
        };
        let (verdict, expected) = match text(&row["verdict"]) {
            "reject" => (Verdict::Reject { reason }, dead_letter(Outcome::Rejected)),
            "fatal" => {
                let fatal = Verdict::Retry {
                    reason,
                    fatal: true,
                };
                (fatal, dead_letter(Outcome::DeadLettered))
            }
            "park" => (Verdict::Park { reason }, park),
            "undecodable" => (Verdict::Undecodable { message: reason }, park),
            other => panic!("no such verdict: {other}"),
        };
        assert_eq!(
            decide(verdict, &RetryPolicy::none(), 1, None, THRESHOLD),
            expected,
            "{row}"
        );
    }
}

#[test]
fn thresholds() {
    for row in rows(&contract()["thresholds"]) {
        let threshold = millis(&row["threshold_ms"]);
        let delays = rows(&row["delays"]);
        assert_eq!(delays.len(), 10);
        for entry in delays {
            let policy = RetryPolicy::fixed(2, millis(&entry["delay_ms"])).unwrap();
            let in_broker = entry["in_broker"].as_bool().unwrap();
            let ladder = RetryLadder::new("q", &policy, threshold).unwrap();
            assert_eq!(!ladder.is_empty(), in_broker, "{threshold:?}: {entry}");
            let verdict = Verdict::Retry {
                reason: String::new(),
                fatal: false,
            };
            let decision = decide(verdict, &policy, 1, None, threshold);
            let rung = matches!(decision, Decision::Retry(Wait::Rung(_)));
            assert_eq!(rung, in_broker, "{threshold:?}: {entry}");
        }
    }
}

#[test]
fn longest_rung() {
    let longest = millis(&contract()["longest_rung_ms"]);
    let ladder = |delay| {
        let policy = RetryPolicy::fixed(2, delay).unwrap();
        RetryLadder::new("q", &policy, THRESHOLD)
    };
    assert!(ladder(longest).is_ok());
    assert!(ladder(longest + Duration::from_nanos(1)).is_err());
}

#[test]
fn names() {
    let names = &contract()["names"];
    let queue = text(&names["queue"]);
    assert_eq!(names["dead_letter_queue"], naming::dead_letter_queue(queue));
    assert_eq!(names["parked_queue"], naming::parked_queue(queue));
    assert_eq!(names["dead_letter_exchange"], naming::DEAD_LETTER_EXCHANGE);
    assert_eq!(names["retry_exchange"], naming::RETRY_EXCHANGE);
    let longest = names["longest_name_bytes"].as_u64().unwrap() as usize;
    assert!(naming::check("queue", &"q".repeat(longest)).is_ok());
    assert!(naming::check("queue", &"q".repeat(longest + 1)).is_err());
    for row in rows(&names["delays"]) {
        let delay = millis(&row["delay_ms"]);
        assert_eq!(row["text"], naming::delay_text(delay), "{row}");
        assert_eq!(
            row["retry_queue"],
            naming::retry_queue(queue, delay),
            "{row}"
        );
    }
}

#[test]
fn rung_arguments() {
    let contract = contract();
    let policy = named(&contract, &contract["topology"]["policy"]);
    let ladder = RetryLadder::new("orders.new", &policy, THRESHOLD).unwrap();
    assert_eq!(rows(&contract["rungs"]), rungs(&ladder));
}

#[test]
fn topology_matches_names_and_ladder() {
    let contract = contract();
    let topology = &contract["topology"];
    let (source, policy) = ("orders.new", named(&contract, &topology["policy"]));
    let ladder =
        RetryLadder::new(source, &policy, millis(&topology["retry_threshold_ms"])).unwrap();
    let classic = |name: &str, arguments: Value| {
        json!({
            "name": name, "type": "classic", "durable": true,
            "arguments": arguments, "declared_by": "both",
        })
    };
    let mut expected = vec![
        classic(&naming::dead_letter_queue(source), json!({})),
        classic(&naming::parked_queue(source), json!({})),
    ];
    for rung in ladder.rungs() {
        expected.push(classic(rung.queue(), table(&ladder.arguments(rung))));
    }
    let both = |row: &&Value| row["declared_by"] == "both";
    let queues: Vec<_> = rows(&topology["queues"])
        .iter()
        .filter(both)
        .cloned()
        .collect();
    assert_eq!(queues, expected);
    let exchanges = rows(&topology["exchanges"]).iter().filter(both);
    assert_eq!(
        exchanges.map(|row| text(&row["name"])).collect::<Vec<_>>(),
        [naming::DEAD_LETTER_EXCHANGE, naming::RETRY_EXCHANGE]
    );
}

#[test]
fn reserved_headers() {
    let contract = contract();
    let headers = &contract["headers"];
    assert_eq!(headers["prefix"], wire::RESERVED_PREFIX);
    let new = Envelope::build("order.placed", None, "shop@pod", 1, "id-1".to_owned());
    let mut published = Headers::new();
    new.write(&mut published, 1);
    // All reserved headers are present as text, so that a hop has to write each of them.
    let reserved = rows(&headers["reserved"]);
    let all = reserved
        .iter()
        .map(|row| (text(&row["name"]), "1"))
        .collect();
    let mut copied = Headers::new();
    Envelope::read(&Properties::default(), &all, "", 1, String::new).write(&mut copied, 1);
    assert_eq!(copied.len(), reserved.len());
    for row in reserved {
        let name = text(&row["name"]);
        assert_eq!(row["on_publish"], published.contains(name), "{row}");
        for value in [published.get(name), copied.get(name)]
            .into_iter()
            .flatten()
        {
            let wire_type = match value {
                HeaderValue::Text(_) => "long string",
                HeaderValue::I32(_) => "i32",
                HeaderValue::I64(_) => "i64",
                other => panic!("{name} is {other:?}"),
            };
            assert_eq!(row["wire_type"], wire_type, "{row}");
        }
    }
    let carried: Headers = rows(&headers["carried"])
        .iter()
        .map(|name| (text(name), 7_u8))
        .collect();
    let mut hop = Headers::new();
    Envelope::read(&Properties::default(), &carried, "", 1, String::new).write(&mut hop, 1);
    for (name, value) in carried.iter() {
        assert!(!published.contains(name));
        assert_eq!(hop.get(name), Some(value));
    }
}

#[test]
fn outcomes_are_the_labels_of_the_metric() {
    let contract = contract();
    let total = rows(&contract["metrics"])
        .iter()
        .find(|row| row["name"] == "acemq.consume.total");
    let labels = [
        Outcome::Acked,
        Outcome::Retried,
        Outcome::Rejected,
        Outcome::DeadLettered,
        Outcome::Parked,
        Outcome::HandedBack,
        Outcome::Discarded,
    ]
    .map(|outcome| outcome.to_string());
    assert_eq!(total.unwrap()["labels"]["outcome"], json!(labels));
}
