//! Topologies: the exchanges, queues and bindings of a service.
//!
//! A topology is validated and planned as a whole before anything is sent. Everything here is pure.

pub(crate) mod declaration;

mod plan;
mod problems;
mod queue;

pub use plan::Plan;
pub(crate) use plan::{consumer_share, retry_share, set_aside_share};
pub use problems::TopologyError;
pub use queue::Queue;

use crate::naming;
use declaration::ExchangeKind;

/// The exchanges, queues and bindings of a service.
///
/// Building a topology does not contact the broker. [`plan`](Self::plan) lists the declarations and
/// reports every problem that can be found without a broker.
///
/// ```
/// use rungmq::{ExchangeKind, Queue, Topology};
///
/// let plan = Topology::new()
///     .exchange("orders-events", ExchangeKind::Topic)
///     .queue(Queue::new("orders.new").dead_letter())
///     .bind("orders.new", "orders-events", "order.#")
///     .plan()?;
/// println!("{plan}");
/// # let last = r##"binding of "orders.new" to "orders-events" with "order.#""##;
/// # assert!(plan.to_string().ends_with(last));
/// # Ok::<_, rungmq::TopologyError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a topology has no effect until it is applied"]
pub struct Topology {
    exchanges: Vec<(String, ExchangeKind)>,
    queues: Vec<Queue>,
    bindings: Vec<Binding>,
    dead_letter_exchange: String,
}

#[derive(Clone, Debug, PartialEq)]
struct Binding {
    queue: String,
    exchange: String,
    routing_key: String,
}

impl Topology {
    /// Creates an empty topology.
    pub fn new() -> Self {
        Self {
            exchanges: Vec::new(),
            queues: Vec::new(),
            bindings: Vec::new(),
            dead_letter_exchange: naming::DEAD_LETTER_EXCHANGE.to_owned(),
        }
    }

    /// Adds a durable exchange.
    pub fn exchange(mut self, name: impl Into<String>, kind: ExchangeKind) -> Self {
        self.exchanges.push((name.into(), kind));
        self
    }

    /// Adds a queue, together with the queues and exchanges for its dead-lettering and retries.
    pub fn queue(mut self, queue: Queue) -> Self {
        self.queues.push(queue);
        self
    }

    /// Binds a queue of this topology to one of its exchanges, or to a predeclared exchange such as
    /// `amq.topic`.
    pub fn bind(
        mut self,
        queue: impl Into<String>,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        self.bindings.push(Binding {
            queue: queue.into(),
            exchange: exchange.into(),
            routing_key: routing_key.into(),
        });
        self
    }

    /// Sets the exchange through which the broker dead-letters. Defaults to `acemq.dlx`.
    ///
    /// Consumers declare `acemq.dlx` in any case. The retry exchange, `acemq.retry`, cannot be
    /// renamed.
    pub fn dead_letter_exchange(mut self, name: impl Into<String>) -> Self {
        self.dead_letter_exchange = name.into();
        self
    }

    pub(crate) fn queue_names(&self) -> impl Iterator<Item = &str> {
        self.queues.iter().map(|queue| queue.name.as_str())
    }

    /// Validates the topology and lists its declarations in order. Does not contact the broker.
    ///
    /// # Errors
    ///
    /// Returns an error if part of the topology cannot be declared. The error lists all problems.
    pub fn plan(&self) -> Result<Plan, TopologyError> {
        plan::plan(self)
    }
}

impl Default for Topology {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
