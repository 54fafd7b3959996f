//! Guides, one subject each.
//!
//! | guide | answers |
//! |---|---|
//! | [`guarantees`] | what can come twice, what order means, what RabbitMQ can lose and how not to have it |
//! | [`retries`] | how often, how long, where a message waits; what a policy costs; prefetch and the ack timeout |
//! | [`failures`] | every way a delivery can end, the reasons, the dead-letter and parked queues, replay |
//! | [`shutdown`] | what `close` does, which times belong together, what dropping a handle does |
//! | [`broker`] | what is declared, permissions, virtual hosts, policies, names, what RabbitMQ does by version |
//! | [`metrics`] | names, labels, Prometheus, an observer of your own |
//! | [`testing`] | a handler, a policy, a topology under test, without a server and without waiting |
//! | [`internals`] | for contributors: the threads, the states of a delivery, the rules, how to add something |

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
