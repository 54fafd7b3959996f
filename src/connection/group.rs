//! Consumer groups: several consumers of one queue that start and stop together.

use super::Connection;
use crate::consumer::{Consumer, ConsumerBuilder, cancel};
use crate::error::Error;
use crate::handler::Answer;
use crate::message::Message;
use crate::message::codec::{Decode, Json};
use std::time::Duration;

/// Several consumers of one queue, each with its own channel, prefetch and workers, that share one
/// handler.
///
/// One consumer with a higher concurrency is enough for most services. A group helps where one
/// channel is the bottleneck.
///
/// ```no_run
/// use rungmq::{Connection, ConsumerGroup, Message};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mq = Connection::open("amqp://localhost")?;
/// let group = ConsumerGroup::new(&mq, "orders.new", 4)
///     .members(|member| member.concurrency(2).prefetch(32))
///     .start(|message: Message<String>| println!("{}", message.payload()))?;
/// group.cancel(Duration::from_secs(20))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a group does nothing until it is started"]
pub struct ConsumerGroup<'a, C = Json> {
    member: ConsumerBuilder<'a, C>,
    size: usize,
}

impl<'a> ConsumerGroup<'a> {
    /// Makes a group of `size` consumers of `queue`, each with the connection's defaults.
    pub fn new(connection: &'a Connection, queue: impl Into<String>, size: usize) -> Self {
        Self {
            member: connection.consumer(queue),
            size,
        }
    }
}

impl<'a, C> ConsumerGroup<'a, C> {
    /// Sets the options of each member, such as its concurrency, prefetch, policy and codec.
    pub fn members<D>(
        self,
        configure: impl FnOnce(ConsumerBuilder<'a, C>) -> ConsumerBuilder<'a, D>,
    ) -> ConsumerGroup<'a, D> {
        ConsumerGroup {
            member: configure(self.member),
            size: self.size,
        }
    }

    /// Starts every member. When one fails to start, those already started are stopped.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] for a size of 0; otherwise those of [`ConsumerBuilder::start`].
    pub fn start<T, R, F>(self, handle: F) -> Result<RunningGroup, Error>
    where
        C: Decode<T>,
        T: 'static,
        R: Answer,
        F: Fn(Message<T>) -> R + Send + Sync + 'static,
    {
        if self.size == 0 {
            return Err(Error::Configuration(
                "a group needs at least one member".to_owned(),
            ));
        }
        let members = self.member.start_members(self.size, handle)?;
        Ok(RunningGroup { members })
    }
}

/// The running consumers of a [`ConsumerGroup`].
///
/// Like a [`Consumer`] it is a handle: dropping it has no effect, and closing the connection stops
/// the members.
#[derive(Clone, Debug)]
pub struct RunningGroup {
    members: Vec<Consumer>,
}

impl RunningGroup {
    /// The members, in the order in which they started.
    #[must_use]
    pub fn members(&self) -> &[Consumer] {
        &self.members
    }

    /// The number of deliveries in flight, over all members.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.members.iter().map(Consumer::in_flight).sum()
    }

    /// Whether every member has a live subscription.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.members.iter().all(Consumer::is_running)
    }

    /// Stops all members together and waits for their running handlers, by one deadline. See
    /// [`Consumer::cancel`].
    ///
    /// # Errors
    ///
    /// [`Error::Drain`] with the stranded deliveries of all members.
    pub fn cancel(&self, timeout: Duration) -> Result<(), Error> {
        let members: Vec<&Consumer> = self.members.iter().collect();
        cancel(&members, timeout)
    }
}
