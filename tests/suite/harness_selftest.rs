//! Tests of what the other tests take for granted in the harness.

use amiquip::{AmqpProperties, AmqpValue, ExchangeType};
use serde_json::json;

use crate::harness::only_on_rabbitmq;
use crate::harness::wait::timed;
use crate::harness::{
    Flow, Node, Proxy, Raw, Vhost, Way, holds_for, logs, secs, table, wait_until,
};

#[test]
fn a_message_comes_back_with_everything_it_had() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.exchange("events", ExchangeType::Topic);
    raw.quorum("q");
    raw.bind("q", "events", "order.#");
    let headers = table([
        ("text", AmqpValue::LongString("déjà vu".to_owned())),
        ("number", AmqpValue::LongInt(-7)),
        ("nested", AmqpValue::FieldTable(table([("deep", 1_i64)]))),
        (
            "array",
            AmqpValue::FieldArray(vec![AmqpValue::Boolean(true), AmqpValue::Void]),
        ),
    ]);
    let properties = AmqpProperties::default()
        .with_message_id("id-1".to_owned())
        .with_priority(7)
        .with_delivery_mode(2)
        .with_headers(headers);
    raw.publish("events", "order.placed", "hello", properties.clone());

    raw.wait_for_count("q", 1, secs(5));
    assert_eq!(raw.browse("q")[0].text(), "hello");
    raw.wait_for_count("q", 1, secs(5));
    let got = raw.get("q").unwrap();
    assert_eq!(
        (got.exchange.as_str(), got.routing_key.as_str()),
        ("events", "order.placed")
    );
    assert!(got.redelivered);
    assert_eq!(got.header_number("number"), Some(-7));
    assert_eq!(got.header_text("text"), Some("déjà vu"));
    let mut expected = properties.headers().clone().unwrap();
    // The count of earlier deliveries, which quorum queues add.
    if let Some(count) = got.header("x-delivery-count") {
        expected.insert("x-delivery-count".to_owned(), count.clone());
    }
    for (name, value) in &expected {
        assert_eq!(got.header(name), Some(value), "{name}");
    }
    assert_eq!(got.message_id(), Some("id-1"));
    assert_eq!(raw.drain("q"), []);
}

#[test]
fn many_messages_are_confirmed_at_once() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    raw.send_all(
        "q",
        (0..1000).map(|n| n.to_string()),
        &AmqpProperties::default(),
    );
    assert_eq!(raw.count("q"), 1000);
    let bodies: Vec<_> = raw
        .drain("q")
        .iter()
        .map(|got| got.text().to_owned())
        .collect();
    assert_eq!(bodies, (0..1000).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(raw.comes_back("", "nowhere"));
    assert!(!raw.comes_back("", "q"));
    assert_eq!(raw.purge("q"), 1);
}

only_on_rabbitmq! { "text that is not UTF-8";
#[test]
fn text_that_is_not_utf_8_reaches_the_broker() {
    use crate::harness::{BAD, BAD_BYTES};
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let headers = table([("bad", BAD)]);
    raw.send("q", "x", AmqpProperties::default().with_headers(headers));
    raw.get("q");
    assert!(raw.has_seen(&[b"\x03badS\0\0\0\x03", &BAD_BYTES[..]].concat()));
}
}

only_on_rabbitmq! { "direct reply-to";
#[test]
fn a_request_times_out_without_an_answer() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    assert_eq!(
        raw.request("q", "?", AmqpProperties::default(), secs(0.3)),
        None
    );
    let request = raw.get("q").unwrap();
    let reply_to = request.properties.reply_to().clone().unwrap();
    assert!(reply_to.starts_with("amq.rabbitmq.reply-to."), "{reply_to}");
}
}

