//! The guides, one subject each.
//!
//! | guide | subject |
//! |---|---|
//! | [`guarantees`] | duplicates, order, what RabbitMQ can lose and how to avoid it |
//! | [`retries`] | policies, where a message waits, prefetch and the ack timeout |
//! | [`failures`] | every way a delivery can end, reasons, dead-letter and parked queues, replay |
//! | [`shutdown`] | what `close` does, timeouts, signals, dropping handles |
//! | [`broker`] | declarations, permissions, policies, names, reconnecting, RabbitMQ by version |
//! | [`metrics`] | names, labels, Prometheus, custom observers |
//! | [`testing`] | testing a handler, a policy or a topology on the embedded broker |
//! | [`internals`] | for contributors: threads, states of a delivery, how to add something |

#[doc = include_str!("guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("retries.md")]
pub mod retries {}

#[doc = include_str!("failures.md")]
pub mod failures {}

#[doc = include_str!("shutdown.md")]
pub mod shutdown {}

#[doc = include_str!("broker.md")]
pub mod broker {}

#[doc = include_str!("metrics.md")]
pub mod metrics {}

#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("internals.md")]
pub mod internals {}
