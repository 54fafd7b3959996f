//! The ids of connections, channels, consumers and queues, and the time of an operation.

use std::time::Instant;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),+) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub(crate) u64);)+
    };
}

ids!(
    /// One connection.
    LinkId,
    /// One channel, unique among all connections.
    ChannelId,
    /// One consumer, unique among all channels.
    ConsumerId,
    /// One incarnation of a queue: a queue that is deleted and declared again has a new id.
    QueueId
);

/// The time of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    pub(crate) epoch_millis: i64,
}