only_on_rabbitmq! { "a node with several virtual hosts";
#[test]
fn virtual_hosts_see_nothing_of_each_other() {
    let (one, other) = (Vhost::new(), Vhost::new());
    one.raw().classic("q");
    assert!(one.raw().exists("q"));
    assert!(!other.raw().exists("q"));
    assert_eq!(one.queue_names(), ["q"]);
    assert_eq!(other.queue_names(), [""; 0]);

    let name = one.name().to_owned();
    drop(one);
    let vhosts = Node::shared().eval("rabbit_vhost:list_names()");
    assert!(!vhosts.contains(&name), "{vhosts}");
    assert!(vhosts.contains(other.name()), "{vhosts}");
}
}

#[test]
fn lists_show_what_is_there() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.queue("q", table([("x-message-ttl", 60_000_i64)]));
    raw.exchange("x", ExchangeType::Fanout);
    raw.bind("q", "x", "key");
    raw.send("q", "1", AmqpProperties::default());
    raw.send("q", "2", AmqpProperties::default());
    let row = vhost
        .queue("q", &["messages", "consumers", "arguments", "policy"])
        .unwrap();
    assert_eq!(row["messages"], 2);
    assert_eq!(row["consumers"], 0);
    // RabbitMQ 4 adds the queue type.
    assert_eq!(row["arguments"]["x-message-ttl"], 60_000);

    vhost.set_policy("p", "^q$", &json!({"max-length": 1}));
    wait_until(secs(10), "the policy cuts the queue", || {
        raw.count("q") == 1
    });
    assert_eq!(vhost.queue("q", &["policy"]).unwrap()["policy"], "p");
    vhost.clear_policy("p");

    let exchanges = vhost.list_exchanges(&["name", "type"]);
    assert!(
        exchanges
            .iter()
            .any(|row| row["name"] == "x" && row["type"] == "fanout")
    );
    let bindings = vhost.list_bindings();
    assert!(
        bindings
            .iter()
            .any(|row| row["source_name"] == "x" && row["routing_key"] == "key"),
        "{bindings:?}"
    );

    raw.occupy("q");
    assert_eq!(raw.consumers("q"), 1);
    let consumers = vhost.list_consumers();
    assert_eq!(consumers.len(), 1);
    assert_eq!(consumers[0]["queue_name"], "q");
    wait_until(secs(5), "the message is out", || raw.count("q") == 0);
    let channels = vhost.list_channels(&["consumer_count", "messages_unacknowledged"]);
    assert_eq!(channels.len(), 1);
    assert_eq!(channels[0]["messages_unacknowledged"], 1);
    let connections = vhost.list_connections(&["user", "channels", "client_properties"]);
    assert_eq!(
        (&connections[0]["user"], &connections[0]["channels"]),
        (&json!("guest"), &json!(1))
    );

    assert_eq!(vhost.close_connections(), 1);
    let again = vhost.raw();
    again.wait_for_count("q", 1, secs(5));
}

only_on_rabbitmq! { "users with rights of their own";
#[test]
fn a_user_may_do_what_was_permitted() {
    let vhost = Vhost::new();
    let node = vhost.node();
    node.add_user("reader", "s3cret/pass@word");
    let url = node.url_for_user("reader", "s3cret/pass@word", vhost.name());
    assert!(Raw::try_open(&url).is_err());
    node.set_permissions("reader", vhost.name(), "^$", "^$", ".*");
    vhost.raw().classic("q");
    assert_eq!(Raw::open(&url).get("q"), None);
    assert!(node.ctl(&["list_users"]).contains("reader"));
}
}

#[test]
fn a_killed_node_keeps_durable_messages_until_its_data_is_gone() {
    let node = Node::start();
    let raw = Raw::open(&node.url());
    raw.classic("q");
    raw.send("q", "kept", AmqpProperties::default().with_delivery_mode(2));
    node.kill_9();
    assert!(Raw::try_open(&node.url()).is_err());
    node.start_again();
    assert_eq!(Raw::open(&node.url()).browse("q")[0].text(), "kept");
    node.stop_app();
    assert!(Raw::try_open(&node.url()).is_err());
    node.start_app();
    assert_eq!(Raw::open(&node.url()).browse("q")[0].text(), "kept");
    node.restart();
    assert_eq!(Raw::open(&node.url()).count("q"), 1);
    node.restart_with_empty_data();
    assert!(!Raw::open(&node.url()).exists("q"));
}

