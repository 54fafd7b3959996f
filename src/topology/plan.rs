//! From a topology to the declarations it takes, in order. Pure: no I/O.

use super::Topology;
use super::declaration::Declaration;
use super::problems::{Problems, TopologyError, shown};
use super::queue::{Queue, QueueKind};
use crate::message::headers::Headers;
use crate::naming;
use crate::retry::RetryLadder;
use std::fmt;

const QUEUE_TYPE: &str = "x-queue-type";
const DEAD_LETTER_EXCHANGE: &str = "x-dead-letter-exchange";
const DEAD_LETTER_ROUTING_KEY: &str = "x-dead-letter-routing-key";

/// What a [`Topology`] would declare, in order. Its `Display` has a line for each declaration.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    declarations: Vec<Declaration>,
    warnings: Vec<String>,
}

impl Plan {
    /// What can be declared and may still surprise, one line each.
    pub fn warnings(&self) -> impl ExactSizeIterator<Item = &str> {
        self.warnings.iter().map(String::as_str)
    }

    pub(crate) fn declarations(&self) -> &[Declaration] {
        &self.declarations
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, declaration) in self.declarations.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "\n" })?;
            declaration.fmt(f)?;
        }
        Ok(())
    }
}

/// What a consumer declares before it subscribes; never its source queue, which may belong to somebody else.
pub(crate) fn consumer_share(queue: &str, ladder: &RetryLadder) -> Vec<Declaration> {
    let mut share = set_aside_share(queue, naming::DEAD_LETTER_EXCHANGE);
    share.extend(retry_share(queue, ladder));
    share
}

/// The dead-letter and parked queues, and how messages come to them.
fn set_aside_share(queue: &str, exchange: &str) -> Vec<Declaration> {
    let [dead_letters, dead_letters_bound] =
        set_aside_queue(&naming::dead_letter_queue(queue), exchange);
    let [parked, parked_bound] = set_aside_queue(&naming::parked_queue(queue), exchange);
    vec![
        Declaration::direct_exchange(exchange),
        dead_letters,
        parked,
        dead_letters_bound,
        parked_bound,
    ]
}

/// A dead-letter or parked queue and its binding.
pub(crate) fn set_aside_queue(name: &str, exchange: &str) -> [Declaration; 2] {
    [
        Declaration::durable_queue(name, Headers::new()),
        Declaration::bound_by_name(name, exchange),
    ]
}

/// The rungs and the way home from them; nothing without rungs. A rung without its exchange and its binding home would
/// lose every message in it, so they are declared together.
pub(crate) fn retry_share(queue: &str, ladder: &RetryLadder) -> Vec<Declaration> {
    if ladder.rungs().is_empty() {
        return Vec::new();
    }
    let mut share = vec![Declaration::direct_exchange(naming::RETRY_EXCHANGE)];
    let rungs = ladder.rungs().iter();
    share
        .extend(rungs.map(|rung| Declaration::durable_queue(rung.queue(), ladder.arguments(rung))));
    share.push(Declaration::bound_by_name(queue, naming::RETRY_EXCHANGE));
    share
}

pub(super) fn plan(topology: &Topology) -> Result<Plan, TopologyError> {
    let mut planner = Planner::default();
    planner.exchanges(topology);
    for (index, queue) in topology.queues.iter().enumerate() {
        let mut earlier = topology.queues.iter().take(index);
        if earlier.any(|other| other.name == queue.name) {
            let name = shown(&queue.name);
            let problem = format!("the queue {name} is declared twice");
            planner.problems.add(problem);
        }
        planner.queue(queue, &topology.dead_letter_exchange);
    }
    planner.bindings(topology);
    planner.problems.into_result()?;
    Ok(Plan {
        declarations: planner.declarations,
        warnings: planner.warnings,
    })
}

#[derive(Default)]
struct Planner {
    declarations: Vec<Declaration>,
    warnings: Vec<String>,
    problems: Problems,
}

