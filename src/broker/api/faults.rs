//! The methods that inject faults.

use crate::broker::model::ids::{LinkId, Moment};
use crate::broker::model::refusal::Refusal;
use crate::broker::server::broker::Broker;
use crate::broker::server::faults::{DropPoint, Permission};
use crate::broker::server::hub::{CLOSED, Hub};
use crate::transport::LinkEvent;
use std::time::Duration;

impl Broker {
    /// Drops every connection.
    pub fn drop_connections(&self) {
        self.update(|hub, at| hub.drop_connections(CLOSED, at));
    }

    /// Drops one connection, by its number in [`connections`](Self::connections). The number of a
    /// connection that is gone has no effect.
    pub fn drop_connection(&self, number: u64) {
        self.update(|hub, at| hub.end_connection(LinkId(number), CLOSED, at));
    }

    /// Refuses new connections from now on; open ones stay. With
    /// [`drop_connections`](Self::drop_connections) the broker is unreachable and keeps everything.
    pub fn refuse_connections(&self) {
        self.update(|hub, _| hub.faults.refusing_connections = true);
    }

    /// Accepts connections again.
    pub fn accept_connections(&self) {
        self.update(|hub, _| hub.faults.refusing_connections = false);
    }

    /// Drops every connection as soon as the [next](Self#faults-that-hit-the-next-publish) confirm
    /// has been sent. If it was the confirm of a copy, the copy is stored and its original is not
    /// acknowledged.
    pub fn drop_connections_after_next_confirm(&self) {
        self.drop_connections_at(DropPoint::AfterConfirm);
    }

    /// Drops every connection when the [next](Self#faults-that-hit-the-next-publish)
    /// acknowledgement arrives. It does not count: its message is redelivered.
    pub fn drop_connections_before_next_ack(&self) {
        self.drop_connections_at(DropPoint::BeforeAck);
    }

    /// Drops every connection in the middle of the [next](Self#faults-that-hit-the-next-publish)
    /// publish, which is not stored and has no confirm.
    pub fn drop_connections_during_next_publish(&self) {
        self.drop_connections_at(DropPoint::DuringPublish);
    }

    pub(crate) fn drop_connections_at(&self, point: DropPoint) {
        self.update(|hub, _| hub.faults.drop_point = Some(point));
    }

    /// Closes the channels that consume from `queue` with a reply code, and returns how many there
    /// were. A code that AMQP reserves for connections, such as 541, closes their connections.
    pub fn close_channels(&self, queue: &str, code: u16) -> usize {
        self.update(|hub, at| {
            let Some(queue) = hub.state.queues.get(queue) else {
                return 0;
            };
            let mut channels: Vec<_> = queue
                .consumers
                .iter()
                .map(|(channel, _)| *channel)
                .collect();
            channels.sort_unstable();
            channels.dedup();
            let refusal = Refusal::with_code(code, "closed by the test");
            for channel in &channels {
                // A hard code ends the whole connection, and other channels of the list with it.
                if let Some(link) = hub.state.channels.get(channel).map(|channel| channel.link) {
                    hub.refuse(link, *channel, refusal.clone(), at);
                }
            }
            channels.len()
        })
    }

    /// Nacks the [next](Self#faults-that-hit-the-next-publish) `count` publishes on confirm
    /// channels, and stores none of them.
    pub fn nack_next_confirms(&self, count: usize) {
        self.update(|hub, _| hub.state.faults.nack = count);
    }

    /// Stores the [next](Self#faults-that-hit-the-next-publish) `count` publishes on confirm
    /// channels, and never confirms them. They end as unknown after the confirm timeout, which is
    /// real time.
    pub fn lose_next_confirms(&self, count: usize) {
        self.update(|hub, _| hub.state.faults.lose = count);
    }

    /// Raises an alarm: every connection that publishes from now on is blocked and no longer read.
    /// As with RabbitMQ, one publish gets that far and ends as unknown after the confirm timeout;
    /// later ones are refused immediately.
    pub fn block(&self, reason: &str) {
        self.update(|hub, _| hub.faults.alarm = Some(reason.to_owned()));
    }