#[test]
fn a_node_freezes_thaws_and_blocks() {
    let node = Node::start();
    let vhost = Vhost::on(&node);
    let raw = vhost.raw();
    raw.classic("q");

    node.freeze();
    assert_eq!(raw.publish_within(secs(0.5), "q", b"later"), None);
    node.thaw();
    raw.wait_for_count("q", 1, secs(10));

    node.memory_alarm(true);
    let (publisher, reader) = (vhost.raw(), vhost.raw());
    assert_eq!(publisher.publish_within(secs(0.5), "q", b"later"), None);
    assert_eq!(
        reader.count("q"),
        1,
        "a connection that never published is not blocked"
    );
    node.memory_alarm(false);
    reader.wait_for_count("q", 2, secs(10));

    // A frozen node is no obstacle to the end of a test. Its virtual host is deleted before.
    drop((raw, publisher, reader, vhost));
    node.freeze();
}

only_on_rabbitmq! { "bytes on a socket";
#[test]
fn a_proxy_counts_holds_loses_and_cuts() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let proxy = Proxy::to(vhost.node());
    let url = proxy.url_for(vhost.name());

    let raw = Raw::open(&url);
    let before = proxy.bytes(Way::ToBroker);
    raw.send("q", vec![b'x'; 1000], AmqpProperties::default());
    assert!(proxy.bytes(Way::ToBroker) > before + 1000);

    proxy.pause();
    assert_eq!(raw.publish_within(secs(0.2), "q", b"held"), None);
    let direct = vhost.raw();
    assert_eq!(direct.count("q"), 1);
    proxy.resume();
    direct.wait_for_count("q", 2, secs(5));

    proxy.swallow(Way::ToBroker);
    assert_eq!(raw.publish_within(secs(0.2), "q", b"lost"), None);
    holds_for(secs(0.2), "the message is lost", || direct.count("q") == 2);

    let cut = Raw::open(&{
        proxy.set_both(Flow::Pass);
        url.clone()
    });
    proxy.cut();
    wait_until(secs(5), "the broker sees the end", || {
        vhost.list_connections(&["pid"]).len() == 1
    });
    drop(cut);
    assert_eq!(Raw::open(&url).count("q"), 2);
    proxy.refuse(true);
    assert!(Raw::try_open(&url).is_err());
    assert_eq!(proxy.accepted(), 4);
}
}

only_on_rabbitmq! { "a process of its own";
#[test]
fn commands_are_quick() {
    let node = Node::shared();
    let evals: Vec<_> = (0..50).map(|_| timed(|| node.eval("1 + 1")).1).collect();
    let (vhost, vhost_time) = timed(Vhost::new);
    let (_, connect) = timed(|| vhost.raw());
    println!(
        "RabbitMQ {}: eval {:?} to {:?}, vhost {vhost_time:?}, raw client {connect:?}",
        node.version(),
        evals.iter().min().unwrap(),
        evals.iter().max().unwrap()
    );
    let slow: Vec<_> = evals
        .iter()
        .enumerate()
        .filter(|(_, time)| **time > secs(10))
        .collect();
    assert!(slow.is_empty(), "{slow:?}");
}
}

#[test]
fn logs_are_kept() {
    logs::capture();
    log::warn!("a line of {}", "logs_are_kept");
    assert_eq!(
        logs::captured_with(log::Level::Warn, "a line of logs_are_kept").len(),
        1
    );
    assert_eq!(
        logs::captured_with(log::Level::Error, "a line of logs_are_kept").len(),
        0
    );
}