impl Planner {
    fn exchanges(&mut self, topology: &Topology) {
        for (index, (name, kind)) in topology.exchanges.iter().enumerate() {
            if !self.problems.check_name("an exchange", name) {
                continue;
            }
            let earlier = topology.exchanges.iter().take(index);
            if earlier.clone().any(|(other, _)| other == name) {
                let name = shown(name);
                self.problems
                    .add(format!("the exchange {name} is declared twice"));
                continue;
            }
            self.add(Declaration::Exchange {
                name: name.clone(),
                kind: *kind,
                durable: true,
            });
        }
        let name = &topology.dead_letter_exchange;
        self.problems.check_name("the dead-letter exchange", name);
        if name == naming::RETRY_EXCHANGE {
            self.problems.add(format!(
                "the dead-letter exchange cannot be {name}, which is for retries"
            ));
        }
    }

    fn queue(&mut self, queue: &Queue, dead_letter_exchange: &str) {
        let name = &queue.name;
        let well_named = self.problems.check_name("a queue", name);
        self.check_flags(queue);
        self.check_arguments(queue);
        if !well_named {
            return;
        }
        if queue.dead_letter {
            self.add_all(set_aside_share(name, dead_letter_exchange));
        }
        let arguments = arguments(queue, dead_letter_exchange);
        self.warn(queue, &arguments);
        self.add(Declaration::Queue {
            name: name.clone(),
            durable: queue.durable,
            exclusive: queue.exclusive,
            auto_delete: queue.auto_delete,
            arguments,
        });
        let Some(policy) = &queue.retry else {
            return;
        };
        match RetryLadder::new(name, policy, queue.retry_threshold) {
            Ok(ladder) => self.add_all(retry_share(name, &ladder)),
            Err(error) => {
                let name = shown(name);
                self.problems.add(format!("the queue {name}: {error}"));
            }
        }
    }

    fn check_flags(&mut self, queue: &Queue) {
        let name = shown(&queue.name);
        match queue.resolved_kind() {
            QueueKind::Stream => {
                self.problems.add(format!(
                    "the queue {name} is a stream, and streams are not supported yet"
                ));
            }
            QueueKind::Quorum => {
                for (wrong, flag) in [
                    (queue.exclusive, "exclusive"),
                    (queue.auto_delete, "auto-delete"),
                    (!queue.durable, "transient"),
                ] {
                    if wrong {
                        self.problems
                            .add(format!("the quorum queue {name} cannot be {flag}"));
                    }
                }
            }
            QueueKind::Classic => {}
        }
        if !queue.durable && !queue.exclusive {
            self.problems.add(format!(
                "the queue {name} is transient but not exclusive, which RabbitMQ 4 has given up"
            ));
        }
    }

    fn check_arguments(&mut self, queue: &Queue) {
        let name = shown(&queue.name);
        for (argument, value) in queue.arguments.iter() {
            if argument.trim().is_empty() {
                self.problems
                    .add(format!("an argument of the queue {name} has a blank name"));
            }
            let what = format!("the argument of the queue {name},");
            self.problems.check_length(&what, argument);
            if value.has_nan() {
                self.problems.add(format!(
                    "the queue {name} sets {argument} to NaN, which no declaration of it would ever be equal to"
                ));
            }
            if argument == QUEUE_TYPE {
                self.problems.add(match value.as_str() {
                    Some("stream") => format!(
                        "the queue {name} is a stream, and streams are not supported yet"
                    ),
                    _ => format!(
                        "the queue {name} sets {QUEUE_TYPE} as an argument: say quorum() or classic()"
                    ),
                });
            }
            let dead_letters = [DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY];
            if queue.dead_letter && dead_letters.contains(&argument) {
                self.problems.add(format!(
                    "the queue {name} sets {argument} as an argument, and dead_letter() sets it too"
                ));
            }
        }
    }

