//! A virtual host of the test's own, on a node it may share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use super::lists::Row;
use super::node::{Node, binary};
use super::raw::Raw;

/// A fresh virtual host on which guest may do everything; deleted, connections included, when
/// dropped.
#[derive(Debug)]
pub struct Vhost<'n> {
    node: &'n Node,
    name: String,
}

impl Vhost<'static> {
    /// A virtual host on the shared node.
    #[track_caller]
    pub fn new() -> Self {
        Self::on(Node::shared())
    }
}

impl<'n> Vhost<'n> {
    /// A virtual host on `node`.
    #[track_caller]
    pub fn on(node: &'n Node) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        // The name of the test shows in the broker's log.
        let test = thread::current()
            .name()
            .unwrap_or("test")
            .replace("::", "-");
        Self::named(
            node,
            &format!("{test}-{}", COUNT.fetch_add(1, Ordering::Relaxed)),
        )
    }

    /// A virtual host with a name that the test is about.
    #[track_caller]
    pub fn named(node: &'n Node, name: &str) -> Self {
        let name = name.to_owned();
        node.eval_ok(&format!(
            "rabbit_vhost:add({}, <<\"test\">>)",
            binary(&name)
        ));
        node.set_permissions("guest", &name, ".*", ".*", ".*");
        Self { node, name }
    }

    /// The node it is on.
    pub fn node(&self) -> &'n Node {
        self.node
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its URL, as guest.
    pub fn url(&self) -> String {
        self.node.url_for(&self.name)
    }

    /// A raw client on it.
    #[track_caller]
    pub fn raw(&self) -> Raw {
        Raw::open(&self.url())
    }

    /// Closes its connections from the broker's side; returns how many there were.
    #[track_caller]
    pub fn close_connections(&self) -> usize {
        self.node.close_connections(&self.name)
    }

    /// Deletes a queue, if there is one and it is empty.
    #[track_caller]
    pub fn delete_queue_if_empty(&self, queue: &str) {
        self.node.eval_ok(&format!(
            "case rabbit_amqqueue:lookup(rabbit_misc:r({}, queue, {})) of \
             {{ok, Q}} -> rabbit_amqqueue:delete(Q, false, true, <<\"test\">>), ok; _ -> ok end",
            binary(&self.name),
            binary(queue)
        ));
    }

    /// Makes a durable classic queue look as one on a cluster node that is down: known, and not
    /// there.
    #[track_caller]
    pub fn lose(&self, queue: &str) {
        self.node.eval_ok(&format!(
            "R = rabbit_misc:r({}, queue, {}), [Q] = mnesia:dirty_read(rabbit_queue, R), persistent_term:put(R, Q), \
             mnesia:dirty_delete(rabbit_queue, R)",
            binary(&self.name),
            binary(queue)
        ));
    }

    /// Brings back a queue after [`Vhost::lose`].
    #[track_caller]
    pub fn find(&self, queue: &str) {
        self.node.eval_ok(&format!(
            "mnesia:dirty_write(rabbit_queue, persistent_term:get(rabbit_misc:r({}, queue, {})))",
            binary(&self.name),
            binary(queue)
        ));
    }

    /// Suspends the process of a classic queue, which then answers no request, or resumes it.
    #[track_caller]
    pub fn suspend(&self, queue: &str, suspend: bool) {
        let verb = if suspend { "suspend" } else { "resume" };
        self.node.eval_ok(&format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r({}, queue, {})), sys:{verb}(amqqueue:get_pid(Q))",
            binary(&self.name),
            binary(queue)
        ));
    }

    /// Deletes those of `queues` that are there and empty; returns which that were.
    #[track_caller]
    pub fn delete_empty(&self, queues: &[String]) -> Vec<String> {
        let names: Vec<_> = queues.iter().map(|name| binary(name)).collect();
        let erlang = format!(
            "Gone = fun(N) -> case rabbit_amqqueue:lookup(rabbit_misc:r({}, queue, N)) of \
               {{ok, Q}} -> element(1, rabbit_amqqueue:delete(Q, false, true, <<\"test\">>)) == ok; _ -> false end end, \
             lists:join(\" \", [N || N <- [{}], Gone(N)])",
            binary(&self.name),
            names.join(", ")
        );
        let deleted = self.node.eval_text(&erlang);
        deleted.split_whitespace().map(str::to_owned).collect()
    }

    /// Sets a policy for what matches `pattern`.
    #[track_caller]
    pub fn set_policy(&self, name: &str, pattern: &str, definition: &serde_json::Value) {
        self.node.set_policy(&self.name, name, pattern, definition);
    }

    /// Removes a policy.
    #[track_caller]
    pub fn clear_policy(&self, name: &str) {
        self.node.clear_policy(&self.name, name);
    }

    /// Its queues, see [`Node::list_queues`].
    #[track_caller]
    pub fn list_queues(&self, columns: &[&str]) -> Vec<Row> {
        self.node.list_queues(&self.name, columns)
    }

    /// The row of one queue; `None` when there is no such queue.
    #[track_caller]
    pub fn queue(&self, name: &str, columns: &[&str]) -> Option<Row> {
        let columns = [&["name"], columns].concat();
        self.list_queues(&columns)
            .into_iter()
            .find(|row| row["name"] == name)
    }

    /// How many messages the queue holds now, delivered ones included. A quorum queue's leader is
    /// asked: its row shows what it counted some seconds ago.
    #[track_caller]
    pub fn message_count(&self, queue: &str) -> u64 {
        let count = self.node.eval_text(&format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r({}, queue, {})), \
             N = case amqqueue:get_type(Q) of \
               rabbit_quorum_queue -> \
                 {{ok, {{_, Total}}, _}} = \
                   ra:leader_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_total/1), \
                 Total; \
               _ -> [{{messages, Total}}] = rabbit_amqqueue:info(Q, [messages]), Total \
             end, integer_to_list(N)",
            binary(&self.name),
            binary(queue)
        ));
        count.parse().unwrap()
    }

    /// The names of its queues, in order.
    #[track_caller]
    pub fn queue_names(&self) -> Vec<String> {
        let rows = self.list_queues(&["name"]);
        let mut names: Vec<_> = rows
            .iter()
            .map(|row| row["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    /// Its exchanges, see [`Node::list_exchanges`].
    #[track_caller]
    pub fn list_exchanges(&self, columns: &[&str]) -> Vec<Row> {
        self.node.list_exchanges(&self.name, columns)
    }

    /// Its bindings, see [`Node::list_bindings`].
    #[track_caller]
    pub fn list_bindings(&self) -> Vec<Row> {
        self.node.list_bindings(&self.name)
    }

    /// Its consumers, see [`Node::list_consumers`].
    #[track_caller]
    pub fn list_consumers(&self) -> Vec<Row> {
        self.node.list_consumers(&self.name)
    }

    /// Its channels, see [`Node::list_channels`].
    #[track_caller]
    pub fn list_channels(&self, columns: &[&str]) -> Vec<Row> {
        self.node.list_channels(&self.name, columns)
    }

    /// Its connections, see [`Node::list_connections`].
    #[track_caller]
    pub fn list_connections(&self, columns: &[&str]) -> Vec<Row> {
        self.node.list_connections(&self.name, columns)
    }
}

impl Drop for Vhost<'_> {
    fn drop(&mut self) {
        // No reason to fail: the node may be down, and it goes with the test process anyway.
        let _ = self.node.try_eval(&format!(
            "rabbit_vhost:delete({}, <<\"test\">>)",
            binary(&self.name)
        ));
    }
}
