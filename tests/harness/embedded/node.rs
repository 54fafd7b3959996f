//! An embedded broker in place of a rabbitmq-server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rungmq::testing::{MemoryBroker, Permission, Profile};
use rungmq::{Headers, Properties};

/// Which version it behaves like; by default that of the RabbitMQ that most runs use.
const PROFILE: &str = "RUNGMQ_TEST_PROFILE";

static NODES: Mutex<BTreeMap<String, Weak<Inner>>> = Mutex::new(BTreeMap::new());

/// A broker of the test's own, with one virtual host.
#[derive(Clone, Debug)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
pub struct Inner {
    broker: MemoryBroker,
    profile: Profile,
    /// Names the broker where a port does that.
    port: u16,
    /// The raw clients that are connected.
    pub(super) raws: Mutex<BTreeMap<u64, Arc<Client>>>,
    state: Mutex<State>,
}

/// What the node knows of a raw client.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// The broker has closed its connection.
    pub(super) cut: AtomicBool,
    /// Its channel consumes, and is shown by the broker.
    pub(super) consumes: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    frozen: bool,
    alarm: bool,
    /// Publishes of raw clients that the broker has not read yet.
    unread: Vec<(String, Vec<u8>)>,
}

impl Node {
    #[track_caller]
    pub fn start() -> Self {
        let profile = std::env::var(PROFILE).unwrap_or_else(|_| "3.10".to_owned());
        let profile: Profile = profile.parse().expect(PROFILE);
        let broker = MemoryBroker::builder().profile(profile).start().unwrap();
        let mut nodes = NODES.lock();
        nodes.retain(|_, node| node.strong_count() > 0);
        let mut port = 1;
        while nodes
            .values()
            .any(|node| node.upgrade().is_some_and(|node| node.port == port))
        {
            port += 1;
        }
        let inner = Arc::new(Inner {
            broker,
            profile,
            port,
            raws: Mutex::default(),
            state: Mutex::default(),
        });
        let node = Self(inner);
        nodes.insert(node.name(), Arc::downgrade(&node.0));
        node
    }

    /// The node with that virtual host.
    #[track_caller]
    pub(super) fn of(vhost: &str) -> Self {
        let node = NODES.lock().get(vhost).and_then(Weak::upgrade);
        Self(node.unwrap_or_else(|| panic!("there is no broker {vhost}")))
    }

    #[track_caller]
    pub(super) fn at(port: u16) -> Self {
        let nodes = NODES.lock();
        let mut nodes = nodes.values().filter_map(Weak::upgrade);
        Self(
            nodes
                .find(|node| node.port == port)
                .expect("a node at that port"),
        )
    }

    pub(super) fn broker(&self) -> &MemoryBroker {
        &self.0.broker
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.0
    }

    /// The name of its one virtual host.
    pub(super) fn name(&self) -> String {
        let url = self.broker().url();
        url.strip_prefix("memory://").unwrap().to_owned()
    }

    pub fn major(&self) -> u32 {
        match self.0.profile {
            Profile::V3_10 => 3,
            _ => 4,
        }
    }

    pub fn port(&self) -> u16 {
        self.0.port
    }

    pub fn url(&self) -> String {
        self.broker().url()
    }

    pub fn url_for(&self, vhost: &str) -> String {
        format!("memory://{vhost}")
    }

    /// The broker has one user; name and password are ignored.
    pub fn url_for_user(&self, _user: &str, _password: &str, vhost: &str) -> String {
        self.url_for(vhost)
    }

    pub fn add_user(&self, _user: &str, _password: &str) {}

    /// What the one user may do from now on; the patterns that the tests use.
    #[track_caller]
    pub fn set_permissions(
        &self,
        _user: &str,
        _vhost: &str,
        configure: &str,
        write: &str,
        read: &str,
    ) {
        self.broker().allow_all();
        match configure {
            ".*" => {}
            "^$" => self.broker().refuse(Permission::Declare),
            other => panic!("not on the embedded broker: {other}"),
        }
        match write {
            ".*" => {}
            // The right to bind, and that to declare has gone already.
            "^amq\\.default$" if configure == "^$" => {}
            "^$" | "^(?!amq\\.default$)" => self.broker().refuse(Permission::Publish),
            other => panic!("not on the embedded broker: {other}"),
        }
        match read {
            ".*" => {}
            "^$" | "^acemq" => self.broker().refuse(Permission::Consume),
            other => panic!("not on the embedded broker: {other}"),
        }
    }

    /// Drops every connection, those of raw clients too; returns how many there were.
    pub fn close_connections(&self, _vhost: &str) -> usize {
        let connections = self.broker().connections().len();
        self.broker().drop_connections();
        connections + self.cut_raws()
    }

    pub fn close_all_connections(&self) {
        self.close_connections("");
    }

    fn cut_raws(&self) -> usize {
        let raws = std::mem::take(&mut *self.0.raws.lock());
        for raw in raws.values() {
            raw.cut.store(true, Ordering::SeqCst);
        }
        raws.len()
    }

    pub fn stop_app(&self) {
        self.cut_raws();
        self.broker().stop();
        *self.0.state.lock() = State {
            stopped: true,
            ..State::default()
        };
    }

    pub fn start_app(&self) {
        self.0.state.lock().stopped = false;
        self.broker().start();
    }

    /// A kill equals a stop: the broker stores each message as it takes it.
    pub fn kill_9(&self) {
        self.stop_app();
    }

    pub fn start_again(&self) {
        self.start_app();
    }

    pub fn restart(&self) {
        self.stop_app();
        self.start_app();
    }

    pub fn restart_with_empty_data(&self) {
        self.stop_app();
        self.empty_data();
        self.start_app();
    }

    pub fn empty_data(&self) {
        for queue in self.broker().queues() {
            self.broker().delete_queue(&queue.name);
        }
        for exchange in self.broker().exchanges() {
            if !exchange.name.is_empty() && !exchange.name.starts_with("amq.") {
                self.broker().delete_exchange(&exchange.name).unwrap();
            }
        }
    }

    pub fn freeze(&self) {
        self.0.state.lock().frozen = true;
        self.broker().freeze();
    }

    pub fn thaw(&self) {
        self.0.state.lock().frozen = false;
        self.broker().thaw();
        self.read();
    }

    pub fn memory_alarm(&self, on: bool) {
        self.0.state.lock().alarm = on;
        if on {
            self.broker().block("low on memory");
        } else {
            self.broker().unblock();
            self.read();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.0.state.lock().stopped
    }

    /// Whether publishes of raw clients are read; what is not is kept for later.
    pub(super) fn reads(&self, queue: &str, body: &[u8]) -> bool {
        let mut state = self.0.state.lock();
        let reads = !state.frozen && !state.alarm;
        if !reads {
            state.unread.push((queue.to_owned(), body.to_vec()));
        }
        reads
    }

    #[track_caller]
    fn read(&self) {
        let unread = std::mem::take(&mut self.0.state.lock().unread);
        for (queue, body) in unread {
            let published =
                self.broker()
                    .publish("", &queue, Properties::default(), Headers::new(), body);
            published.unwrap();
        }
    }
}