    /// Clears the alarm: what was sent in the meantime is read. The library's threads are notified
    /// shortly after; with a test clock the next [`advance`](crate::testing::TestClock::advance),
    /// even by zero, waits until they are.
    pub fn unblock(&self) {
        self.update(|hub, _| {
            hub.faults.alarm = None;
            let is_heard = !hub.faults.muted;
            for connection in hub.connections.values_mut() {
                if std::mem::take(&mut connection.blocked) && is_heard {
                    connection.send_event(LinkEvent::Unblocked);
                }
            }
        });
    }

    /// Stops reading and sending. Connections stay until their heartbeats are missed, and calls
    /// wait until their timeout, both in real time.
    pub fn freeze(&self) {
        self.update(|hub, _| hub.faults.frozen = true);
    }

    /// Ends a freeze and reads everything that was sent in the meantime.
    pub fn thaw(&self) {
        self.update(|hub, at| {
            hub.faults.frozen = false;
            hub.expire(at);
        });
    }

    /// Reads on, and loses everything it sends: deliveries, confirms, replies and heartbeats.
    /// Connections notice by their heartbeats and timeouts, in real time.
    pub fn mute(&self) {
        self.update(|hub, _| hub.faults.muted = true);
    }

    /// Sends again. What was lost stays lost.
    pub fn unmute(&self) {
        self.update(|hub, _| hub.faults.muted = false);
    }

    /// Takes down the node of a queue, as in a cluster, and the queue with it, until
    /// [`restore_queue`](Self::restore_queue).
    ///
    /// Declarations and checks are answered with 404, and messages published to the queue are
    /// unroutable. Its consumers are cancelled.
    pub fn lose_queue(&self, name: &str) {
        self.update(|hub, at| hub.state.lose_queue(name, at));
    }

    /// Brings back the node of a queue after [`lose_queue`](Self::lose_queue), and the queue with
    /// its messages. Deliveries that were unsettled when the queue was lost are redelivered,
    /// acknowledged in the meantime or not.
    ///
    /// A queue that is not lost stays as it is.
    pub fn restore_queue(&self, name: &str) {
        self.update(|hub, at| hub.state.restore_queue(name, at));
    }

    /// Delays the reading of every request (declarations, publishes, acknowledgements) by
    /// `latency`, in real time. `Duration::ZERO` removes the delay. A test clock waits until all
    /// delayed requests have been read.
    pub fn set_latency(&self, latency: Duration) {
        self.update(|hub, _| {
            hub.faults.latency = (!latency.is_zero()).then_some(latency);
        });
    }

    /// Refuses the user a permission, with 403.
    pub fn refuse(&self, permission: Permission) {
        self.update(|hub, _| hub.faults.refused.push(permission));
    }

    /// Gives the user every permission again.
    pub fn allow_all(&self) {
        self.update(|hub, _| hub.faults.refused.clear());
    }

    /// Stops the broker: connections are dropped, new ones are refused, and what is not durable is
    /// gone. Nothing expires until it is [started](Self::start) again.
    pub fn stop(&self) {
        self.update(stop);
    }

    /// Starts a stopped broker, as RabbitMQ does a single node.
    ///
    /// Messages that expired in classic queues while it was stopped, and so every wait in a rung
    /// that has ended, are dead-lettered before quorum queues have leaders. They reach classic
    /// queues; on their way to a quorum queue they are
    /// [dropped](crate::docs::guarantees#what-rabbitmq-can-lose). Messages that expired in quorum
    /// queues are dead-lettered afterwards, and reach both. Waits that have not ended go on. A
    /// classic queue with `x-expires` starts its time again.
    ///
    /// A broker that is not stopped stays as it is.
    pub fn start(&self) {
        self.update(start);
    }

    /// Stops the broker and starts it again in the same moment: on a test clock no wait ends in
    /// between. For waits that end while a broker is down, [`stop`](Self::stop) it, advance the
    /// clock, and [`start`](Self::start) it.
    pub fn restart(&self) {
        // One update reads the clock once, even while a test advances it concurrently.
        self.update(|hub, at| {
            stop(hub, at);
            start(hub, at);
        });
    }
}

fn stop(hub: &mut Hub, at: Moment) {
    hub.faults.stopped = true;
    hub.faults.frozen = false;
    hub.faults.alarm = None;
    // Requests that were sent and not read are lost with their connections.
    hub.drop_connections("the broker was stopped", at);
    hub.state.stop();
}

fn start(hub: &mut Hub, at: Moment) {
    if std::mem::take(&mut hub.faults.stopped) {
        hub.state.start(at);
    }
}
