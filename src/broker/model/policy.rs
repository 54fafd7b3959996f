//! Policies, which an operator sets over the arguments of queues.

use super::ids::Moment;
use super::refusal::Refusal;
use super::{BrokerState, arguments};
use crate::message::headers::{HeaderValue, Headers};
use std::fmt;

/// The keys that a policy may define.
const KEYS: &[&str] = &[
    "message-ttl",
    "expires",
    "dead-letter-exchange",
    "dead-letter-routing-key",
    "max-length",
    "max-length-bytes",
    "overflow",
    "delivery-limit",
];

/// A policy for the queues whose names it applies to.
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) applies: Box<dyn Fn(&str) -> bool + Send + Sync>,
    pub(crate) definition: Headers,
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.name)
            .field("definition", &self.definition)
            .finish_non_exhaustive()
    }
}

impl Policy {
    /// Fails when the definition has an unknown key.
    fn check(&self) -> Result<(), Refusal> {
        let mut keys = self.definition.iter().map(|(key, _)| key);
        match keys.find(|key| !KEYS.contains(key)) {
            Some(key) => Err(Refusal::precondition_failed(format!(
                "{key} is not a policy of the embedded broker"
            ))),
            None => Ok(()),
        }
    }

    /// The arguments under this policy: the smaller of two numbers, and otherwise the queue's own
    /// value.
    fn over(&self, arguments: &Headers) -> Headers {
        let mut all = arguments.clone();
        for (key, value) in self.definition.iter() {
            let argument = format!("x-{key}");
            let own = arguments.get(&argument);
            let is_stricter = match (own.and_then(HeaderValue::as_i64), value.as_i64()) {
                (Some(own), Some(limit)) => limit < own,
                _ => own.is_none(),
            };
            if is_stricter {
                all.insert(argument, value.clone());
            }
        }
        all
    }
}

impl BrokerState {
    /// Sets a policy, and replaces the one of its name.
    pub(crate) fn set_policy(&mut self, policy: Policy, at: Moment) -> Result<(), Refusal> {
        policy.check()?;
        self.policies.retain(|other| other.name != policy.name);
        self.policies.push(policy);
        self.apply_policies(at);
        Ok(())
    }

    pub(crate) fn clear_policy(&mut self, name: &str, at: Moment) {
        self.policies.retain(|policy| policy.name != name);
        self.apply_policies(at);
    }

    fn apply_policies(&mut self, at: Moment) {
        let queues: Vec<String> = self.queues.keys().cloned().collect();
        for queue in queues {
            self.apply_policy(&queue, at);
        }
        self.run_to_quiescence(at);
    }

    /// Gives a queue the settings of the last policy that applies to it.
    pub(crate) fn apply_policy(&mut self, name: &str, at: Moment) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        let policy = self.policies.iter().rev();
        let policy = policy.clone().find(|policy| (policy.applies)(name));
        let name_of_policy = policy.map(|policy| policy.name.clone());
        // Without a policy before and now, the settings cannot have changed.
        if queue.policy.is_none() && name_of_policy.is_none() {
            return;
        }
        let arguments = match policy {
            Some(policy) => policy.over(&queue.arguments),
            None => queue.arguments.clone(),
        };
        let settings = arguments::settings(queue.kind, &arguments, queue.profile);
        // A changed expiry counts from now on.
        if settings.expires != queue.settings.expires {
            queue.last_used = at.now;
        }
        queue.policy = name_of_policy;
        queue.settings = settings;
        self.mark_dirty(name);
    }
}
