//! Everything that is wrong with a topology, found before the wire.

use crate::naming;
use std::error::Error;
use std::fmt;

/// A topology that could not be declared, with everything that is wrong with it.
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

/// Problems as they are found.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<String>);

impl Problems {
    pub(super) fn add(&mut self, problem: impl Into<String>) {
        let problem = problem.into();
        if !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }

    /// Checks the name of something that the application wants declared; says whether it is good.
    pub(super) fn check_name(&mut self, what: &str, name: &str) -> bool {
        if name.trim().is_empty() {
            self.add(format!("{what} has a blank name"));
            return false;
        }
        if name.starts_with("amq.") {
            self.add(format!(
                "{what} {} has a name that RabbitMQ keeps for itself (amq.…)",
                shown(name)
            ));
            return false;
        }
        self.check_length(&format!("the name of {what}"), name)
    }

    /// AMQP cannot carry more, and what is written longer breaks the whole connection.
    pub(super) fn check_length(&mut self, what: &str, text: &str) -> bool {
        if text.len() <= naming::LONGEST_NAME {
            return true;
        }
        self.add(format!(
            "{what} {} has {} bytes, and AMQP allows {}",
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

/// A name in quotes, a long one with its middle left out.
pub(super) fn shown(name: &str) -> String {
    format!("{:?}", naming::abbreviated(name))
}
