//! `amqps://` against a broker with certificates of the test's own.

use rungmq::{Ack, Bytes, Connection, Error, Message, Publish, TlsOptions, Topology};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::harness::support::Calls;
use crate::harness::wait::timed;
use crate::harness::{Authority, Certificate, Flow, Proxy, Vhost, Way, holds_for, secs};
use parking_lot::Mutex;

/// A virtual host that is reached by TLS.
struct Secured {
    vhost: Vhost<'static>,
    authority: Authority,
    port: u16,
}

impl Secured {
    /// The broker's certificate is for these names.
    fn new(names: &[&str], clients_certified: bool) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let vhost = Vhost::new();
        let name = format!("ca-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let authority = Authority::new(vhost.node().folder(), &name);
        let own = authority.server(names);
        let port = vhost
            .node()
            .listen_with_tls(&authority, &own, clients_certified);
        Self {
            vhost,
            authority,
            port,
        }
    }

    fn url(&self, host: &str) -> String {
        format!("amqps://{host}:{}/{}", self.port, self.vhost.name())
    }

    fn trusting(&self) -> TlsOptions {
        TlsOptions::new().certificate_authority(self.authority.file())
    }

    fn open(&self, url: String, options: TlsOptions) -> Result<Connection, Error> {
        Connection::builder(url).tls(options).open()
    }
}

fn shows(options: TlsOptions, certificate: &Certificate) -> TlsOptions {
    options.client_certificate(&certificate.chain, &certificate.key)
}

/// A body that no compression or repetition makes small, and whose every part is different.
fn body(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_be_bytes()
    })
    .flatten()
    .take(bytes)
    .collect()
}

/// Publishes and handles bodies of these sizes over a connection; each arrives as it was sent.
#[track_caller]
fn carries(mq: &Connection, vhost: &Vhost<'_>, sizes: &[usize]) {
    vhost.raw().classic("tls");
    let (received, calls) = (Arc::new(Mutex::new(Vec::new())), Calls::default());
    let (kept, counted) = (received.clone(), calls.clone());
    mq.consumer("tls")
        .codec(Bytes)
        .start(move |message: Message<Vec<u8>>| {
            kept.lock().push(message.into_payload());
            counted.add();
            Ack::accept()
        })
        .unwrap();
    for size in sizes {
        mq.publish_with(
            Publish::bytes(body(*size))
                .routing_key("tls")
                .mandatory(true),
        )
        .unwrap();
    }
    calls.wait_for(sizes.len(), secs(60));
    let received = received.lock();
    for (size, received) in sizes.iter().zip(received.iter()) {
        assert!(*received == body(*size), "{size} bytes differ");
    }
}

#[test]
fn a_private_authority_verifies_the_broker_and_everything_works() {
    let tls = Secured::new(&["localhost", "127.0.0.1"], false);
    for host in ["localhost", "127.0.0.1"] {
        let mq = tls.open(tls.url(host), tls.trusting()).unwrap();
        let rows = tls.vhost.list_connections(&["ssl"]);
        assert!(rows.iter().all(|row| row["ssl"] == true), "{rows:?}");
        carries(
            &mq,
            &tls.vhost,
            &[0, 1, 100, 16 * 1024, 131_072, 5 * 1024 * 1024, 7],
        );
        Topology::new()
            .queue(rungmq::Queue::new("declared").dead_letter())
            .apply(&mq)
            .unwrap();
        mq.close().unwrap();
        tls.vhost.raw().wait_for_count("tls", 0, secs(10));
    }
}

#[test]
fn many_messages_and_slow_readers_lose_nothing() {
    let tls = Secured::new(&["localhost"], false);
    let proxy = Proxy::to_port(tls.port);
    let url = format!("amqps://localhost:{}/{}", proxy.port(), tls.vhost.name());
    let mq = tls.open(url, tls.trusting()).unwrap();
    tls.vhost.raw().classic("slow");
    // Nothing is read at first, so that what is written fills every buffer on the way.
    mq.publish("", "slow", &0).unwrap();
    proxy.set(Way::ToBroker, Flow::Hold);
    std::thread::scope(|scope| {
        let publishing = scope.spawn(|| {
            mq.publish_all(
                (0..8).map(|_| Publish::bytes(body(3 * 1024 * 1024)).routing_key("slow")),
            )
        });
        holds_for(
            secs(1),
            "the broker confirms nothing that is held back",
            || !publishing.is_finished(),
        );
        proxy.set(Way::ToBroker, Flow::Pass);
        for result in publishing.join().unwrap() {
            result.unwrap();
        }
    });
    let raw = tls.vhost.raw();
    raw.get("slow").unwrap();
    for got in raw.drain("slow") {
        assert!(got.body == body(3 * 1024 * 1024));
    }
    let all: Vec<_> = (0..2000)
        .map(|n: u32| Publish::json(&n).unwrap().routing_key("slow"))
        .collect();
    assert!(mq.publish_all(all).iter().all(Result::is_ok));
    assert_eq!(raw.count("slow"), 2000);
    mq.close().unwrap();
}

