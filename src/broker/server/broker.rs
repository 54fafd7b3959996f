//! The broker as its handles and its timer see it: a lock and a clock around everything.

use super::connection::Wire;
use super::hub::Hub;
use super::timer;
use crate::broker::model::Moment;
use crate::broker::model::profile::Profile;
use crate::time::clock::Clock;
use crate::time::threads::SpawnError;
use crossbeam_channel::Sender;
use parking_lot::Mutex;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// An embedded broker: RabbitMQ's behaviour in this process, for tests and for trying things out.
///
/// Connections reach it at its [`url`](Self::url). It is made to be no kinder than RabbitMQ; where versions differ it
/// follows its [`Profile`](crate::testing::Profile). It has one virtual host and one user, `guest`, who may do everything until
/// [`refuse`](Self::refuse) says otherwise.
///
/// Handles are cheap to clone and all the same broker. One that was made here ends with its last handle and connection; one
/// that was made by a URL, `memory://orders`, stays until the process ends, with everything in it, and [`named`](Self::named) is
/// its handle. All tests of the process that say `memory://orders` share it: give each test a name of its own, or
/// [`MemoryBroker::new`](Self::new).
///
/// There are four groups of methods: making it, looking at what is [in it](Self::queues), doing what
/// [another client](Self::publish) could do, and letting things [go wrong](Self::drop_connections). The guide to
/// [testing](crate::docs::testing) has examples.
///
/// # Faults that hit the next publish
///
/// Those that hit "the next" publish, confirm or acknowledgement hit whoever's comes first: that of the test itself, if it
/// publishes after it has armed the fault. To hit the copy of a retry or of a message that is set aside, arm the fault in
/// the handler, or when the message is in its queue and before the consumer starts.
///
/// # What it does not model
///
/// * Streams: [`declare_queue`](Self::declare_queue) answers 540. A [`Topology`](crate::Topology) with one is refused before
///   anything is sent.
/// * Clusters (but see [`lose_queue`](Self::lose_queue)): it is one node alone, and so what ends its wait in a rung of a
///   quorum queue while it is stopped is lost, see [`start_again`](Self::start_again). How long quorum queues take to elect their
///   leaders: all have one when `start_again` returns. More than one virtual host, users other than `guest` and their
///   permissions (but see [`refuse`](Self::refuse)), policies but for [some](Self::set_policy).
/// * Crashes inside RabbitMQ, such as that of a classic queue in 3.10 whose single active consumer was cancelled while messages
///   were ready: the next message that comes to it ends its process, which cancels the other consumers.
/// * At-least-once dead-lettering: `x-dead-letter-strategy` is checked, and the messages go at most once.
/// * Exchanges bound to exchanges, exchanges that delete themselves, transactions, direct reply-to (a message that asks for it
///   is refused, as by a broker on whose channel nobody consumes the replies), consumers with priorities, exclusive ones but for
///   [`occupy`](Self::occupy), consuming without acknowledgements.
/// * The limit on the time that a consumer may hold a message (`consumer_timeout`).
/// * Latency: a confirm, or a message that has left one queue for another, is there at once. A quorum queue with
///   `reject-publish` tells its publishers at once that it is full, so that they get one message too many into it, not
///   several; `x-expires` of a quorum queue is exact, where RabbitMQ looks every few seconds.
/// * Races: queues that one message goes to take it in the order of their names, one after the other, where RabbitMQ's do so
///   side by side.
/// * Arguments that make the real one crash (a nonsensical `x-queue-master-locator`, an `x-death` header whose entries are no
///   tables) are passed over.
/// * Queue names with line breaks, and the empty name for "the queue declared last on this channel".
/// * When several consumers of one channel hold messages of a quorum queue and the channel ends, they come back in the order
///   in which the consumers began; on 3.x that order is a random one.
#[derive(Clone)]
pub struct Broker(Arc<Shared>);

/// A broker that others keep alive.
pub(crate) struct WeakBroker(Weak<Shared>);

impl WeakBroker {
    pub(crate) fn upgrade(&self) -> Option<Broker> {
        self.0.upgrade().map(Broker)
    }
}

/// What the handles share, and the timer thread holds weakly.
pub(crate) struct Shared {
    name: String,
    clock: Arc<dyn Clock>,
    hub: Mutex<Hub>,
    /// Dropped with the broker, which ends the timer thread.
    changed: Sender<()>,
}

/// When the timer thread is wanted next.
pub(crate) struct Due {
    /// Something is over then, by the broker's clock.
    pub(crate) over: Option<Instant>,
    /// Something slow is read then, in real time.
    pub(crate) read: Option<Instant>,
}

impl Broker {
    /// Starts a broker and its timer thread. Times to live and ages follow `clock`.
    pub(crate) fn start(
        name: impl Into<String>,
        profile: Profile,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, SpawnError> {
        let name = name.into();
        let (changed, changes) = crossbeam_channel::bounded(1);
        let shared = Arc::new(Shared {
            name,
            clock,
            hub: Mutex::new(Hub::new(profile)),
            changed,
        });
        timer::start(&shared, changes)?;
        Ok(Self(shared))
    }

    pub(crate) fn downgrade(&self) -> WeakBroker {
        WeakBroker(Arc::downgrade(&self.0))
    }

    /// The clock that times to live and its connections follow.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.0.clock()
    }

    /// What it was started as.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// The version that it behaves like.
    pub(crate) fn profile(&self) -> Profile {
        self.0.hub.lock().state.profile
    }

    /// Works on the broker's memory, and sends what follows.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Hub, Moment) -> R) -> R {
        self.0.with(work)
    }

    /// Looks at what there is now.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Hub) -> R) -> R {
        let mut hub = self.0.hub.lock();
        hub.expire(self.0.moment());
        look(&hub)
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryBroker").field(&self.0.name).finish()
    }
}

impl Shared {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Hub, Moment) -> R) -> R {
        let mut hub = self.hub.lock();
        let before = (hub.due(), hub.next_read(), hub.wires.len());
        let at = self.moment();
        hub.expire(at);
        let result = work(&mut hub, at);
        hub.read(at);
        let is_moved = (hub.due(), hub.next_read(), hub.wires.len()) != before;
        drop(hub);
        if is_moved {
            // One token is enough: the timer looks at everything.
            let _ = self.changed.try_send(());
        }
        result
    }

    fn moment(&self) -> Moment {
        Moment {
            now: self.clock.now(),
            epoch_millis: self.clock.epoch_millis(),
        }
    }

    /// Lets everything go that is over, reads what a slow broker has come to, and says when there is more of both.
    pub(crate) fn look(&self) -> Due {
        let mut hub = self.hub.lock();
        let at = self.moment();
        hub.expire(at);
        hub.read(at);
        Due {
            over: hub.due(),
            read: hub.next_read(),
        }
    }

    /// How often heartbeats are sent, if any link has them.
    pub(crate) fn heartbeat(&self) -> Option<Duration> {
        let hub = self.hub.lock();
        let all = hub.wires.values().map(|wire| wire.heartbeat);
        all.filter(|heartbeat| !heartbeat.is_zero()).min()
    }

    /// Sends every client a heartbeat, or has it find that none has come for too long.
    pub(crate) fn beat(&self) {
        self.with(|hub, _| {
            if hub.faults.is_silent() {
                hub.give_up_silent();
            } else {
                hub.wires.values().for_each(Wire::note_sent);
            }
        });
    }
}
