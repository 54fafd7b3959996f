//! The handle of an embedded broker.

use super::core::BrokerCore;
use super::hub::Hub;
use crate::broker::model::ids::Moment;
use crate::broker::model::profile::Profile;
use crate::time::clock::Clock;
use crate::time::threads::SpawnError;
use std::fmt;
use std::sync::{Arc, Weak};

/// An embedded broker: the behaviour of RabbitMQ inside this process, for tests and for
/// experiments.
///
/// Connections reach it at its [`url`](Self::url). It is designed to be no kinder than RabbitMQ;
/// where versions differ, it follows its [`Profile`]. It has one virtual
/// host and one user, `guest`, who has every permission until [`refuse`](Self::refuse) takes one
/// away.
///
/// Handles are cheap to clone, and all clones are the same broker. A broker that is created here
/// ends with its last handle and connection. A broker that is created by a URL, such as
/// `memory://orders`, stays until the process ends, with everything in it, and
/// [`named`](Self::named) returns a handle to it. All tests of a process that connect to
/// `memory://orders` share that broker: give each test its own name, or use
/// [`MemoryBroker::new`](Self::new).
///
/// The methods are in four groups: creating a broker, inspecting [its contents](Self::queues),
/// acting as [another client](Self::publish), and injecting [faults](Self::drop_connections). The
/// guide to [testing](crate::docs::testing) has examples.
///
/// # Faults that hit the next publish
///
/// A fault that hits "the next" publish, confirm or acknowledgement hits the first one that
/// arrives, including that of the test itself if the test publishes after it has armed the fault.
/// To hit the copy of a retry, or of a message that is dead-lettered or parked, arm the fault in
/// the handler, or when the message is in its queue and before the consumer starts.
///
/// # What it does not model
///
/// * Streams: [`declare_queue`](Self::declare_queue) answers 540. A [`Topology`](crate::Topology)
///   with a stream is refused before anything is sent.
/// * Clusters (but see [`lose_queue`](Self::lose_queue)): the broker is a single node, so a message
///   whose wait in a rung of a quorum queue ends while the node is stopped is lost, see
///   [`start`](Self::start). Leader elections of quorum queues take no time: every queue has a
///   leader when `start` returns.
/// * More than one virtual host, users other than `guest` and their permissions (but see
///   [`refuse`](Self::refuse)), and policies except for [some definitions](Self::set_policy).
/// * What RabbitMQ does by accident and no service may rely on:
///   * A channel of RabbitMQ can remember the type of a queue that was deleted, and closes its
///     connection with 541 when a queue of the other type takes the name. Here the channel uses the
///     new queue.
///   * When the single active consumer of a classic queue of 3.10 is cancelled while messages are
///     ready, the next consumer receives none until something else happens to the queue, and the
///     next message that arrives crashes the queue. Here the next consumer receives them.
///   * A consumer of a quorum queue of 3.10 receives one message more than its prefetch after each
///     message that exceeds the delivery limit. Here the prefetch stays the limit.
///   * The consumers that wait to be the single active consumer of a quorum queue of 4.0 are served
///     by their prefetch. Here they are served in the order in which they subscribed.
/// * At-least-once dead-lettering: `x-dead-letter-strategy` is checked, and messages are
///   dead-lettered at most once.
/// * Exchange-to-exchange bindings, auto-delete exchanges, transactions, direct reply-to (a message
///   that asks for it is refused, as on a channel without a reply consumer), consumer priorities,
///   exclusive consumers except for [`consume_exclusively`](Self::consume_exclusively), and
///   consumers that do not acknowledge.
/// * The limit on the time that a consumer may hold a message (`consumer_timeout`).
/// * Latency inside the broker: a confirm, or a message that moves from one queue to another, is
///   there immediately. A quorum queue with `reject-publish` notifies its publishers immediately
///   that it is full, so one message too many gets in and not several. The `x-expires` of a quorum
///   queue is exact, where RabbitMQ checks it every few seconds.
/// * Races: when a message is routed to several queues, they accept it one after the other in the
///   order of their names, where the queues of RabbitMQ run concurrently.
/// * Arguments that crash RabbitMQ (an invalid `x-queue-master-locator`, an `x-death` header whose
///   entries are not tables) are ignored.
/// * Queue names with line breaks, and the empty name for "the queue declared last on this
///   channel".
/// * When several consumers of one channel hold messages of a quorum queue and the channel ends,
///   the messages return in the order in which the consumers subscribed; on 3.x that order is
///   random.
#[derive(Clone)]
pub struct Broker(Arc<Handle>);

/// What the handles of a broker share. The timer thread holds the core for a moment whenever it
/// acts, and never this, so that a broker has ended exactly when its last handle is dropped.
struct Handle(Arc<BrokerCore>);

/// A reference to a broker that does not keep it alive.
pub(crate) struct WeakBroker(Weak<Handle>);

impl WeakBroker {
    pub(crate) fn upgrade(&self) -> Option<Broker> {
        self.0.upgrade().map(Broker)
    }
}

impl Broker {
    /// Starts a broker that is in no registry. Times to live and ages follow `clock`.
    pub(crate) fn launch(
        name: impl Into<String>,
        profile: Profile,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, SpawnError> {
        let core = BrokerCore::start(name.into(), profile, clock)?;
        Ok(Self(Arc::new(Handle(core))))
    }

    pub(crate) fn downgrade(&self) -> WeakBroker {
        WeakBroker(Arc::downgrade(&self.0))
    }

    /// The clock that times to live and the broker's connections follow.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.0.0.clock()
    }

    pub(crate) fn name(&self) -> &str {
        self.0.0.name()
    }

    /// The version whose behaviour the broker has.
    pub(crate) fn profile(&self) -> Profile {
        self.0.0.profile()
    }

    /// Changes the broker's state, then processes and sends what follows from it.
    pub(crate) fn update<R>(&self, work: impl FnOnce(&mut Hub, Moment) -> R) -> R {
        self.0.0.update(work)
    }

    /// Reads the broker's state as it is now.
    pub(crate) fn inspect<R>(&self, read: impl FnOnce(&Hub) -> R) -> R {
        self.0.0.inspect(read)
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryBroker").field(&self.name()).finish()
    }
}
