//! RabbitMQ for services without async: a plain closure handles each message, failures are retried by a policy, and
//! shutdown keeps its deadline.
//!
//! ```no_run
//! use rungmq::{Connection, Message, Queue, RetryPolicy, Topology};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = RetryPolicy::fixed(3, Duration::from_secs(60))?;
//! let mq = Connection::builder("amqp://guest:guest@localhost:5672").retry_policy(policy.clone()).open()?;
//! Topology::new().queue(Queue::new("orders").dead_letter().retry(&policy)).apply(&mq)?;
//!
//! mq.consume("orders", |order: Message<String>| -> std::io::Result<()> {
//!     println!("attempt {}: {}", order.attempt(), order.payload());
//!     std::fs::write("last-order", order.payload()) // Err: again in a minute; the third time: orders.dlq
//! })?;
//! mq.publish("", "orders", "two apples")?;
//! mq.wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # The types, and how they fit together
//!
//! A [`Connection`] is a cheap handle that any thread may hold. Everything begins with it:
//!
//! * **What stands on the broker**: a [`Topology`] of exchanges, [`Queue`]s and bindings. [`plan`](Topology::plan) shows what
//!   it would declare and finds its problems without a broker, [`apply`](Topology::apply) declares it.
//! * **Publishing**: [`publish`](Connection::publish) sends JSON and waits for the broker's confirm; a [`Publish`] can say
//!   everything else; a [`PublishError`] says whether the broker may have the message, and gives it back.
//! * **Consuming**: [`consume`](Connection::consume) with defaults, or a [`ConsumerBuilder`] with concurrency, prefetch and
//!   codec ([`Json`] unless it is said, [`Text`], [`Bytes`], or your own [`Decode`]). It calls a closure with a [`Message`], whose
//!   [`Envelope`] has its id, attempt and first-seen time. Whatever the closure returns is an [`Answer`]: `()`, an [`Ack`], or a `Result`,
//!   whose error is a retry unless there is a [`FatalError`] in it. A [`Consumer`] is the handle of what runs, a
//!   [`ConsumerGroup`] starts several on one queue.
//! * **Failing**: a [`RetryPolicy`] says how often and after which waits; short ones are spent in the consumer, long ones
//!   on the broker, in the queues of a [`RetryLadder`]. Dead letters are looked at with [`pull`](Connection::pull) and moved back
//!   with [`replay`](Connection::replay). [`naming`] has the queues' names.
//! * **Ending**: [`close_within`](Connection::close_within) from any thread; [`DrainTimeout`] names what it left behind.
//! * **Watching**: [`health`](Connection::health); a [`metrics::Registry`], or another [`metrics::Observer`].
//!
//! The guides say more: [guarantees](docs::guarantees), [retries](docs::retries), [failures](docs::failures),
//! [shutdown](docs::shutdown), [the broker](docs::broker), [metrics](docs::metrics), [testing](docs::testing). What is not there
//! yet is in the README.
//!
//! # Threads
//!
//! The library has threads of its own and no runtime:
//!
//! | for | threads |
//! |---|---|
//! | each connection | `rungmq-supervisor`, `rungmq-publisher`, `rungmq-admin`, `rungmq-admin-call`, `rungmq-opener-consume`; from the first publish or copy on `rungmq-opener-publish` |
//! | each of its two sockets | `amiquip-io`, of amiquip, the client underneath |
//! | each consumer | `rungmq-consumer-{queue}`, and workers that run the handlers, `rungmq-worker-{queue}`: as many as its concurrency, and one more for each message that waits in the consumer, up to the prefetch |
//! | one task, then they end | `rungmq-dial`, `rungmq-redial`, `rungmq-open-publishing`, `rungmq-errand`, `rungmq-probe` |
//!
//! Linux shows the first 15 bytes of a name.
//!
//! Handlers run on workers, so they may block, and may call everything here. Panics of a handler are caught. Do not
//! build with `panic = "abort"`: amiquip's I/O thread may panic when both sides close a connection at once, which the library
//! takes as a lost connection.
//!
//! # Logs
//!
//! Through the [`log`](https://docs.rs/log) crate, under targets that begin with `rungmq`:
//!
//! | level | what |
//! |---|---|
//! | warn | something is not as it should be: a connection lost, blocked or given up, a consumer that does not consume, a rung that is missing, a copy that failed and its pause, a message rejected because it could be set aside nowhere, headers left out, a wait cut short, a user without rights, problems that a topology may have |
//! | info | consuming began and ended, the next attempt to connect, connected again, the connection was closed |
//! | debug | drains, connections opened and ended, the consuming connection blocked; each message that is dead-lettered or parked: queue, id, reason |
//!
//! Nothing else is logged for a message that ends as its handler said. Bodies and passwords are never logged (of a message that
//! could not be decoded the reason is left out, since it may quote the body), and `error` and
//! `trace` are not used. amiquip logs under `amiquip`: at `debug` every channel, and so every declaration, has its lines, and at
//! `trace` every frame, bodies included. Keep it quiet with `RUST_LOG=debug,amiquip=error`.
//!
//! # Features
//!
//! None is on by default. `tls` adds `amqps://` URLs and `TlsOptions`: rustls, the system's certificate authorities or a private one,
//! client certificates.
//!
//! # Versions
//!
//! RabbitMQ 3.10 to 4.x; the tests run on 3.10 and 4.0. Rust 1.91; a newer one is a minor version. Before 1.0 a breaking
//! change is a minor version too. Enums that may grow are `#[non_exhaustive]`. Names of queues, headers, metrics and
//! arguments are shared with other languages and do not change. amiquip's types are in no signature, so that replacing it
//! breaks nothing.

// What a service holds. A module imports only from its own group and from those below it.
mod connection;
mod consumer;

// The threads that own broker connections.
mod link;
mod publisher;

// Ways to a broker, and the broker in this process.
mod broker;
mod error;
mod transport;

// Decisions: what is declared, what a handler said, when the next attempt comes.
mod handler;
mod retry;
mod topology;

// Data, names and time.
mod message;
pub mod metrics;
pub mod naming;
mod time;

// For readers and for tests.
#[cfg(test)]
mod contract;
#[cfg(any(doc, doctest))]
pub mod docs;
pub mod testing;

pub use connection::{
    Connection, ConnectionBuilder, ConsumerGroup, Health, HealthStatus, RunningGroup,
};
pub use consumer::{Consumer, ConsumerBuilder, SetAsideFailure};
pub use error::{DrainTimeout, Error, StrandedDelivery};
pub use handler::{Ack, Answer, FatalError};
pub use message::Message;
pub use message::codec::{Bytes, CodecError, Decode, Encode, Json, Text};
pub use message::envelope::Envelope;
pub use message::headers::{HeaderValue, Headers, Properties};

pub use message::publish::Publish;
pub use message::publish::error::PublishError;
pub use metrics::Outcome;
pub use retry::{
    ExplainedAttempt, Explanation, LadderError, NextStep, PolicyError, RetryLadder, RetryPolicy,
    Rung,
};

pub use topology::declaration::ExchangeKind;
pub use topology::{Plan, Queue, Topology, TopologyError};
#[cfg(feature = "tls")]
pub use transport::amqp::tls::TlsOptions;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
