//! The exchanges, queues and bindings of a service, planned as a whole before anything is sent.

pub(crate) mod declaration;

mod plan;
mod problems;
mod queue;

pub use plan::Plan;
pub(crate) use plan::{consumer_share, retry_share, set_aside_queue};
pub use problems::TopologyError;
pub use queue::Queue;

use crate::naming;
use declaration::ExchangeKind;

/// The exchanges, queues and bindings of a service.
///
/// Nothing is sent until the topology is applied. [`plan`](Self::plan) shows what would be declared, without a broker,
/// and finds every problem that can be found without one.
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
/// # assert!(plan.to_string().ends_with(r##"binding of "orders.new" to "orders-events" with "order.#""##));
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
    /// A topology with nothing in it.
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

    /// Adds a queue, with whatever its dead-lettering and its retries need beside it.
    pub fn queue(mut self, queue: Queue) -> Self {
        self.queues.push(queue);
        self
    }

    /// Binds a queue of this topology to one of its exchanges, or to one that RabbitMQ brings along (`amq.topic` and
    /// its like).
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

    /// The exchange through which the broker dead-letters. Defaults to `acemq.dlx`.
    ///
    /// Whatever its name here, a consumer declares `acemq.dlx`. The retry exchange, `acemq.retry`, cannot be renamed.
    pub fn dead_letter_exchange(mut self, name: impl Into<String>) -> Self {
        self.dead_letter_exchange = name.into();
        self
    }

    pub(crate) fn queue_names(&self) -> impl Iterator<Item = &str> {
        self.queues.iter().map(|queue| queue.name.as_str())
    }

    /// What would be declared, in order.
    ///
    /// # Errors
    ///
    /// When anything in the topology could not be declared. The error holds every problem, not only the first.
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
