//! The table that `orders` prints.

use std::process::Command;

use crate::harness::Vhost;
use crate::harness::worker_process::example;

#[test]
fn the_table_of_orders_tells_where_each_order_is() {
    let vhost = Vhost::new();
    let said = run(Some(&vhost.url()));
    assert!(said.starts_with(" "), "the first attempt at once: {said}");
    for row in vhost.list_queues(&["name", "messages"]) {
        assert_eq!(row["messages"], 0, "{row:?}");
    }
    assert!(
        vhost
            .queue_names()
            .contains(&"orders.new.retry.2s".to_owned())
    );
}

#[test]
fn orders_without_a_broker_runs_on_the_embedded_one() {
    let said = run(None);
    let (first, attempts) = said.split_once("\n\n").unwrap();
    assert!(first.starts_with("On the embedded broker"), "{first}");
    let mut attempts: Vec<&str> = attempts.lines().collect();
    attempts.sort_unstable();
    assert_eq!(
        attempts,
        [
            " 0.0 s, attempt 1: apples",
            " 0.0 s, attempt 1: pears",
            " 0.0 s, attempt 1: quinces",
            " 0.0 s, attempt 1: unicorns",
            " 0.5 s, attempt 2: pears",
            " 0.5 s, attempt 2: quinces",
            " 1.5 s, attempt 3: pears",
            " 1.5 s, attempt 3: quinces",
            " 3.5 s, attempt 4: quinces, back from its rung",
        ]
    );
}

/// Runs the example and holds its table to what must be in it; what it said before that.
fn run(url: Option<&str>) -> String {
    let mut orders = Command::new(example("orders"));
    orders.env_remove("AMQP_URL");
    if let Some(url) = url {
        orders.env("AMQP_URL", url);
    }
    let output = orders.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}{stderr}");
    let (said, table) = text.rsplit_once("\n\n").unwrap();
    let tries = |item: &str| {
        said.lines()
            .map(|line| line.trim_end_matches(", back from its rung"))
            .filter(|line| line.ends_with(&format!(": {item}")))
            .count()
    };
    assert_eq!(
        ["apples", "pears", "quinces", "unicorns"].map(tries),
        [1, 3, 4, 1]
    );
    let mut rows: Vec<(&str, &str)> = table
        .lines()
        .map(|line| {
            let (order, end) = line.split_at(36);
            (order.trim_end(), end.trim_start())
        })
        .collect();
    rows.sort_unstable();
    assert_eq!(rows.len(), 5, "{table}");
    let (order, end) = rows.remove(4);
    assert_eq!(order, r#"{"item":"unicorns","failures":0}"#);
    assert_eq!(
        end,
        "orders.new.dlq: retrying cannot help: FatalError: there are no unicorns"
    );
    let (order, end) = rows.remove(3);
    assert_eq!(order, "two melons, please");
    let undecodable = "orders.new.parked: could not be decoded: the body is not JSON: ";
    assert!(end.starts_with(undecodable), "{end}");
    assert_eq!(
        rows,
        [
            ("apples", "shipped on attempt 1"),
            ("pears", "shipped on attempt 3"),
            ("quinces", "shipped on attempt 4"),
        ]
    );
    said.to_owned()
}
