//! Requests of a running subscription to the broker, and their replies: check a rung, declare a
//! queue again.
//!
//! Each request is made once, however many deliveries wait for its reply.

use super::deliveries::Deliveries;
use super::state::{Event, Redeclared, Target};
use crate::link::{Admin, Operation};
use crate::message::headers::Headers;
use crate::naming;
use crate::topology::declaration::Declaration;
use crate::topology::set_aside_queue;
use crate::transport::Failure;
use crossbeam_channel::Sender;
use log::{Level, log, warn};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// A reply of the admin threads.
pub(crate) enum AdminReply {
    /// Whether the rung of `delay` exists.
    Rung {
        delay: Duration,
        result: Result<(), Failure>,
    },
    /// How a declaration of `target` ended.
    Redeclared {
        target: Target,
        result: Result<(), Failure>,
    },
    /// An object that was unavailable has been declared or found.
    Declared(Declaration),
}

/// The pending requests of one subscription, and the deliveries that wait for each.
pub(crate) struct AdminRequests<'a> {
    admin: &'a Admin,
    replies: Sender<AdminReply>,
    /// Delivery tags by the delay of the checked rung.
    rungs: HashMap<Duration, Vec<u64>>,
    /// Delivery tags by the target that is declared again.
    redeclared: HashMap<Target, Vec<u64>>,
}

impl<'a> AdminRequests<'a> {
    pub(crate) fn new(admin: &'a Admin, replies: Sender<AdminReply>) -> Self {
        Self {
            admin,
            replies,
            rungs: HashMap::new(),
            redeclared: HashMap::new(),
        }
    }

    /// Checks for the delivery `tag` whether the rung of `delay`, named `rung`, exists.
    pub(crate) fn check_rung(&mut self, tag: u64, delay: Duration, rung: String) {
        let waiting = self.rungs.entry(delay).or_default();
        waiting.push(tag);
        if waiting.len() > 1 {
            return;
        }
        let check = Operation::Check(Declaration::durable_queue(rung, Headers::new()));
        let replies = self.replies.clone();
        self.admin.submit(check, move |result| {
            let _ = replies.send(AdminReply::Rung { delay, result });
        });
    }

    /// Declares a dead-letter or parked queue again for the delivery `tag`.
    ///
    /// The copy goes through the default exchange, so only the queue matters to it. The binding
    /// serves messages that the broker itself dead-letters.
    pub(crate) fn redeclare(&mut self, tag: u64, target: Target, queue: String) {
        let waiting = self.redeclared.entry(target).or_default();
        waiting.push(tag);
        if waiting.len() > 1 {
            return;
        }
        let [declaration, binding] = set_aside_queue(&queue, naming::DEAD_LETTER_EXCHANGE);
        let rest = [
            Declaration::direct_exchange(naming::DEAD_LETTER_EXCHANGE),
            binding,
        ];
        let (admin, replies) = (self.admin.clone(), self.replies.clone());
        self.admin
            .submit(Operation::Declare(declaration), move |result| {
                // The deliveries wait for the queue only, so the reply does not wait for the
                // binding.
                let stands = result.is_ok();
                let _ = replies.send(AdminReply::Redeclared { target, result });
                if stands {
                    rest.into_iter()
                        .for_each(|declaration| declare(&admin, declaration));
                }
            });
    }

    /// Declares unavailable objects again. Only a success is reported.
    pub(crate) fn declare_again(&self, unavailable: &[Declaration]) {
        declare_again(
            self.admin,
            unavailable.to_vec().into(),
            self.replies.clone(),
        );
    }

    /// Takes the deliveries that wait for the check of that rung.
    pub(crate) fn take_rung_waiters(&mut self, delay: Duration) -> Vec<u64> {
        self.rungs.remove(&delay).unwrap_or_default()
    }

    /// Takes the deliveries that wait for the declaration of that target.
    pub(crate) fn take_redeclare_waiters(&mut self, target: Target) -> Vec<u64> {
        self.redeclared.remove(&target).unwrap_or_default()
    }
}

