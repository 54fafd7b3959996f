//! URLs end to end: logins with any character, virtual hosts, parameters, and no password in any
//! output.

use log::Level;
use rungmq::{Connection, Error};

use crate::harness::support::{Any, connect};
use crate::harness::wait::timed;
use crate::harness::{Node, Proxy, Vhost, logs, secs};

#[track_caller]
fn hidden(secret: &str, text: &str) {
    assert!(!text.contains(secret), "{text}");
}

#[track_caller]
fn hidden_in_logs(secret: &str) {
    let lines = logs::captured_with(Level::Trace, secret);
    assert!(lines.is_empty(), "{lines:#?}");
}

#[test]
fn wrong_password_error_names_user_and_hides_password() {
    logs::capture();
    let vhost = Vhost::new();
    let secret = "hunter2-is-wrong";
    let url = vhost.node().url_for_user("guest", secret, vhost.name());
    let builder = Connection::builder(url);
    hidden(secret, &format!("{builder:?}"));
    let (opened, took) = timed(|| builder.open());
    let error = opened.unwrap_err();
    assert!(took < secs(10), "{took:?}");
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("guest"), "{error}");
    assert!(error.to_string().contains("credentials"), "{error}");
    for text in [
        error.to_string(),
        format!("{error:?}"),
        format!("{error:#?}"),
    ] {
        hidden(secret, &text);
    }
    hidden_in_logs(secret);
}

#[test]
fn a_password_that_works_is_in_no_log_either() {
    logs::capture();
    let vhost = Vhost::new();
    let node = vhost.node();
    let secret = "hunter2-is-right";
    node.add_user("keeps-a-secret", secret);
    node.set_permissions("keeps-a-secret", vhost.name(), ".*", ".*", ".*");
    let mq = Connection::open(node.url_for_user("keeps-a-secret", secret, vhost.name())).unwrap();
    vhost.raw().classic("q");
    let consumer = mq.consume("q", |_: Any| ()).unwrap();
    mq.publish("", "q", &1).unwrap();
    for text in [
        format!("{mq:?}"),
        format!("{consumer:?}"),
        format!("{:?}", mq.consumer("q")),
    ] {
        hidden(secret, &text);
    }
    mq.close().unwrap();
    hidden_in_logs(secret);
    // The logger does see what goes on there.
    assert!(!logs::captured_with(Level::Trace, "handshake").is_empty());
}

#[test]
fn logins_with_any_character_are_accepted() {
    let vhost = Vhost::new();
    let node = vhost.node();
    for (user, password) in [
        ("us er@/:%?#ü", "p@ss:/?#[]%&+= ü€\"'"),
        ("plus+user", "plus+pass"),
        ("%41", "%2f%00"),
        ("a", "p"),
        ("long", &"x".repeat(500)),
    ] {
        node.add_user(user, password);
        node.set_permissions(user, vhost.name(), ".*", ".*", ".*");
        let mq = Connection::open(node.url_for_user(user, password, vhost.name())).unwrap();
        let rows = node.list_connections(vhost.name(), &["user"]);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0]["user"], user);
        mq.close().unwrap();
        crate::harness::wait_until(secs(10), "the connection is gone", || {
            node.list_connections(vhost.name(), &["user"]).is_empty()
        });
    }
    // What a URL may hold as it is needs no escape.
    let port = node.port();
    let url = format!(
        "amqp://plus+user:plus+pass@127.0.0.1:{port}/{}",
        vhost.name()
    );
    Connection::open(url).unwrap().close().unwrap();
}

#[test]
fn virtual_hosts_of_any_name_are_reached() {
    let node = Node::shared();
    for name in [
        "lo/gins",
        "lo gins",
        "lögins",
        "lo%2fgins",
        "lo+gins",
        "/logins/",
        "lo?gi#ns",
        ".",
        "..",
    ] {
        let vhost = Vhost::named(node, name);
        let mq = connect(&vhost);
        assert_eq!(node.list_connections(name, &["pid"]).len(), 1, "{name}");
        mq.close().unwrap();
    }
    let longest = "l".repeat(255);
    let vhost = Vhost::named(node, &longest);
    connect(&vhost).close().unwrap();
    // No path is the virtual host "/".
    for path in ["", "/", "/%2f", "/%2F"] {
        Connection::open(format!("amqp://127.0.0.1:{}{path}", node.port()))
            .unwrap()
            .close()
            .unwrap();
    }
}

