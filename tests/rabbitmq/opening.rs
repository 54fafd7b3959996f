//! Opening a connection that cannot come about: an error in bounded time with its cause in the
//! text.

use rungmq::{Connection, Error};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use crate::harness::wait::timed;
use crate::harness::{Node, Proxy, Vhost, secs};

/// Opening fails within `limit`; the text of the error.
#[track_caller]
fn fails(url: &str, limit: Duration) -> String {
    let (opened, took) = timed(|| Connection::open(url));
    let error = opened.unwrap_err();
    assert!(took < limit, "{took:?}: {error}");
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    error.to_string()
}

/// A server that answers the first bytes of each connection with `answer`, and with silence if that
/// is empty.
fn server(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut kept = Vec::new();
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut greeting = [0; 8];
            let _ = client.read_exact(&mut greeting);
            let _ = client.write_all(answer);
            kept.push(client);
        }
    });
    port
}

#[test]
fn a_broker_that_is_down_is_an_error_that_names_the_address() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let text = fails(&format!("amqp://127.0.0.1:{port}"), secs(5));
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn stopped_broker_is_an_error_and_started_one_is_reached() {
    let node = Node::start();
    node.stop_app();
    let text = fails(&node.url(), secs(5));
    assert!(text.contains(&node.port().to_string()), "{text}");
    node.start_app();
    Connection::open(node.url()).unwrap().close().unwrap();
    node.freeze();
    let (opened, took) = timed(|| {
        Connection::builder(node.url())
            .connect_timeout(secs(1))
            .open()
    });
    let text = opened.unwrap_err().to_string();
    assert!(took < secs(5), "{took:?}");
    assert!(text.contains("1s") || text.contains("limit"), "{text}");
}

#[test]
fn a_name_that_does_not_resolve_is_an_error_that_names_it() {
    let text = fails("amqp://no-such-host.invalid", secs(15));
    assert!(text.contains("no-such-host.invalid:5672"), "{text}");
}

#[test]
fn a_missing_virtual_host_is_named() {
    let node = Node::shared();
    let text = fails(&node.url_for("no/such vhost"), secs(10));
    assert!(
        text.contains("no/such vhost") && text.contains("530"),
        "{text}"
    );
}

#[test]
fn a_virtual_host_without_access_is_named() {
    let vhost = Vhost::new();
    let node = vhost.node();
    node.add_user("stranger-to-the-vhost", "x");
    let url = node.url_for_user("stranger-to-the-vhost", "x", vhost.name());
    let text = fails(&url, secs(10));
    assert!(
        text.contains(vhost.name()) && text.contains("530"),
        "{text}"
    );
}

#[test]
fn peer_that_is_not_amqp_is_an_error() {
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
        b"AMQP\x03\x01\x00\x00",
        // A frame header that announces a gigabyte.
        b"\x01\x00\x00\x3f\xff\xff\xff\x00\x0a\x00\x0a",
        b"\x15\x03\x01\x00\x02\x02\x46",
    ] {
        let text = fails(&format!("amqp://127.0.0.1:{}", server(answer)), secs(5));
        assert!(text.contains("AMQP"), "{}: {text}", answer.escape_ascii());
    }
}

#[test]
fn a_server_that_says_nothing_costs_the_limit_and_no_more() {
    let port = server(b"");
    let url = format!("amqp://127.0.0.1:{port}?connection_timeout=500");
    let text = fails(&url, secs(5));
    assert!(text.contains("500ms") || text.contains("limit"), "{text}");
    // The builder's limit goes before the URL's.
    let (opened, took) = timed(|| {
        Connection::builder(format!("amqp://127.0.0.1:{port}?connection_timeout=60000"))
            .connect_timeout(secs(0.5))
            .open()
    });
    assert!(opened.is_err() && took < secs(5), "{took:?}");
}

#[test]
fn server_that_hangs_up_is_an_error() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    proxy.refuse(true);
    fails(&proxy.url_for(vhost.name()), secs(5));
    proxy.refuse(false);
    Connection::open(proxy.url_for(vhost.name()))
        .unwrap()
        .close()
        .unwrap();
}

#[test]
fn further_addresses_are_tried_in_turn() {
    let vhost = Vhost::new();
    let dead = server(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let proxy = Proxy::to(vhost.node());
    let url = vhost
        .url()
        .replace(&vhost.node().port().to_string(), &dead.to_string());
    let mq = Connection::builder(url)
        .hosts([format!("127.0.0.1:{}", proxy.port())])
        .open()
        .unwrap();
    assert_eq!(proxy.accepted(), 1);
    mq.close().unwrap();
}
