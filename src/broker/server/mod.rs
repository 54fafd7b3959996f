//! The embedded broker while it runs: its lock, its timer thread and the connections to it.

pub(crate) mod broker;
pub(crate) mod connection;
pub(crate) mod hub;
pub(crate) mod timer;