impl Deliveries<'_> {
    /// Handles a reply of the admin threads.
    pub(crate) fn admin_replied(&mut self, reply: AdminReply) -> Result<(), Failure> {
        match reply {
            AdminReply::Rung { delay, result } => {
                let missing = result.as_ref().is_err_and(Failure::is_not_found);
                // Later retries skip the check until a copy is returned.
                if result.is_ok() {
                    self.known.rungs.insert(delay);
                }
                // Only a 404 means missing. On any other failure the copy, which is mandatory,
                // shows it.
                let event = if missing {
                    Event::RungMissing
                } else {
                    Event::RungThere
                };
                let waiting = self.requests.take_rung_waiters(delay);
                waiting
                    .into_iter()
                    .try_for_each(|tag| self.step(tag, &event))
            }
            AdminReply::Declared(declaration) => {
                self.known
                    .unavailable
                    .retain(|unavailable| *unavailable != declaration);
                Ok(())
            }
            AdminReply::Redeclared { target, result } => {
                let redeclared = match &result {
                    Ok(()) => Redeclared::Done,
                    Err(Failure::Refused { code: 404, .. }) => Redeclared::NodeDown,
                    Err(Failure::Refused { .. }) => Redeclared::Refused,
                    Err(Failure::Lost(_) | Failure::TimedOut | Failure::NoChannelLeft) => {
                        Redeclared::NoAnswer
                    }
                };
                if let Err(failure) = result {
                    let queue = self.queue_of(target);
                    // The failure repeats for every message until a copy lands there.
                    let level = if self.known.warned.contains(&target) {
                        Level::Debug
                    } else {
                        Level::Warn
                    };
                    log!(level, "{queue} could not be declared again: {failure}");
                    if redeclared == Redeclared::NodeDown {
                        self.note_unavailable(&queue);
                    }
                }
                let waiting = self.requests.take_redeclare_waiters(target);
                let event = Event::Redeclared(redeclared);
                waiting
                    .into_iter()
                    .try_for_each(|tag| self.step(tag, &event))
            }
        }
    }

    /// Remembers `queue` and its binding as unavailable.
    fn note_unavailable(&mut self, queue: &str) {
        for declaration in set_aside_queue(queue, naming::DEAD_LETTER_EXCHANGE) {
            if !self.known.unavailable.contains(&declaration) {
                self.known.unavailable.push(declaration);
            }
        }
    }
}

/// Declares one object after another and stops at the first that is not answered, because each such
/// call leaves a thread behind.
fn declare_again(
    admin: &Admin,
    mut unavailable: VecDeque<Declaration>,
    replies: Sender<AdminReply>,
) {
    let Some(declaration) = unavailable.pop_front() else {
        return;
    };
    let (declare, check) = (declaration.clone(), declaration.clone());
    let asking = admin.clone();
    let report = move |admin: &Admin, result: Result<(), Failure>| {
        match result {
            Ok(()) => {
                let _ = replies.send(AdminReply::Declared(declaration));
            }
            Err(Failure::Refused { .. }) => {}
            Err(_) => return,
        }
        declare_again(admin, unavailable, replies);
    };
    admin.submit(Operation::Declare(declare), move |result| {
        let admin = asking.clone();
        match result {
            // A user without the permission to declare it may still find it.
            Err(failure) if failure.is_access_refused() => {
                asking.submit(Operation::Check(check), move |result| {
                    report(&admin, result)
                });
            }
            result => report(&admin, result),
        }
    });
}

/// Declares an object; a failure is logged.
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

    /// The user may declare `free` only; `there` exists, and `missing` does not.
    fn answer(call: Call, declaration: &Declaration) -> Result<(), Failure> {
        match (call, declaration) {
            (_, Declaration::Queue { name, .. }) if name == "free" => Ok(()),
            (Call::Declare, _) => refused(403),
            (Call::Check, Declaration::Queue { name, .. }) if name == "there" => Ok(()),
            _ => refused(404),
        }
    }

    #[test]
    fn unavailable_queue_is_found_without_declare_permission() {
        let link = Link::start(dialled(answer), "test", &SystemClock, |_| {}).unwrap();
        let admin = Admin::start(
            link.clone(),
            Duration::from_secs(10),
            &SystemClock::shared(),
        )
        .unwrap();
        let (reply, replies) = unbounded();
        let unavailable = ["missing", "there", "free"].map(queue);
        AdminRequests::new(&admin, reply.clone()).declare_again(&unavailable);
        drop(reply);
        let found: Vec<Declaration> = replies
            .iter()
            .map(|reply| match reply {
                AdminReply::Declared(declaration) => declaration,
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