    fn warn(&mut self, queue: &Queue, arguments: &Headers) {
        if queue.resolved_kind() == QueueKind::Quorum && !arguments.contains(DEAD_LETTER_EXCHANGE) {
            self.warnings.push(format!(
                "the quorum queue {} does not dead-letter: RabbitMQ 4 drops a message that was delivered 20 times",
                shown(&queue.name)
            ));
        }
    }

    fn bindings(&mut self, topology: &Topology) {
        for (index, binding) in topology.bindings.iter().enumerate() {
            let (queue, exchange) = (&binding.queue, &binding.exchange);
            let of = format!("the binding of {} to {}", shown(queue), shown(exchange));
            if topology.bindings.iter().take(index).any(|b| b == binding) {
                let key = shown(&binding.routing_key);
                self.problems.add(format!("{of} with {key} is given twice"));
                continue;
            }
            self.problems
                .check_length(&format!("{of}: the routing key"), &binding.routing_key);
            // By what the application asked for, not by what is planned: a queue with a problem of its own is none
            // that is missing.
            let declared = topology.queues.iter().any(|q| q.name == *queue);
            if !declared && !self.has_queue(queue) {
                self.problems
                    .add(format!("{of}: the queue is not declared"));
            }
            if exchange.is_empty() {
                self.problems
                    .add(format!("{of}: the default exchange takes no bindings"));
            } else if exchange.starts_with("amq.") {
                self.problems
                    .check_length(&format!("{of}: the exchange"), exchange);
            } else if !topology.exchanges.iter().any(|(name, _)| name == exchange)
                && !self.has_exchange(exchange)
            {
                self.problems
                    .add(format!("{of}: the exchange is not declared"));
            }
            self.add(Declaration::Binding {
                queue: queue.clone(),
                exchange: exchange.clone(),
                routing_key: binding.routing_key.clone(),
            });
        }
    }

    fn has_queue(&self, queue: &str) -> bool {
        let mut planned = self.declarations.iter();
        planned.any(|d| matches!(d, Declaration::Queue { name, .. } if name == queue))
    }

    fn has_exchange(&self, exchange: &str) -> bool {
        let mut planned = self.declarations.iter();
        planned.any(|d| matches!(d, Declaration::Exchange { name, .. } if name == exchange))
    }

    fn add_all(&mut self, declarations: Vec<Declaration>) {
        for declaration in declarations {
            self.add(declaration);
        }
    }

    /// Adds a declaration once; two different ones of one name are a problem.
    fn add(&mut self, declaration: Declaration) {
        let same = |planned: &&Declaration| match (*planned, &declaration) {
            (Declaration::Exchange { name: a, .. }, Declaration::Exchange { name: b, .. })
            | (Declaration::Queue { name: a, .. }, Declaration::Queue { name: b, .. }) => a == b,
            (a, b) => a == b,
        };
        match self.declarations.iter().find(same) {
            None => {
                if let Declaration::Queue { name, .. } = &declaration {
                    self.problems.check_length("the name of a queue", name);
                }
                self.declarations.push(declaration);
            }
            Some(planned) if *planned == declaration => {}
            Some(planned) => self.problems.add(format!(
                "two declarations of one name differ: {planned} and {declaration}"
            )),
        }
    }
}

fn arguments(queue: &Queue, dead_letter_exchange: &str) -> Headers {
    let mut arguments = queue.arguments.clone();
    // A classic queue has no type among its arguments: another service's declaration of it has none either.
    if queue.resolved_kind() == QueueKind::Quorum {
        arguments.insert(QUEUE_TYPE, "quorum");
    }
    if queue.dead_letter {
        arguments.insert(DEAD_LETTER_EXCHANGE, dead_letter_exchange);
        arguments.insert(
            DEAD_LETTER_ROUTING_KEY,
            naming::dead_letter_queue(&queue.name),
        );
    }
    arguments
}