#[test]
fn a_url_that_cannot_be_used_is_an_error_without_a_connection() {
    let proxy = Proxy::to(Node::shared());
    let port = proxy.port();
    let host = format!("amqp://guest:hunter2@127.0.0.1:{port}");
    for (url, part) in [
        (format!("{host}/?frame_max=4096"), "frame_max"),
        (format!("{host}/?heartbeat=hunter2"), "heartbeat"),
        (format!("{host}/?heartbeat=70000"), "heartbeat"),
        (format!("{host}/?channel_max=-1"), "channel_max"),
        (format!("{host}/?auth_mechanism=plain"), "auth_mechanism"),
        (format!("{host}/?heartbeat=3&verify=verify_none"), "verify"),
        (format!("{host}/a/b"), "virtual host"),
        (format!("{host}/{}", "v".repeat(256)), "virtual host"),
        // Unescaped, a password ends up in other parts of the URL.
        (
            format!("amqp://guest:12?hunter2@127.0.0.1:{port}"),
            "parameter",
        ),
        (format!("amqp://guest:12#hunter2@127.0.0.1:{port}"), "#"),
        (format!("amqp://guest:x/hunter2@127.0.0.1:{port}"), "URL"),
        (format!("http://guest:hunter2@127.0.0.1:{port}"), "scheme"),
        ("hunter2".to_owned(), "URL"),
    ] {
        let error = Connection::open(url.as_str()).unwrap_err();
        assert!(matches!(error, Error::Configuration(_)), "{error:?}");
        assert!(
            error.to_string().contains(part),
            "{part} is not in: {error}"
        );
        hidden("hunter2", &format!("{error} {error:?}"));
    }
    assert_eq!(proxy.accepted(), 0);
}

#[test]
fn heartbeats_are_what_was_asked_for() {
    let vhost = Vhost::new();
    let negotiated = || {
        let rows = vhost.list_connections(&["timeout"]);
        rows[0]["timeout"].as_u64().unwrap()
    };
    let url = vhost.url();
    for (builder, seconds) in [
        (Connection::builder(url.as_str()), 10),
        (Connection::builder(format!("{url}?heartbeat=3")), 3),
        (
            Connection::builder(format!("{url}?heartbeat=3")).heartbeat(secs(4.2)),
            5,
        ),
        // The broker asks for 60 s, and the shorter one counts.
        (Connection::builder(format!("{url}?heartbeat=600")), 60),
        (Connection::builder(format!("{url}?heartbeat=0")), 0),
    ] {
        let mq = builder.open().unwrap();
        assert_eq!(negotiated(), seconds);
        mq.close().unwrap();
        crate::harness::wait_until(secs(10), "the connection is gone", || {
            vhost.list_connections(&["pid"]).is_empty()
        });
    }
}

#[test]
fn consumers_leave_one_of_few_channels_free() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let mq = Connection::open(format!("{}?channel_max=8", vhost.url())).unwrap();
    let rows = vhost.list_connections(&["channel_max"]);
    assert!(rows.iter().any(|row| row["channel_max"] == 8), "{rows:?}");
    for n in 0..8 {
        raw.classic(&format!("q{n}"));
    }
    for n in 0..7 {
        mq.consume(&format!("q{n}"), |_: Any| ()).unwrap();
    }
    let error = mq.consume("q7", |_: Any| ()).unwrap_err();
    assert!(error.to_string().contains("channel_max"), "{error}");
    assert!(!matches!(error, Error::ConnectionLost { .. }), "{error:?}");
    assert_eq!(raw.consumers("q7"), 0);
    // Declaring and looking into queues go on by the channel that is left.
    let topology = rungmq::Topology::new().queue(rungmq::Queue::new("late").dead_letter());
    topology.apply(&mq).unwrap();
    assert!(mq.pull("late").unwrap().is_none());
    mq.publish("", "q0", &1).unwrap();
    raw.wait_for_count("q0", 0, secs(10));
    assert!(mq.is_running());
    mq.close().unwrap();
}
