//! What a subscription asks of the broker while it runs: is a rung there, can a queue be declared again?
//!
//! A question is asked once, however many deliveries wait for its answer.

use super::state::Target;
use crate::link::{Admin, Operation};
use crate::message::headers::Headers;
use crate::naming;
use crate::topology::declaration::Declaration;
use crate::topology::set_aside_share;
use crate::transport::Failure;
use crossbeam_channel::Sender;
use log::warn;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// What the admin threads found out.
pub(crate) enum Finding {
    Rung {
        delay: Duration,
        result: Result<(), Failure>,
    },
    Redeclared {
        target: Target,
        result: Result<(), Failure>,
    },
    /// What was on a cluster node that is down has been declared.
    Declared(Declaration),
}

/// The questions of one subscription, and the deliveries that wait for each.
pub(crate) struct Questions<'a> {
    admin: &'a Admin,
    findings: Sender<Finding>,
    rungs: HashMap<Duration, Vec<u64>>,
    redeclared: HashMap<Target, Vec<u64>>,
}

impl<'a> Questions<'a> {
    pub(crate) fn new(admin: &'a Admin, findings: Sender<Finding>) -> Self {
        Self {
            admin,
            findings,
            rungs: HashMap::new(),
            redeclared: HashMap::new(),
        }
    }

    /// Asks for the delivery `tag` whether the rung of `delay`, named `rung`, exists.
    pub(crate) fn ask_for_rung(&mut self, tag: u64, delay: Duration, rung: String) {
        let waiting = self.rungs.entry(delay).or_default();
        waiting.push(tag);
        if waiting.len() > 1 {
            return;
        }
        let check = Operation::Check(Declaration::durable_queue(rung, Headers::new()));
        let findings = self.findings.clone();
        self.admin.submit(check, move |result| {
            drop(findings.send(Finding::Rung { delay, result }));
        });
    }

    /// Declares a dead-letter or parked queue again for the delivery `tag`. The copy goes through the default exchange, so
    /// the queue alone decides; its binding is for what the broker dead-letters by itself.
    pub(crate) fn redeclare(&mut self, tag: u64, target: Target, queue: String) {
        let waiting = self.redeclared.entry(target).or_default();
        waiting.push(tag);
        if waiting.len() > 1 {
            return;
        }
        let [declaration, binding] = set_aside_share(&queue);
        let rest = [
            Declaration::direct_exchange(naming::DEAD_LETTER_EXCHANGE),
            binding,
        ];
        let (admin, findings) = (self.admin.clone(), self.findings.clone());
        self.admin
            .submit(Operation::Declare(declaration), move |result| {
                let stands = result.is_ok();
                drop(findings.send(Finding::Redeclared { target, result }));
                if stands {
                    rest.into_iter()
                        .for_each(|declaration| declare(&admin, declaration));
                }
            });
    }

    /// Asks again for what was on a cluster node that is down. Only a success is told.
    pub(crate) fn ask_again(&self, down: &[Declaration]) {
        ask_again(self.admin, down.to_vec().into(), self.findings.clone());
    }

    /// Who has waited to hear of that rung.
    pub(crate) fn waiting_for_rung(&mut self, delay: Duration) -> Vec<u64> {
        self.rungs.remove(&delay).unwrap_or_default()
    }

    /// Who has waited for that queue to be declared again.
    pub(crate) fn waiting_for_redeclared(&mut self, target: Target) -> Vec<u64> {
        self.redeclared.remove(&target).unwrap_or_default()
    }
}

/// One after the other, and no further after one that is not answered: each such call leaves a thread behind.
fn ask_again(admin: &Admin, mut down: VecDeque<Declaration>, findings: Sender<Finding>) {
    let Some(declaration) = down.pop_front() else {
        return;
    };
    let (declare, check) = (declaration.clone(), declaration.clone());
    let asking = admin.clone();
    let told = move |admin: &Admin, result: Result<(), Failure>| {
        match result {
            Ok(()) => drop(findings.send(Finding::Declared(declaration))),
            Err(Failure::Refused { .. }) => {}
            Err(_) => return,
        }
        ask_again(admin, down, findings);
    };
    admin.submit(Operation::Declare(declare), move |result| {
        let admin = asking.clone();
        match result {
            // A user who may not declare it may still find it.
            Err(failure) if failure.is_access_refused() => {
                asking.submit(Operation::Check(check), move |result| told(&admin, result));
            }
            result => told(&admin, result),
        }
    });
}

fn declare(admin: &Admin, declaration: Declaration) {
    let line = declaration.to_string();
    admin.submit(Operation::Declare(declaration), move |result| {
        if let Err(failure) = result {
            warn!("{line} could not be declared again: {failure}");
        }
    });
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed step is a failed test"
)]
mod tests {
    use super::*;
    use crate::link::Link;
    use crate::time::clock::SystemClock;
    use crate::transport::fake::{Call, dialled};
    use crossbeam_channel::unbounded;

    fn refused(code: u16) -> Result<(), Failure> {
        let text = "as the test says".to_owned();
        Err(Failure::Refused { code, text })
    }

    /// A user who may declare `free` only finds `there`, and not `missing`.
    fn answer(call: Call, declaration: &Declaration) -> Result<(), Failure> {
        match (call, declaration) {
            (_, Declaration::Queue { name, .. }) if name == "free" => Ok(()),
            (Call::Declare, _) => refused(403),
            (Call::Check, Declaration::Queue { name, .. }) if name == "there" => Ok(()),
            _ => refused(404),
        }
    }

    #[test]
    fn what_was_down_is_found_again_by_a_user_who_may_not_declare_it() {
        let link = Link::start(dialled(answer), "test", &SystemClock, |_| {}).unwrap();
        let admin = Admin::start(
            link.clone(),
            Duration::from_secs(10),
            &SystemClock::shared(),
        )
        .unwrap();
        let (find, findings) = unbounded();
        let down = ["missing", "there", "free"].map(queue);
        Questions::new(&admin, find.clone()).ask_again(&down);
        drop(find);
        let found: Vec<Declaration> = findings
            .iter()
            .map(|finding| match finding {
                Finding::Declared(declaration) => declaration,
                _ => panic!("nothing else was asked"),
            })
            .collect();
        assert_eq!(found, ["there", "free"].map(queue));
        link.kill();
    }

    fn queue(name: &str) -> Declaration {
        Declaration::durable_queue(name, Headers::new())
    }
}
