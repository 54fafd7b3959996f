//! Faults on demand, for tests.

use crate::broker::model::refusal::Refusal;
use crate::broker::model::{LinkId, Moment};
use crate::broker::server::broker::Broker;
use crate::broker::server::connection::Operation;
use crate::broker::server::hub::{CLOSED, Hub};
use crate::transport::LinkEvent;
use std::time::Duration;

/// What a user can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Right {
    /// Declaring queues and exchanges, and binding.
    Declare,
    /// Asking whether something exists.
    Check,
    /// Publishing.
    Publish,
    /// Consuming and fetching.
    Consume,
}

/// When all links are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drop {
    /// When the next confirm has been sent.
    AfterConfirm,
    /// When the next acknowledgement arrives, before it counts.
    BeforeAck,
    /// In the middle of the next publish, so that the message is not accepted.
    DuringPublish,
}

/// What is wrong with the broker.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Reads nothing and sends nothing.
    pub(crate) frozen: bool,
    /// Not there for whoever wants to connect.
    pub(crate) stopped: bool,
    /// Ends whoever wants to connect.
    unwelcoming: bool,
    /// What it sends is lost.
    pub(crate) muted: bool,
    /// Why it does not read publishes.
    pub(crate) alarm: Option<String>,
    /// How long it takes to come to what is sent.
    pub(crate) latency: Option<Duration>,
    refused: Vec<Right>,
    drop: Option<Drop>,
    drop_now: bool,
}

impl Faults {
    /// Whether its times run out.
    pub(crate) fn is_running(&self) -> bool {
        !self.frozen && !self.stopped
    }

    /// Whether nothing of it arrives.
    pub(crate) fn is_silent(&self) -> bool {
        self.frozen || self.muted
    }

    /// Whether anybody may connect.
    pub(crate) fn check_connect(&self) -> Result<(), String> {
        match self {
            Self { stopped: true, .. } => Err("the broker is stopped".to_owned()),
            Self {
                unwelcoming: true, ..
            } => Err("the broker takes no connection".to_owned()),
            _ => Ok(()),
        }
    }

    /// Whether the user may do this.
    pub(crate) fn check(&self, operation: &Operation) -> Result<(), Refusal> {
        let right = match operation {
            Operation::Declare(_) => Right::Declare,
            Operation::Check(_) | Operation::Count(_) => Right::Check,
            Operation::Publish(_) => Right::Publish,
            Operation::Consume(_) | Operation::Fetch(_) => Right::Consume,
            _ => return Ok(()),
        };
        if self.refused.contains(&right) {
            return Err(Refusal::access_refused("refused by the test"));
        }
        Ok(())
    }

    pub(crate) fn drops_before(&mut self, operation: &Operation) -> bool {
        let is_met = matches!(
            (self.drop, operation),
            (Some(Drop::BeforeAck), Operation::Ack { .. })
                | (Some(Drop::DuringPublish), Operation::Publish(_))
        );
        if is_met {
            self.drop = None;
        }
        is_met
    }

    pub(crate) fn confirm_sent(&mut self) {
        if self.drop == Some(Drop::AfterConfirm) {
            self.drop = None;
            self.drop_now = true;
        }
    }

    pub(crate) fn takes_drop(&mut self) -> bool {
        std::mem::take(&mut self.drop_now)
    }
}

impl Broker {
    /// Drops every connection.
    pub fn drop_connections(&self) {
        self.with(|hub, at| hub.drop_links(CLOSED, at));
    }

    /// Drops one connection, by its number in [`connections`](Self::connections). One that is gone stays so.
    pub fn drop_connection(&self, number: u64) {
        self.with(|hub, at| hub.end_link(LinkId(number), CLOSED, at));
    }

    /// Takes no connection from now on; those that stand stay. With [`drop_connections`](Self::drop_connections) the
    /// broker is out of reach and keeps everything.
    pub fn refuse_connections(&self) {
        self.with(|hub, _| hub.faults.unwelcoming = true);
    }

    /// Takes connections again.
    pub fn accept_connections(&self) {
        self.with(|hub, _| hub.faults.unwelcoming = false);
    }

    /// Drops every connection as soon as the [next](Self#faults-that-hit-the-next-publish) confirm has been sent: if it was that of
    /// a copy, the copy stands, and its message is not acknowledged.
    pub fn drop_connections_after_next_confirm(&self) {
        self.drop_connections_at(Drop::AfterConfirm);
    }

    /// Drops every connection when the [next](Self#faults-that-hit-the-next-publish) acknowledgement arrives, which does not
    /// count: its message comes again.
    pub fn drop_connections_before_next_ack(&self) {
        self.drop_connections_at(Drop::BeforeAck);
    }

    /// Drops every connection in the middle of the [next](Self#faults-that-hit-the-next-publish) publish, which does not count
    /// and has no answer.
    pub fn drop_connections_during_next_publish(&self) {
        self.drop_connections_at(Drop::DuringPublish);
    }

    pub(crate) fn drop_connections_at(&self, when: Drop) {
        self.with(|hub, _| hub.faults.drop = Some(when));
    }

