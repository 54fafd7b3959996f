//! Tests of topologies on a broker: what the plan says is declared, and a plan with a problem
//! declares nothing.

use amiquip::AmqpProperties;
use rungmq::{Ack, Connection, Error, ExchangeKind, Queue, RetryPolicy, Topology};
use serde_json::{Value, json};

use crate::harness::support::{Any, Calls, Declared, connect};
use crate::harness::{Vhost, secs, wait_until};

/// What stands, written as the lines of a plan are.
fn lines(declared: &Declared) -> Vec<String> {
    let durability = |row: &Value| {
        if row["durable"] == true {
            "durable"
        } else {
            "transient"
        }
    };
    let exchanges = declared.exchanges.iter().map(|row| {
        format!(
            "exchange {} ({}, {})",
            row["name"],
            row["type"].as_str().unwrap(),
            durability(row)
        )
    });
    let queues = declared.queues.iter().map(|row| {
        let flags: String = [
            ("exclusive", ", exclusive"),
            ("auto_delete", ", auto-delete"),
        ]
        .iter()
        .filter(|(flag, _)| row[flag] == true)
        .map(|(_, text)| *text)
        .collect();
        let arguments = row["arguments"].as_object().unwrap();
        let mut arguments: Vec<_> = arguments
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        arguments.sort();
        let space = if arguments.is_empty() { "" } else { " " };
        format!(
            "queue {} ({}{flags}){space}{}",
            row["name"],
            durability(row),
            arguments.join(", ")
        )
    });
    let bindings = declared.bindings.iter().map(|row| {
        format!(
            "binding of {} to {} with {}",
            row["destination"], row["source"], row["routing_key"]
        )
    });
    let mut lines: Vec<_> = exchanges.chain(queues).chain(bindings).collect();
    lines.sort();
    lines
}

#[test]
fn the_plan_is_what_stands_afterwards() {
    let vhost = Vhost::new();
    let mq = connect(&vhost);
    let policy = RetryPolicy::exponential(6, secs(10), secs(300)).unwrap();
    let topology = Topology::new()
        .exchange("orders", ExchangeKind::Topic)
        .exchange("all", ExchangeKind::Fanout)
        .exchange("by-headers", ExchangeKind::Headers)
        .queue(Queue::new("orders.new").dead_letter().retry(&policy))
        .queue(Queue::new("plain"))
        .queue(
            Queue::new("classic")
                .classic()
                .argument("x-max-length", 7_i64),
        )
        .queue(Queue::new("own").exclusive())
        .queue(Queue::new("own.transient").exclusive().durable(false))
        .queue(Queue::new("passing").auto_delete())
        .bind("orders.new", "orders", "order.*")
        .bind("orders.new", "orders", "")
        .bind("plain", "all", "")
        .bind("classic", "by-headers", "")
        .bind("own", "amq.topic", "#");
    let plan = topology.plan().unwrap();
    topology.apply(&mq).unwrap();
    // The broker makes every exclusive queue transient.
    let plan = plan
        .to_string()
        .replace("(durable, exclusive)", "(transient, exclusive)");
    let mut planned: Vec<_> = plan.lines().map(str::to_owned).collect();
    planned.sort();
    let mut standing = Declared::on(&vhost);
    // The binding to an exchange that RabbitMQ brings along is shown with the others.
    assert_eq!(lines(&standing), planned);
    standing.queues.retain(|row| row["type"] == "quorum");
    let quorum: Vec<_> = standing.queues.iter().map(|row| &row["name"]).collect();
    assert_eq!(quorum, ["orders.new", "plain"]);
    mq.close().unwrap();
}

