//! Tests of topologies and plans.

use super::declaration::Declaration;
use super::*;
use crate::message::headers::{HeaderValue, Headers};
use crate::retry::{RetryLadder, RetryPolicy};
use proptest::prelude::*;
use std::collections::HashSet;
use std::time::Duration;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A policy with two equal delays.
fn every(delay: Duration) -> RetryPolicy {
    RetryPolicy::fixed(3, delay).unwrap()
}

fn doubling(attempts: u32, initial: u64, cap: u64) -> RetryPolicy {
    RetryPolicy::exponential(attempts, secs(initial), secs(cap)).unwrap()
}

fn lines(topology: &Topology) -> Vec<String> {
    let plan = topology.plan().unwrap();
    plan.to_string().lines().map(str::to_owned).collect()
}

fn problems(topology: &Topology) -> Vec<String> {
    let error = topology.plan().unwrap_err();
    error.problems().map(str::to_owned).collect()
}

fn problem(queue: Queue) -> String {
    let mut problems = problems(&Topology::new().queue(queue));
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.remove(0)
}

/// The declaration of `queue` in a topology of its own.
fn declared(queue: Queue) -> Declaration {
    let plan = Topology::new().queue(queue).plan().unwrap();
    plan.declarations().last().unwrap().clone()
}

#[test]
fn complete_plan_in_order() {
    let retries = doubling(6, 10, 300);
    let topology = Topology::new()
        .exchange("orders", ExchangeKind::Topic)
        .queue(Queue::new("orders.new").dead_letter().retry(&retries))
        .bind("orders.new", "orders", "order.*");
    let return_path =
        r#"x-dead-letter-exchange="acemq.retry", x-dead-letter-routing-key="orders.new""#;
    assert_eq!(
        lines(&topology),
        [
            r#"exchange "orders" (topic, durable)"#,
            r#"exchange "acemq.dlx" (direct, durable)"#,
            r#"queue "orders.new.dlq" (durable)"#,
            r#"queue "orders.new.parked" (durable)"#,
            r#"binding of "orders.new.dlq" to "acemq.dlx" with "orders.new.dlq""#,
            r#"binding of "orders.new.parked" to "acemq.dlx" with "orders.new.parked""#,
            concat!(
                r#"queue "orders.new" (durable) x-dead-letter-exchange="acemq.dlx", "#,
                r#"x-dead-letter-routing-key="orders.new.dlq", x-queue-type="quorum""#
            ),
            r#"exchange "acemq.retry" (direct, durable)"#,
            &format!(
                r#"queue "orders.new.retry.40s" (durable) {return_path}, x-message-ttl=40000"#
            ),
            &format!(
                r#"queue "orders.new.retry.80s" (durable) {return_path}, x-message-ttl=80000"#
            ),
            &format!(
                r#"queue "orders.new.retry.160s" (durable) {return_path}, x-message-ttl=160000"#
            ),
            r#"binding of "orders.new" to "acemq.retry" with "orders.new""#,
            r#"binding of "orders.new" to "orders" with "order.*""#,
        ]
    );
    assert_eq!(topology.plan().unwrap().warnings().len(), 0);
}

