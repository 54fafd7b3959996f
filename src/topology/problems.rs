//! Problems of a topology that can be found without a broker.

use crate::naming;
use std::error::Error;
use std::fmt;

/// An invalid topology, with all its problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyError {
    problems: Vec<String>,
}

impl TopologyError {
    /// The problems, one line each.
    pub fn problems(&self) -> impl ExactSizeIterator<Item = &str> {
        self.problems.iter().map(String::as_str)
    }
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.len() {
            1 => f.write_str("the topology has a problem: ")?,
            count => write!(f, "the topology has {count} problems: ")?,
        }
        f.write_str(&self.problems.join("; "))
    }
}

impl Error for TopologyError {}

/// Collects problems, each once.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<String>);

impl Problems {
    pub(super) fn add(&mut self, problem: impl Into<String>) {
        let problem = problem.into();
        // A name used twice would otherwise report its problem twice.
        if !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }

    /// Checks the name of a queue or exchange; returns whether it is valid.
    pub(super) fn check_name(&mut self, what: &str, name: &str) -> bool {
        if name.trim().is_empty() {
            self.add(format!("{what} has a blank name"));
            return false;
        }
        if name.starts_with("amq.") {
            self.add(format!(
                "{what} {} has a name reserved by RabbitMQ (amq.…)",
                shown(name)
            ));
            return false;
        }
        self.check_length(&format!("the name of {what}"), name)
    }

    /// Checks that `text` fits an AMQP short string; returns whether it does. A longer one would
    /// break the connection.
    pub(super) fn check_length(&mut self, what: &str, text: &str) -> bool {
        if text.len() <= naming::LONGEST_NAME {
            return true;
        }
        self.add(format!(
            "{what} {} has {} bytes, but AMQP allows {}",
            shown(text),
            text.len(),
            naming::LONGEST_NAME
        ));
        false
    }

    pub(super) fn into_result(self) -> Result<(), TopologyError> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(TopologyError { problems: self.0 })
    }
}

/// Quotes a name and shortens a long one in its middle.
pub(super) fn shown(name: &str) -> String {
    format!("{:?}", naming::abbreviated(name))
}
