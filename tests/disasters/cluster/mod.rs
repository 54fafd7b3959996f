//! A cluster whose nodes go down and come back: the source is a quorum queue, everything else lives
//! on one node.

mod down;
mod rolling;

use amiquip::AmqpProperties;
use rungmq::{Connection, ConnectionBuilder, Queue, RetryPolicy};

use crate::harness::observed::{Observed, SOON};
use crate::harness::{Cluster, Raw, Vhost, wait_until};

/// The node on which the rungs, dead-letter and parked queues live.
const HOME: usize = 1;

/// A virtual host of the cluster, in which `queue` stands with the rungs of `policy`.
fn prepare<'c>(cluster: &'c Cluster, queue: &str, policy: &RetryPolicy) -> Vhost<'c> {
    let vhost = Vhost::on(cluster.node(0));
    let there = Observed::to(&cluster.node(HOME).url_for(vhost.name()));
    there.declare_queue(Queue::new(queue), policy);
    vhost
}

/// Declares the queue `witness`, which gets each message that a consumer of `queue` rejects.
fn witness(cluster: &Cluster, vhost: &Vhost<'_>, queue: &str) {
    let raw = raw(cluster, 0, vhost);
    raw.quorum("witness");
    for target in ["dlq", "parked"] {
        raw.bind("witness", "acemq.dlx", &format!("{queue}.{target}"));
    }
}

#[track_caller]
fn assert_nothing_rejected(cluster: &Cluster, vhost: &Vhost<'_>) {
    assert_eq!(raw(cluster, 0, vhost).count("witness"), 0);
}

/// A connection that knows all addresses.
fn to_all(cluster: &Cluster, vhost: &Vhost<'_>) -> ConnectionBuilder {
    Connection::builder(vhost.url()).hosts(cluster.addresses())
}

fn raw(cluster: &Cluster, n: usize, vhost: &Vhost<'_>) -> Raw {
    Raw::open(&cluster.node(n).url_for(vhost.name()))
}

/// Sends a message over node `n` as often as it takes: a quorum queue takes nothing while it has no
/// leader, and on RabbitMQ 3.10 a channel that was refused then is refused until the old leader is
/// back.
fn send(cluster: &Cluster, n: usize, vhost: &Vhost<'_>, queue: &str, payload: u64) {
    let raw = || raw(cluster, n, vhost);
    wait_until(SOON, "a message is taken", || {
        let properties = AmqpProperties::default().with_delivery_mode(2);
        raw().try_publish("", queue, payload.to_string(), properties)
    });
}
