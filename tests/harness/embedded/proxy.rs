//! What a proxy does to the connections of a broker, done by the broker itself.

use parking_lot::Mutex;

use super::node::Node;

/// The way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToBroker,
    ToClient,
}

/// What happens to bytes that go one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Pass,
    Hold,
    Swallow,
}

/// All connections of a node but the raw clients'.
#[derive(Debug)]
pub struct Proxy {
    node: Node,
    flows: Mutex<[Flow; 2]>,
    attempts_before: usize,
}

impl Proxy {
    pub fn to(node: &Node) -> Self {
        Self {
            node: node.clone(),
            flows: Mutex::new([Flow::Pass; 2]),
            attempts_before: node.broker().connection_attempts(),
        }
    }

    #[track_caller]
    pub fn to_port(port: u16) -> Self {
        Self::to(&Node::at(port))
    }

    pub fn url_for(&self, vhost: &str) -> String {
        self.node.url_for(vhost)
    }

    /// What is held back on its way to the client alone counts as lost: it may not pass later.
    #[track_caller]
    pub fn set(&self, way: Way, flow: Flow) {
        let mut flows = *self.flows.lock();
        assert_ne!(
            flows,
            [Flow::Pass, Flow::Hold],
            "not on the embedded broker"
        );
        flows[way as usize] = flow;
        self.set_all(flows);
    }

    #[track_caller]
    pub fn set_both(&self, flow: Flow) {
        self.set_all([flow; 2]);
    }

    fn set_all(&self, flows: [Flow; 2]) {
        *self.flows.lock() = flows;
        let broker = self.node.broker();
        let [to_broker, to_client] = flows;
        match (to_broker, to_client) {
            // A broker that reads nothing sends nothing.
            (Flow::Hold, _) => broker.freeze(),
            (Flow::Swallow, _) => {
                broker.mute();
                broker.freeze();
            }
            (Flow::Pass, Flow::Pass) => {
                broker.unmute();
                broker.thaw();
            }
            (Flow::Pass, _) => broker.mute(),
        }
    }

    #[track_caller]
    pub fn swallow(&self, way: Way) {
        self.set(way, Flow::Swallow);
    }

    #[track_caller]
    pub fn pause(&self) {
        self.set_both(Flow::Hold);
    }

    #[track_caller]
    pub fn resume(&self) {
        self.set_both(Flow::Pass);
    }

    pub fn cut(&self) {
        self.node.broker().drop_connections();
    }

    /// Of those that stand, in the order they came.
    #[track_caller]
    pub fn cut_nth(&self, nth: usize) {
        let connections = self.node.broker().connections();
        self.node.broker().drop_connection(connections[nth].number);
    }

    pub fn refuse(&self, refuse: bool) {
        if refuse {
            self.node.broker().refuse_connections();
        } else {
            self.node.broker().accept_connections();
        }
    }

    /// Not bytes, but what was sent: it stays as long as they do and grows when they grow.
    #[track_caller]
    pub fn bytes(&self, way: Way) -> u64 {
        assert_eq!(way, Way::ToBroker, "not on the embedded broker");
        self.node.broker().operations()
    }

    pub fn accepted(&self) -> usize {
        self.node.broker().connection_attempts() - self.attempts_before
    }
}

impl Drop for Proxy {
    /// One that held something back ends what went through it.
    fn drop(&mut self) {
        if *self.flows.lock() != [Flow::Pass; 2] {
            self.refuse(true);
            self.cut();
            self.resume();
        }
    }
}