    /// Closes the channels that consume from `queue`, with a reply code; returns how many there were. With a code of those
    /// that AMQP has for connections, such as 541, their connections are closed.
    pub fn close_channels(&self, queue: &str, code: u16) -> usize {
        self.with(|hub, at| {
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
                if let Some(link) = hub.state.channels.get(channel).map(|channel| channel.link) {
                    hub.refuse(link, *channel, refusal.clone(), at);
                }
            }
            channels.len()
        })
    }

    /// Nacks the [next](Self#faults-that-hit-the-next-publish) `count` publishes on confirm channels, and stores none of them.
    pub fn nack_next_confirms(&self, count: usize) {
        self.with(|hub, _| hub.state.faults.nack = count);
    }

    /// Stores the [next](Self#faults-that-hit-the-next-publish) `count` publishes on confirm channels, and never confirms them. They
    /// end as unknown after the confirm timeout, which is real time.
    pub fn lose_next_confirms(&self, count: usize) {
        self.with(|hub, _| hub.state.faults.lose = count);
    }

    /// Raises an alarm: whoever publishes from now on is told, and not read any more. As with RabbitMQ that takes one publish,
    /// which ends as unknown after the confirm timeout; those after it are refused at once.
    pub fn block(&self, reason: &str) {
        self.with(|hub, _| hub.faults.alarm = Some(reason.to_owned()));
    }

    /// Clears the alarm: what was sent meanwhile is read. The library's threads hear of it a moment later; with a test clock the
    /// next [`advance`](crate::testing::TestClock::advance), even by nothing, waits until they have.
    pub fn unblock(&self) {
        self.with(|hub, _| {
            hub.faults.alarm = None;
            let is_heard = !hub.faults.muted;
            for wire in hub.wires.values_mut() {
                if std::mem::take(&mut wire.blocked) && is_heard {
                    wire.tell(LinkEvent::Unblocked);
                }
            }
        });
    }

    /// Stops reading and sending. Connections stay until their heartbeats are missed, and calls wait until their limit is over,
    /// both in real time.
    pub fn freeze(&self) {
        self.with(|hub, _| hub.faults.frozen = true);
    }

    /// Goes on after a freeze, with everything that was sent meanwhile.
    pub fn thaw(&self) {
        self.with(|hub, at| {
            hub.faults.frozen = false;
            hub.expire(at);
        });
    }

    /// Reads on, and loses what it sends: deliveries, confirms, answers and heartbeats. Connections notice by their heartbeats and
    /// limits, in real time.
    pub fn mute(&self) {
        self.with(|hub, _| hub.faults.muted = true);
    }

    /// Sends again. What was lost stays lost.
    pub fn unmute(&self) {
        self.with(|hub, _| hub.faults.muted = false);
    }

    /// The node of a queue goes, as in a cluster, and the queue with it, until [`find_queue`](Self::find_queue).
    ///
    /// Declarations and checks are answered with 404, and what is published to it is unroutable. Its consumers are cancelled.
    pub fn lose_queue(&self, name: &str) {
        self.with(|hub, at| hub.state.lose_queue(name, at));
    }

    /// The node of a queue comes back, after [`lose_queue`](Self::lose_queue), and the queue with its messages. What had been
    /// delivered and not settled before comes again, acknowledged meanwhile or not.
    ///
    /// A queue that is not lost stays as it is.
    pub fn find_queue(&self, name: &str) {
        self.with(|hub, at| hub.state.find_queue(name, at));
    }

    /// Reads whatever is sent only after `latency`, in real time: declarations, publishes, acknowledgements. `Duration::ZERO` makes
    /// the broker quick again. A test clock waits until all of it has been read.
    pub fn slow_down(&self, latency: Duration) {
        self.with(|hub, _| {
            hub.faults.latency = (!latency.is_zero()).then_some(latency);
        });
    }

    /// Refuses the user something, with 403.
    pub fn refuse(&self, right: Right) {
        self.with(|hub, _| hub.faults.refused.push(right));
    }

    /// Allows the user everything again.
    pub fn allow_everything(&self) {
        self.with(|hub, _| hub.faults.refused.clear());
    }

    /// Stops the broker: links are dropped, nobody can connect, and what is not durable is gone. Nothing expires until it is
    /// [started again](Self::start_again).
    pub fn stop(&self) {
        self.with(stop);
    }

    /// Starts it again, as RabbitMQ does a node that is alone: what expired in classic queues meanwhile, and so every wait in
    /// a rung that has ended, is dead-lettered before quorum queues have leaders. To classic queues it comes; on its way to a quorum
    /// queue it is [dropped](crate::docs::guarantees#what-rabbitmq-can-lose). What expired in quorum queues is dead-lettered
    /// afterwards, and comes to both. Waits that have not ended go on. A classic queue with `x-expires` is given its whole time
    /// again. A broker that is not stopped stays as it is.
    pub fn start_again(&self) {
        self.with(start);
    }

    /// Stops the broker and starts it again at once: on a test clock no wait ends meanwhile, and all of them go on. For those
    /// that end while a broker is down, [`stop`](Self::stop) it, move the clock, and [`start_again`](Self::start_again).
    pub fn restart(&self) {
        // In one moment, whoever moves the clock meanwhile.
        self.with(|hub, at| {
            stop(hub, at);
            start(hub, at);
        });
    }
}

fn stop(hub: &mut Hub, at: Moment) {
    hub.faults.stopped = true;
    hub.faults.frozen = false;
    hub.faults.alarm = None;
    // What had been sent and not been read dies with the connections.
    hub.drop_links("the broker was stopped", at);
    hub.state.stop();
}

fn start(hub: &mut Hub, at: Moment) {
    if std::mem::take(&mut hub.faults.stopped) {
        hub.state.start(at);
    }
}