#[test]
fn topology_with_problems_declares_nothing_and_names_all() {
    let vhost = Vhost::new();
    let mq = connect(&vhost);
    let before = Declared::on(&vhost);
    let error = Topology::new()
        .exchange("fine", ExchangeKind::Topic)
        .queue(Queue::new("fine"))
        .queue(Queue::new(" "))
        .queue(Queue::new("twice"))
        .queue(Queue::new("twice"))
        .queue(Queue::new("flags").quorum().exclusive())
        .queue(Queue::new("transient").durable(false))
        .queue(Queue::new("log").stream())
        .bind("fine", "nowhere", "k")
        .bind("nobody", "fine", "k")
        .apply(&mq)
        .unwrap_err();
    let Error::Topology(problems) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(problems.problems().len(), 7, "{error}");
    for part in [
        "blank",
        "\"twice\"",
        "\"flags\"",
        "\"transient\"",
        "\"log\"",
        "\"nowhere\"",
        "\"nobody\"",
    ] {
        assert!(
            error.to_string().contains(part),
            "{part} is not in: {error}"
        );
    }
    assert_eq!(Declared::on(&vhost), before);
    assert!(mq.is_running());
    mq.close().unwrap();
}

/// The broker itself dead-letters by the name that was chosen; the library's own copies reach the
/// queue by its name.
#[test]
fn renamed_dead_letter_exchange_takes_expired_messages() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let mq = connect(&vhost);
    Topology::new()
        .dead_letter_exchange("team.dlx")
        .queue(
            Queue::new("q")
                .classic()
                .dead_letter()
                .argument("x-max-length", 1_i64),
        )
        .apply(&mq)
        .unwrap();
    let declared = Declared::on(&vhost);
    assert!(declared.has_exchange("team.dlx") && !declared.has_exchange("acemq.dlx"));
    assert_eq!(
        declared.queue("q")["arguments"]["x-dead-letter-exchange"],
        "team.dlx"
    );
    raw.send("q", "1", AmqpProperties::default());
    raw.send("q", "2", AmqpProperties::default());
    raw.wait_for_count("q.dlq", 1, secs(10));

    // A consumer declares acemq.dlx all the same, beside it.
    mq.consume("q", |_: Any| Ack::reject("no")).unwrap();
    raw.wait_for_count("q.dlq", 2, secs(10));
    let declared = Declared::on(&vhost);
    for exchange in ["team.dlx", "acemq.dlx"] {
        assert!(declared.has_exchange(exchange));
        for queue in ["q.dlq", "q.parked"] {
            assert_eq!(declared.bound_by_name(exchange, queue), 1);
        }
    }
    mq.close().unwrap();
}

#[test]
fn exclusive_queue_ends_with_its_connection() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let mq = connect(&vhost);
    Topology::new()
        .queue(Queue::new("own").exclusive())
        .apply(&mq)
        .unwrap();
    assert_eq!(
        *Declared::on(&vhost).queue("own"),
        json!({"name": "own", "type": "classic", "durable": false, "arguments": {}, "exclusive": true})
    );
    let calls = Calls::default();
    let counted = calls.clone();
    mq.consume("own", move |_: Any| counted.add()).unwrap();
    mq.publish("", "own", &1).unwrap();
    calls.wait_for(1, secs(10));
    mq.close().unwrap();
    wait_until(secs(10), "the queue is gone", || {
        !vhost.queue_names().contains(&"own".to_owned())
    });
    assert!(raw.exists("own.dlq"));
}

#[test]
fn an_auto_delete_queue_ends_with_its_consumer() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let mq = connect(&vhost);
    Topology::new()
        .queue(Queue::new("passing").auto_delete())
        .apply(&mq)
        .unwrap();
    assert_eq!(Declared::on(&vhost).queue("passing")["auto_delete"], true);
    let consumer = mq.consume("passing", |_: Any| ()).unwrap();
    raw.wait_for_consumers("passing", 1, secs(10));
    consumer.cancel(secs(10)).unwrap();
    wait_until(secs(10), "the queue is gone", || !raw.exists("passing"));
    assert!(mq.is_running());
    mq.close().unwrap();
}

#[test]
fn nothing_is_declared_over_a_closed_connection() {
    let vhost = Vhost::new();
    let mq = Connection::open(vhost.url()).unwrap();
    mq.close().unwrap();
    let topology = Topology::new().queue(Queue::new("q"));
    assert!(matches!(topology.apply(&mq), Err(Error::Closed)));
    assert!(matches!(mq.consume("q", |_: Any| ()), Err(Error::Closed)));
    assert_eq!(vhost.queue_names(), [""; 0]);
}