#[track_caller]
fn refused(opened: Result<Connection, Error>, took: std::time::Duration, parts: &[&str]) {
    let error = opened.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(took < secs(10), "{took:?}: {error}");
    for part in parts {
        assert!(
            error.to_string().contains(part),
            "{part} is not in: {error}"
        );
    }
}

#[test]
fn a_broker_of_an_unknown_authority_is_refused() {
    let tls = Secured::new(&["localhost"], false);
    let other = Authority::new(tls.vhost.node().folder(), "another-ca");
    let options = TlsOptions::new().certificate_authority(other.file());
    let (opened, took) = timed(|| tls.open(tls.url("localhost"), options));
    refused(opened, took, &["TLS", "certificate"]);
    // No private authority is among the system's.
    let (opened, took) = timed(|| tls.open(tls.url("localhost"), TlsOptions::new()));
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    assert!(took < secs(10));
    assert!(tls.vhost.list_connections(&["pid"]).is_empty());
}

#[test]
fn a_broker_of_another_name_is_refused() {
    let tls = Secured::new(&["broker.example", "127.0.0.2"], false);
    for host in ["localhost", "127.0.0.1"] {
        let (opened, took) = timed(|| tls.open(tls.url(host), tls.trusting()));
        refused(opened, took, &["TLS", "certificate", host]);
    }
}

#[test]
fn a_client_certificate_is_required_and_given() {
    let tls = Secured::new(&["localhost"], true);
    let (opened, took) = timed(|| tls.open(tls.url("localhost"), tls.trusting()));
    refused(opened, took, &["ertificate"]);

    let stranger = Authority::new(tls.vhost.node().folder(), "strangers-ca").client("stranger");
    let (opened, took) = timed(|| tls.open(tls.url("localhost"), shows(tls.trusting(), &stranger)));
    refused(opened, took, &["UnknownCA"]);

    let client = tls.authority.client("service");
    let mq = tls
        .open(tls.url("localhost"), shows(tls.trusting(), &client))
        .unwrap();
    carries(&mq, &tls.vhost, &[10, 5 * 1024 * 1024]);
    mq.close().unwrap();
}

#[test]
fn a_client_certificate_is_the_login_when_the_url_says_so() {
    let tls = Secured::new(&["localhost"], true);
    let node = tls.vhost.node();
    let user = "known-by-certificate";
    node.add_user(user, "not used");
    node.set_permissions(user, tls.vhost.name(), ".*", ".*", ".*");
    let url = format!("{}?auth_mechanism=external", tls.url("localhost"));
    let client = tls.authority.client(user);
    let mq = tls
        .open(url.clone(), shows(tls.trusting(), &client))
        .unwrap();
    let rows = tls.vhost.list_connections(&["user"]);
    assert_eq!(rows[0]["user"], user);
    carries(&mq, &tls.vhost, &[10]);
    mq.close().unwrap();

    let unknown = tls.authority.client("unknown-to-the-broker");
    let (opened, took) = timed(|| tls.open(url, shows(tls.trusting(), &unknown)));
    refused(opened, took, &["credentials", "certificate"]);
}

#[test]
fn swapped_plain_and_tls_ports_are_errors_in_bounded_time() {
    let tls = Secured::new(&["localhost"], false);
    let plain = format!("amqps://localhost:{}", tls.vhost.node().port());
    let (opened, took) = timed(|| tls.open(plain, tls.trusting()));
    refused(opened, took, &["TLS"]);
    let (opened, took) = timed(|| {
        Connection::builder(format!("amqp://localhost:{}", tls.port))
            .connect_timeout(secs(2))
            .open()
    });
    refused(opened, took, &[]);
}

#[test]
fn files_that_cannot_be_used_are_named_before_anything_is_sent() {
    let vhost = Vhost::new();
    let folder = vhost.node().folder();
    let proxy = Proxy::to(vhost.node());
    let authority = Authority::new(folder, "fine-ca");
    let client = authority.client("fine");
    let empty = folder.join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let missing = Path::new("/no/such/file.pem");
    let trusting = || TlsOptions::new().certificate_authority(authority.file());
    for (options, part) in [
        (
            TlsOptions::new().certificate_authority(missing),
            "/no/such/file.pem",
        ),
        (TlsOptions::new().certificate_authority(&empty), "empty.pem"),
        (
            trusting().client_certificate(missing, &client.key),
            "/no/such/file.pem",
        ),
        (
            trusting().client_certificate(&client.chain, missing),
            "/no/such/file.pem",
        ),
        (
            trusting().client_certificate(&empty, &client.key),
            "empty.pem",
        ),
        (
            trusting().client_certificate(&client.chain, &authority.client("other").key),
            "client certificate",
        ),
    ] {
        let url = format!("amqps://localhost:{}", proxy.port());
        let error = Connection::builder(url).tls(options).open().unwrap_err();
        assert!(matches!(error, Error::Configuration(_)), "{error:?}");
        assert!(
            error.to_string().contains(part),
            "{part} is not in: {error}"
        );
    }
    assert_eq!(proxy.accepted(), 0);
}
