//! The embedded broker while it runs: its lock, its timer thread, its connections and its faults.

pub(crate) mod broker;
pub(crate) mod connection;
pub(crate) mod core;
pub(crate) mod faults;
pub(crate) mod hub;
