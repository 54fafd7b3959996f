//! RabbitMQ for services without async: a plain closure handles each message, a policy retries
//! failures, and shutdown keeps its deadline.
//!
//! ```no_run
//! use rungmq::{Connection, Message, Queue, RetryPolicy, Topology};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = RetryPolicy::fixed(3, Duration::from_secs(60))?;
//! let mq = Connection::builder("amqp://guest:guest@localhost:5672")
//!     .retry_policy(policy.clone())
//!     .open()?;
//! Topology::new().queue(Queue::new("orders").dead_letter().retry(&policy)).apply(&mq)?;
//!
//! mq.consume("orders", |order: Message<String>| -> std::io::Result<()> {
//!     println!("attempt {}: {}", order.attempt(), order.payload());
//!     // An error retries the message in a minute; the third one moves it to orders.dlq.
//!     std::fs::write("last-order", order.payload())
//! })?;
//! mq.publish("", "orders", "two apples")?;
//! mq.wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # The types, and how they fit together
//!
//! A [`Connection`] is a cheap handle that any thread may hold, and the entry point of every
//! operation:
//!
//! * **Declaring**: a [`Topology`] of exchanges, [`Queue`]s and bindings. [`plan`](Topology::plan)
//!   lists what it would declare and finds its problems without a broker;
//!   [`apply`](Topology::apply) declares it.
//! * **Publishing**: [`publish`](Connection::publish) sends JSON and waits for the broker's
//!   confirm. A [`Publish`] describes a message in full. A [`PublishError`] says whether the broker
//!   may have the message, and contains it.
//! * **Consuming**: [`consume`](Connection::consume) with defaults, or a [`ConsumerBuilder`] with
//!   concurrency, prefetch and codec ([`Json`] by default, [`Text`], [`Bytes`], or a [`Decode`] of
//!   your own). It calls a closure with a [`Message`], whose [`Envelope`] has its id, attempt and
//!   first-seen time. The closure returns an [`Answer`]: `()`, an [`Ack`], or a `Result`, whose
//!   error is a retry unless it contains a [`FatalError`]. A [`Consumer`] is the handle of a
//!   running consumer; a [`ConsumerGroup`] starts several on one queue.
//! * **Retrying**: a [`RetryPolicy`] sets the number of attempts and their delays. Short delays are
//!   spent in the consumer, long ones in rungs, the retry queues on the broker, which a
//!   [`RetryLadder`] lists. [`pull`](Connection::pull) reads dead letters, and
//!   [`replay`](Connection::replay) moves them back. [`naming`] has the names of the queues.
//! * **Closing**: [`close_within`](Connection::close_within) from any thread; a [`DrainTimeout`]
//!   lists the deliveries that were left unsettled.
//! * **Monitoring**: [`health`](Connection::health); a [`metrics::Registry`], or another
//!   [`metrics::Observer`].
//! * **Testing**: an embedded broker and a test clock in the module `testing`, with the feature of
//!   that name.
//!
//! The guides go into detail: [guarantees](docs::guarantees), [retries](docs::retries),
//! [failures](docs::failures), [shutdown](docs::shutdown), [the broker](docs::broker),
//! [metrics](docs::metrics), [testing](docs::testing), and for contributors
//! [internals](docs::internals). The README lists what is not supported yet.
//!
//! # Threads
//!
//! The library runs on threads of its own, without a runtime:
//!
//! * Each connection: `rungmq-supervisor`, `rungmq-publisher`, `rungmq-admin`, `rungmq-admin-call`,
//!   `rungmq-opener-consume`; after the first publish or copy also `rungmq-opener-publish`.
//! * Each of its two sockets: `amiquip-io`, a thread of the underlying client amiquip.
//! * Each consumer: `rungmq-consumer-{queue}`, and the workers that run handlers,
//!   `rungmq-worker-{queue}`. There are as many workers as its concurrency, and one more for each
//!   message that waits in the consumer, up to the prefetch.
//! * Single calls: `rungmq-dial`, `rungmq-redial`, `rungmq-open-publishing`, `rungmq-errand`,
//!   `rungmq-probe`.
//! * Each embedded broker: `rungmq-memory-{name}`.
//!
//! Linux shows the first 15 bytes of a name.
//!
//! Handlers run on workers, so they may block and may call every method of the library. A panic in
//! a handler is caught. Do not build with `panic = "abort"`: amiquip's I/O thread may panic when
//! both sides close a connection at the same time, which the library treats as a lost connection.
//!
//! # Logs
//!
//! The library logs through the [`log`](https://docs.rs/log) crate, under targets that begin with
//! `rungmq`:
//!
//! * `warn`: a connection lost, blocked or given up; a consumer without a subscription; a missing
//!   rung; a failed copy and its pause; a message rejected because it could not be set aside;
//!   headers left out of a copy; a wait in the consumer that was capped; missing permissions;
//!   probable mistakes in a topology.
//! * `info`: a consumer started or stopped; the next attempt to connect; connected again; the
//!   connection was closed.
//! * `debug`: drains; connections opened and ended; the consuming connection blocked; each message
//!   that is dead-lettered or parked, with queue, id and reason.
//!
//! No other line is logged for a message that ends as its handler decided. Bodies and passwords are
//! never logged; the reason is left out for a message that could not be decoded, since it may quote
//! the body. The levels `error` and `trace` are not used. amiquip logs under `amiquip`: at `debug`
//! every channel, and so every declaration; at `trace` every frame with its body.
//! `RUST_LOG=debug,amiquip=error` silences it.
//!
//! # Features
//!
//! Both are off by default.
//!
//! * `testing` adds the module `testing`: the embedded broker behind `memory://` URLs, and the test
//!   clock. Without it, opening a `memory://` URL is an error that names the feature. A service
//!   enables it for its tests:
//!
//!   ```toml
//!   [dev-dependencies]
//!   rungmq = { version = "0.1", features = ["testing"] }
//!   ```
//! * `tls` adds `amqps://` URLs and `TlsOptions`: rustls, the system's certificate authorities or a
//!   private one, client certificates.
//!
//! # Versions
//!
//! RabbitMQ 3.10 to 4.x; the tests run on 3.10 and 4.0. Rust 1.91 or later; raising this minimum is
//! a minor version. Before 1.0 a breaking change is also a minor version. Enums that may grow are
//! `#[non_exhaustive]`. Names of queues, headers, metrics and arguments are shared with the AceMQ
//! libraries for other languages and do not change. amiquip's types appear in no signature, so that
//! it can be replaced without a breaking change.

#![cfg_attr(
    not(feature = "testing"),
    allow(
        rustdoc::broken_intra_doc_links,
        reason = "the guides link to `testing`"
    )
)]

// The service's handles. A module imports only from its own group and from the groups below it.
mod connection;
mod consumer;

// The threads that own broker connections.
mod link;
mod publisher;

// The transport seam with its implementations, and the embedded broker.
#[cfg(any(test, feature = "testing"))]
mod broker;
mod error;
mod transport;

// Decisions: declarations, handler outcomes, retry delays.
mod handler;
mod retry;
mod topology;

// Data, names and time.
mod message;
pub mod metrics;
pub mod naming;
mod time;

// Guides, and the API for tests.
#[cfg(test)]
mod contract;
#[cfg(any(doc, doctest))]
pub mod docs;
#[cfg(feature = "testing")]
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

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
