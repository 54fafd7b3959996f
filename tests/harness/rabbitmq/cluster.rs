//! Three nodes that are one cluster.

use std::sync::OnceLock;
use std::thread;

use parking_lot::{Mutex, MutexGuard};

use super::node::Node;
use super::wait::{secs, wait_until};

/// Three brokers on 127.0.0.1 in one cluster. A quorum queue goes on while one of them is down; a
/// classic queue lives on the node that it was declared over.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
}

impl Cluster {
    /// The cluster of this test binary, started by the first test that asks, with all its nodes up.
    ///
    /// It takes some 20 s to start, so the tests share it; they kill its nodes, so each has it for
    /// itself.
    #[track_caller]
    pub fn alone() -> MutexGuard<'static, Self> {
        static CLUSTER: OnceLock<Mutex<Cluster>> = OnceLock::new();
        let cluster = CLUSTER.get_or_init(|| Mutex::new(Self::start())).lock();
        // A test that failed half-way may have left one down.
        for n in 0..cluster.nodes.len() {
            if !cluster.nodes[n].is_alive() {
                cluster.start_again(n);
            }
        }
        cluster
    }

    fn start() -> Self {
        let mut nodes = vec![Node::prepare(None)];
        for _ in 0..2 {
            nodes.push(Node::prepare(Some(&nodes[0])));
        }
        thread::scope(|scope| {
            for node in &mut nodes {
                scope.spawn(|| node.boot_first());
            }
        });
        let first = nodes[0].name();
        for node in &nodes[1..] {
            node.stop_app();
            node.ctl(&["join_cluster", first]);
            node.start_app();
        }
        let cluster = Self { nodes };
        cluster.wait_until_whole();
        cluster
    }

    /// The nodes, in the order of their numbers.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One of the nodes 0, 1 and 2.
    pub fn node(&self, n: usize) -> &Node {
        &self.nodes[n]
    }

    /// The address of each node, as `host:port`.
    pub fn addresses(&self) -> Vec<String> {
        let address = |node: &Node| format!("127.0.0.1:{}", node.port());
        self.nodes.iter().map(address).collect()
    }

    /// Kills a node without a warning, and waits until the others know.
    #[track_caller]
    pub fn kill_9(&self, n: usize) {
        self.nodes[n].kill_9();
        let others = self.nodes.len() - 1;
        for node in self.nodes.iter().filter(|node| node.is_alive()) {
            wait_until(secs(30), "the loss of a node is known", || {
                running(node) == others && node.eval(RUNNING_DATABASES) == others.to_string()
            });
            // Its monitor has handled the loss once it answers.
            node.eval("_ = sys:get_state(rabbit_node_monitor), ok");
        }
    }

    /// Starts a killed node again, and waits until it is a member again.
    #[track_caller]
    pub fn start_again(&self, n: usize) {
        self.nodes[n].start_again();
        self.wait_until_whole();
    }

    /// Waits until every node knows all of them, and each quorum queue has its copies on all of
    /// them.
    #[track_caller]
    fn wait_until_whole(&self) {
        for node in &self.nodes {
            wait_until(secs(60), "the node is a member", || {
                running(node) == self.nodes.len()
            });
        }
        wait_until(secs(60), "the quorum queues are whole", || {
            self.nodes[0].eval(INCOMPLETE_QUEUES) == "[]"
        });
    }
}

/// How many members of the cluster run as far as `node` knows.
fn running(node: &Node) -> usize {
    let erlang = "length([N || N <- [node() | nodes()], rabbit:is_running(N)])";
    node.eval(erlang).parse().unwrap()
}

/// How many members the node's database counts as running, which decides whether a queue is down.
const RUNNING_DATABASES: &str = "length(mnesia:system_info(running_db_nodes))";

/// The quorum queues with a replica that does not run.
const INCOMPLETE_QUEUES: &str = "
[N || V <- rabbit_vhost:list_names(), [{name, {resource, _, _, N}}, {members, M}, {online, O}]
      <- rabbit_amqqueue:info_all(V, [name, members, online]), is_list(M), length(M) =/= length(O)]";
