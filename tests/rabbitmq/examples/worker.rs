//! What a worker does with its messages, and how it ends.

use amiquip::AmqpProperties;
use rungmq::naming;
use serde_json::Value;

use super::{Ended, LIMIT, Q, Worker};
use crate::harness::wait::timed;
use crate::harness::{Raw, Vhost, secs};

/// Sends one message and runs a worker over it until its `handled`th handler has returned.
fn run(args: &str, handled: u32) -> (Vhost<'static>, Raw, Ended) {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.quorum(Q);
    let properties = AmqpProperties::default().with_message_id("id-1".to_owned());
    raw.send(Q, r#"{"item":"apples"}"#, properties);
    let worker = Worker::start(&vhost.url(), &format!("{args} --count {handled} {Q}"));
    let ended = worker.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.closed()["error"], Value::Null);
    assert_eq!(ended.closed()["stranded"], serde_json::json!({}));
    (vhost, raw, ended)
}

#[test]
fn each_answer_ends_where_it_should() {
    let dlq = naming::dead_letter_queue(Q);
    let parked = naming::parked_queue(Q);
    let once = "--policy fixed:2:20ms";
    let cases: [(&str, u32, &str, &str, &str); 7] = [
        ("accept", 1, "acked", "", ""),
        (
            "retry",
            2,
            "dead_lettered",
            &dlq,
            "gave up after 2 attempts: the worker was told to",
        ),
        (
            "reject",
            1,
            "rejected",
            &dlq,
            "rejected by the handler: the worker was told to",
        ),
        (
            "fatal",
            1,
            "dead_lettered",
            &dlq,
            "retrying cannot help: FatalError: the worker was told to",
        ),
        (
            "park",
            1,
            "parked",
            &parked,
            "parked by the handler: the worker was told to",
        ),
        (
            "panic",
            2,
            "dead_lettered",
            &dlq,
            "gave up after 2 attempts: panicked: the worker was told to",
        ),
        ("fail-first:1", 2, "acked", "", ""),
    ];
    for (answer, handled, outcome, place, reason) in cases {
        let (_vhost, raw, ended) = run(&format!("{once} --answer {answer}"), handled);
        let metric = |outcome| {
            ended.metric(&format!(
                "acemq.consume.total{{queue={Q},outcome={outcome}}}"
            ))
        };
        assert_eq!(metric(outcome), 1, "{answer}: {ended:?}");
        assert_eq!(metric("retried"), i64::from(handled) - 1, "{answer}");
        assert_eq!(ended.count("delivery"), handled as usize, "{answer}");
        // A panicking handler does not return.
        let returned = if answer == "panic" { 0 } else { handled };
        assert_eq!(ended.count("handled"), returned as usize, "{answer}");
        for aside in [&dlq, &parked] {
            let got = raw.get(aside);
            assert_eq!(got.is_some(), aside == place, "{answer}: {aside}");
            if let Some(got) = got {
                assert_eq!(got.header_text("x-acemq-error"), Some(reason));
                assert_eq!(got.text(), r#"{"item":"apples"}"#);
            }
        }
        raw.wait_for_count(Q, 0, LIMIT);
    }
}

#[test]
fn a_delivery_is_told_with_all_its_facts() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let mut worker = Worker::start(
        &vhost.url(),
        &format!(
            "--declare --policy fixed:2:1s --threshold 500ms --answer fail-first:1 --count 2 {Q}"
        ),
    );
    assert_eq!(worker.wait_for("consuming")["queue"], Q);
    raw.bind(Q, "amq.topic", "order.#");
    let headers = crate::harness::table([
        ("tenant", amiquip::AmqpValue::LongString("acme".to_owned())),
        ("weight", amiquip::AmqpValue::ShortInt(-7)),
        ("bytes", amiquip::AmqpValue::ByteArray(vec![0, 255])),
        (
            "x-acemq-route",
            amiquip::AmqpValue::LongString("a".to_owned()),
        ),
    ]);
    raw.publish(
        "amq.topic",
        "order.placed",
        "[1]",
        AmqpProperties::default()
            .with_message_id("id-1".to_owned())
            .with_headers(headers),
    );
    let first = worker.wait_for("delivery");
    let second = worker.wait_for("delivery");
    let ended = worker.end();
    assert_eq!(ended.code, Some(0));
    let expected = serde_json::json!({
        "event": "delivery", "queue": Q, "id": "id-1", "attempt": 1, "redelivered": false,
        "exchange": "amq.topic", "routing_key": "order.placed",
        "original_exchange": "amq.topic", "original_routing_key": "order.placed", "body_bytes": 3,
        "headers": {"tenant": "acme", "weight": -7, "bytes": {"$bytes": [0, 255]}},
    });
    assert_eq!(first, expected);
    for (field, value) in [
        ("attempt", Value::from(2)),
        ("exchange", "acemq.retry".into()),
        ("routing_key", Q.into()),
        ("original_exchange", "amq.topic".into()),
        ("original_routing_key", "order.placed".into()),
    ] {
        assert_eq!(second[field], value, "{field}");
    }
    assert_eq!(second["headers"]["tenant"], "acme");
    let events: Vec<_> = ended
        .lines
        .iter()
        .map(|line| line["event"].as_str().unwrap())
        .filter(|event| *event != "health")
        .collect();
    assert_eq!(
        events,
        [
            "consuming",
            "delivery",
            "handled",
            "delivery",
            "handled",
            "closed"
        ]
    );
    assert!(ended.closed()["took_ms"].is_u64());
    assert_eq!(
        ended.metric(&format!(
            "acemq.messages.retried.total{{queue={Q},outcome=retried}}"
        )),
        1
    );
    assert_eq!(
        ended.metric("acemq.publish.total{exchange=,outcome=confirmed}"),
        1
    );
    let row = vhost.queue(Q, &["arguments"]).unwrap();
    assert_eq!(row["arguments"]["x-queue-type"], "quorum", "--declare");
}