#[test]
fn single_queue() {
    assert_eq!(
        lines(&Topology::new().queue(Queue::new("q").retry(&every(secs(29))))),
        [r#"queue "q" (durable) x-queue-type="quorum""#]
    );
    assert_eq!(lines(&Topology::new()), [""; 0]);
}

#[test]
fn classic_queues_carry_no_type() {
    let classic = Declaration::durable_queue("q", Headers::new());
    assert_eq!(declared(Queue::new("q").classic()), classic);
    for (queue, durable, exclusive, auto_delete) in [
        (Queue::new("q").exclusive(), true, true, false),
        (Queue::new("q").auto_delete(), true, false, true),
        (
            Queue::new("q").exclusive().durable(false),
            false,
            true,
            false,
        ),
    ] {
        let expected = Declaration::Queue {
            name: "q".to_owned(),
            durable,
            exclusive,
            auto_delete,
            arguments: Headers::new(),
        };
        assert_eq!(declared(queue), expected);
    }
}

#[test]
fn extra_arguments_are_kept() {
    let queue = Queue::new("q").quorum().argument("x-max-length", 10_i32);
    assert_eq!(
        declared(queue).to_string(),
        r#"queue "q" (durable) x-max-length=10, x-queue-type="quorum""#
    );
}

#[test]
fn renamed_dead_letter_exchange() {
    let topology = Topology::new()
        .queue(Queue::new("q").dead_letter())
        .dead_letter_exchange("team.dlx");
    let plan = topology.plan().unwrap().to_string();
    assert!(plan.contains(r#"exchange "team.dlx" (direct, durable)"#));
    assert!(plan.contains(r#"binding of "q.parked" to "team.dlx" with "q.parked""#));
    assert!(plan.contains(r#"x-dead-letter-exchange="team.dlx""#));
    assert!(!plan.contains("acemq.dlx"));
    let clash = Topology::new().dead_letter_exchange("acemq.retry");
    assert_eq!(
        problems(&clash),
        ["the dead-letter exchange cannot be acemq.retry, which is for retries"]
    );
}

#[test]
fn threshold_decides_the_rungs() {
    let rungs = |threshold| {
        let queue = Queue::new("q")
            .retry(&doubling(4, 30, 60))
            .retry_threshold(Duration::from_secs(threshold));
        let lines = lines(&Topology::new().queue(queue));
        lines.iter().filter(|line| line.contains(".retry.")).count()
    };
    assert_eq!([rungs(0), rungs(30), rungs(60), rungs(61)], [0, 2, 1, 0]);
}

#[test]
fn consumer_declarations() {
    let share = |seconds| {
        let ladder = RetryLadder::new("q", &every(secs(seconds)), secs(30)).unwrap();
        consumer_share("q", &ladder)
    };
    let show = |share: &[Declaration]| share.iter().map(ToString::to_string).collect::<Vec<_>>();
    let short = share(1);
    assert_eq!(
        show(&short),
        [
            r#"exchange "acemq.dlx" (direct, durable)"#,
            r#"queue "q.dlq" (durable)"#,
            r#"queue "q.parked" (durable)"#,
            r#"binding of "q.dlq" to "acemq.dlx" with "q.dlq""#,
            r#"binding of "q.parked" to "acemq.dlx" with "q.parked""#,
        ]
    );
    let long = share(60);
    assert_eq!(long[..5], short);
    assert_eq!(
        show(&long[5..]),
        [
            r#"exchange "acemq.retry" (direct, durable)"#,
            concat!(
                r#"queue "q.retry.1m" (durable) x-dead-letter-exchange="acemq.retry", "#,
                r#"x-dead-letter-routing-key="q", x-message-ttl=60000"#
            ),
            r#"binding of "q" to "acemq.retry" with "q""#,
        ]
    );
}

#[test]
fn consumer_declarations_equal_those_of_the_topology() {
    let retries = doubling(3, 40, 80);
    let topology = Topology::new().queue(Queue::new("q").dead_letter().retry(&retries));
    let plan = topology.plan().unwrap();
    let ladder = RetryLadder::new("q", &retries, Duration::from_secs(30)).unwrap();
    for declaration in consumer_share("q", &ladder) {
        assert!(plan.declarations().contains(&declaration), "{declaration}");
    }
}

#[test]
fn quorum_without_dead_lettering_warns() {
    let topology = Topology::new()
        .queue(Queue::new("bare"))
        .queue(Queue::new("classic").classic())
        .queue(Queue::new("own").argument("x-dead-letter-exchange", "mine"))
        .queue(Queue::new("safe").dead_letter());
    let plan = topology.plan().unwrap();
    assert_eq!(
        plan.warnings().collect::<Vec<_>>(),
        [concat!(
            r#"the quorum queue "bare" does not dead-letter: "#,
            "RabbitMQ 4 drops a message that was delivered 20 times"
        )]
    );
}

#[test]
fn invalid_flags() {
    let q = || Queue::new("q");
    assert_eq!(
        problem(q().quorum().exclusive()),
        r#"the quorum queue "q" cannot be exclusive"#
    );
    assert_eq!(
        problem(q().auto_delete().quorum()),
        r#"the quorum queue "q" cannot be auto-delete"#
    );
    let transient = Topology::new().queue(q().quorum().durable(false));
    assert_eq!(problems(&transient).len(), 2);
    let unsupported =
        r#"the queue "q" is transient but not exclusive, which RabbitMQ 4 does not support"#;
    assert_eq!(problem(q().durable(false)), unsupported);
    assert_eq!(problem(q().classic().durable(false)), unsupported);
    let stream = r#"the queue "q" is a stream, and streams are not supported yet"#;
    assert_eq!(problem(q().stream()), stream);
    assert_eq!(problem(q().argument("x-queue-type", "stream")), stream);
    assert_eq!(
        problem(q().argument("x-queue-type", "classic")),
        r#"the queue "q" sets x-queue-type as an argument: use quorum() or classic()"#
    );
    assert_eq!(
        problem(q().dead_letter().argument("x-dead-letter-exchange", "a")),
        r#"the queue "q" sets x-dead-letter-exchange as an argument, and dead_letter() sets it too"#
    );
}

#[test]
fn nan_argument_is_refused_at_any_depth() {
    let nested = HeaderValue::Array(vec![f32::NAN.into()]);
    let table = Headers::from_iter([("deep", nested.clone())]);
    for value in [f64::NAN.into(), nested, table.into()] {
        assert_eq!(
            problem(Queue::new("q").argument("x-odd", value)),
            r#"the queue "q" sets x-odd to NaN, which never equals itself in a later declaration"#
        );
    }
    let number = Queue::new("q").argument("x-odd", HeaderValue::from(1.5_f64));
    assert!(Topology::new().queue(number).plan().is_ok());
}

#[test]
fn name_lengths_are_checked_in_bytes() {
    let exact = "é".repeat(127) + "a";
    assert!(Topology::new().queue(Queue::new(&exact)).plan().is_ok());
    let derived = problems(&Topology::new().queue(Queue::new(&exact).dead_letter()));
    assert_eq!(derived.len(), 2, "{derived:?}");
    assert!(derived[0].ends_with(r#"a.dlq" has 259 bytes, but AMQP allows 255"#));
    assert!(derived[1].ends_with(r#"a.parked" has 262 bytes, but AMQP allows 255"#));
    let rung = problem(Queue::new(&exact).retry(&every(secs(60))));
    assert!(rung.contains(".retry.1m"), "{rung}");
    let ends = "é".repeat(40);
    assert_eq!(
        problem(Queue::new("é".repeat(128)).dead_letter()),
        format!(r#"the name of a queue "{ends}…{ends}" has 256 bytes, but AMQP allows 255"#)
    );
    let long = "k".repeat(256);
    let topology = Topology::new()
        .exchange(&long, ExchangeKind::Fanout)
        .queue(Queue::new("q").argument(&long, true))
        .bind("q", "amq.topic", &long)
        .bind("q", format!("amq.{long}"), "")
        .dead_letter_exchange(&long);
    assert_eq!(problems(&topology).len(), 5);
}

#[test]
fn all_problems_are_reported() {
    let ten_years = Duration::from_millis(315_360_000_000);
    let topology = Topology::new()
        .exchange(" ", ExchangeKind::Direct)
        .exchange("e", ExchangeKind::Direct)
        .exchange("e", ExchangeKind::Topic)
        .exchange("amq.mine", ExchangeKind::Topic)
        .queue(Queue::new(""))
        .queue(Queue::new("q"))
        .queue(Queue::new("q"))
        .queue(Queue::new("late").retry(&every(ten_years + Duration::from_millis(1))))
        .bind("q", "e", "k")
        .bind("q", "e", "k")
        .bind("q", "nowhere", "k")
        .bind("absent", "e", "k")
        .bind("q", "", "k")
        .bind("q", "amq.topic", "k");
    let problems = problems(&topology);
    let expected = [
        "an exchange has a blank name",
        r#"the exchange "e" is declared twice"#,
        r#"an exchange "amq.mine" has a name reserved by RabbitMQ (amq.…)"#,
        "a queue has a blank name",
        r#"the queue "q" is declared twice"#,
        r#"the queue "late": "#,
        r#"the binding of "q" to "e" with "k" is given twice"#,
        r#"the binding of "q" to "nowhere": the exchange is not declared"#,
        r#"the binding of "absent" to "e": the queue is not declared"#,
        r#"the binding of "q" to "": the default exchange takes no bindings"#,
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.starts_with(expected), "{problem}");
    }
    let shown = topology.plan().unwrap_err().to_string();
    assert!(shown.starts_with("the topology has 10 problems: an exchange has a blank name; "));
    let ten_years = Queue::new("q").retry(&every(ten_years));
    assert!(Topology::new().queue(ten_years).plan().is_ok());
}

#[test]
fn conflicting_declarations_of_a_derived_name() {
    let topology = Topology::new()
        .exchange("acemq.dlx", ExchangeKind::Topic)
        .queue(Queue::new("q").dead_letter())
        .queue(Queue::new("q.dlq"));
    let problems = problems(&topology);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(
        problems
            .iter()
            .all(|p| p.starts_with("two declarations of one name differ: "))
    );
    let agreed = Topology::new()
        .exchange("acemq.dlx", ExchangeKind::Direct)
        .queue(Queue::new("q").dead_letter())
        .queue(Queue::new("q.dlq").classic())
        .bind("q.parked", "acemq.dlx", "more");
    assert!(agreed.plan().is_ok());
}

fn name() -> impl Strategy<Value = String> {
    let plain = prop::sample::select(vec!["a", "b", "a.dlq", "a.retry.1m", "acemq.dlx", ""]);
    prop_oneof![9 => plain.prop_map(str::to_owned), 1 => "[a-z]{245,256}"]
}

prop_compose! {
    fn queue()(
        name in name(),
        flags in prop::collection::vec(prop::bool::weighted(0.2), 5),
        dead_letter in any::<bool>(),
        delay in 0_u64..200,
    ) -> Queue {
        let mut queue = Queue::new(name).retry(&every(secs(delay))).durable(!flags[0]);
        for (set, flag) in [
            (flags[1], Queue::exclusive as fn(Queue) -> Queue),
            (flags[2], Queue::auto_delete),
            (flags[3], Queue::quorum),
            (flags[4], Queue::classic),
            (dead_letter, Queue::dead_letter),
        ] {
            if set {
                queue = flag(queue);
            }
        }
        queue
    }
}

prop_compose! {
    fn topology()(
        exchanges in prop::collection::vec(name(), 0..3),
        queues in prop::collection::vec(queue(), 0..3),
        bindings in prop::collection::vec((name(), name(), "[a-z]{0,3}"), 0..3),
    ) -> Topology {
        let mut topology = Topology::new();
        for name in exchanges {
            topology = topology.exchange(name, ExchangeKind::Direct);
        }
        for queue in queues {
            topology = topology.queue(queue);
        }
        for (queue, exchange, key) in bindings {
            topology = topology.bind(queue, exchange, key);
        }
        topology
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn plan_has_no_duplicates_and_no_forward_references(topology in topology()) {
        let Ok(plan) = topology.plan() else {
            prop_assert!(!problems(&topology).is_empty());
            return Ok(());
        };
        let (mut exchanges, mut queues) = (HashSet::new(), HashSet::new());
        for declaration in plan.declarations() {
            match declaration {
                Declaration::Exchange { name, .. } => {
                    prop_assert!(name.len() <= 255);
                    prop_assert!(exchanges.insert(name.as_str()));
                }
                Declaration::Queue { name, arguments, .. } => {
                    prop_assert!(name.len() <= 255);
                    prop_assert!(queues.insert(name.as_str()));
                    let target = arguments.get("x-dead-letter-exchange");
                    if let Some(target) = target.and_then(|value| value.as_str()) {
                        prop_assert!(exchanges.contains(target));
                    }
                    let target = arguments.get("x-dead-letter-routing-key");
                    if let Some(target) = target.and_then(|value| value.as_str()) {
                        prop_assert!(queues.contains(target));
                    }
                }
                Declaration::Binding { queue, exchange, .. } => {
                    prop_assert!(queues.contains(queue.as_str()));
                    prop_assert!(exchanges.contains(exchange.as_str()));
                }
            }
        }
        prop_assert_eq!(plan.to_string().lines().count(), plan.declarations().len());
    }
}