#[test]
fn declare_makes_the_queue_type_that_was_asked_for() {
    let vhost = Vhost::new();
    let worker = Worker::start(
        &vhost.url(),
        "--declare --queue-type classic --policy fixed:2:40s --for 1ms one two",
    );
    let ended = worker.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.count("consuming"), 2);
    assert_eq!(
        vhost.queue_names(),
        [
            "one",
            "one.dlq",
            "one.parked",
            "one.retry.40s",
            "two",
            "two.dlq",
            "two.parked",
            "two.retry.40s"
        ]
    );
    let row = vhost.queue("one", &["type"]).unwrap();
    assert!(row["type"].as_str().unwrap().contains("classic"), "{row:?}");
}

#[test]
fn a_reason_of_many_bytes_reaches_the_dead_letter_cut() {
    let (_vhost, raw, _) = run("--answer reject --reason-bytes 300000", 1);
    let dead = raw.get(&naming::dead_letter_queue(Q)).unwrap();
    let error = dead.header_text("x-acemq-error").unwrap();
    assert!((100_000..131_072).contains(&error.len()), "{}", error.len());
}

#[test]
fn a_signal_closes_it_after_the_running_handler() {
    for signal in ["TERM", "INT"] {
        let vhost = Vhost::new();
        let raw = vhost.raw();
        raw.quorum(Q);
        raw.send_all(Q, ["1", "2"], &AmqpProperties::default());
        let mut worker = Worker::start(&vhost.url(), &format!("--work 1s {Q}"));
        worker.wait_for("delivery");
        worker.signal(signal);
        let (ended, took) = timed(|| worker.end());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(ended.closed()["error"], Value::Null);
        assert_eq!((ended.count("delivery"), ended.count("handled")), (1, 1));
        assert!(took < secs(15), "{took:?}");
        raw.wait_for_count(Q, 1, LIMIT);
    }
}

#[test]
fn signal_closes_within_timeout_and_reports_what_is_left() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.quorum(Q);
    raw.send(Q, "1", AmqpProperties::default());
    let mut worker = Worker::start(
        &vhost.url(),
        &format!("--work 2m --close-timeout 500ms {Q}"),
    );
    worker.wait_for("delivery");
    worker.signal("TERM");
    let ended = worker.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let closed = ended.closed();
    assert_eq!(closed["stranded"], serde_json::json!({Q: 1}));
    let error = closed["error"].as_str().unwrap();
    assert_eq!(
        error,
        "the drain did not finish within 0.5s: 1 delivery was left unsettled and will be redelivered — orders.new (1)"
    );
    let took = closed["took_ms"].as_u64().unwrap();
    assert!((500..5000).contains(&took), "{took} ms");
    raw.wait_for_count(Q, 1, LIMIT);
    let back = raw.get(Q).unwrap();
    assert!(back.redelivered);
    assert_eq!(back.header("x-acemq-attempt"), None, "as it came");
}
