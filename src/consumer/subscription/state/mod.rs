//! The state machine of one delivery: a pure function from state and event to the next state and an
//! effect.
//!
//! Only the consumer thread applies it. A delivery is settled at most once. It is acknowledged only
//! after its handler accepted it or its copy was confirmed and not returned. Nothing is written for
//! it once its channel has died.

use crate::message::publish::error::{PublishResult, UnknownCause};
use crate::metrics::HandBackReason;
use crate::retry::{Decision, Wait};
use std::time::Duration;

/// Where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// The rung of that delay.
    Rung(Duration),
    /// The queue it came from.
    Source,
    DeadLetter,
    Parked,
}

/// The state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DeliveryState {
    /// With the workers, unstarted or running.
    Handed,
    /// A check whether its rung exists is under way; `rechecked` when it was already waiting in the
    /// consumer.
    Checking {
        delay: Duration,
        rechecked: bool,
    },
    /// Waits in the consumer, in place of `missing_rung` if there is one.
    Waiting {
        missing_rung: Option<Duration>,
    },
    /// A copy is with the publisher.
    Copying {
        target: Target,
        second_try: bool,
    },
    /// The queue that returned a dead-letter or parked copy is being declared again.
    Redeclaring {
        target: Target,
    },
    /// Is requeued when its pause is over.
    Held {
        reason: HandBackReason,
    },
    Ended(DeliveryEnd),
}

/// How a delivery ended. Later events are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DeliveryEnd {
    Acked,
    /// Requeued; it is redelivered with its attempt unchanged.
    Nacked,
    /// Rejected, because it could not be set aside.
    Rejected,
    /// Requeued without having been started.
    Returned,
    /// Its channel is gone, and the broker has requeued it.
    Stale,
    /// Unsettled at the deadline; the broker requeues it when the channel closes.
    Stranded,
}

/// How declaring a queue again ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Redeclared {
    Done,
    /// The broker refused it (403, 406).
    Refused,
    /// The queue exists on a cluster node that is down (404).
    NodeDown,
    NoAnswer,
}

/// What happens to a delivery.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event<'a> {
    Decided(&'a Decision),
    RungThere,
    RungMissing,
    /// A wait for a missing rung is interrupted to check for the rung again.
    RecheckRung,
    WaitOver,
    Copied(&'a PublishResult),
    Redeclared(Redeclared),
    PauseOver,
    /// It was unstarted and has been taken from the workers.
    TakenBack,
    /// The channel is going to close: waits end, and nothing new starts.
    DrainBegan,
    Died,
    DeadlinePassed,
}

/// What the consumer thread does after a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    Nothing,
    /// Check whether the rung of that delay exists.
    Check(Duration),
    /// Wait in a worker for the rung's delay.
    WaitForRung(Duration),
    /// Resume the wait that a check interrupted.
    ResumeWait,
    Copy(Target),
    Redeclare(Target),
    /// Requeue after the pause of that target.
    Pause(Target),
    Ack,
    Nack,
    Reject,
}

/// The metric that a transition counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Count {
    RungMissing,
    SetAsideFailed(Target),
}

/// The result of applying an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transition {
    pub(crate) next: DeliveryState,
    pub(crate) effect: Effect,
    pub(crate) count: Option<Count>,
}

/// What holds for the consumer at the time of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Circumstances {
    pub(crate) draining: bool,
    /// Whether the rung of a retry is known to exist.
    pub(crate) rung_known: bool,
    /// Requeue a message that cannot be set aside, rather than reject it.
    pub(crate) never_reject: bool,
}

impl DeliveryState {
    /// Returns the next state and the effect.
    pub(crate) fn step(self, event: &Event<'_>, circumstances: Circumstances) -> Transition {
        let unchanged = to(self, Effect::Nothing);
        match (self, event) {
            (Self::Ended(_), _) => unchanged,
            // Nothing is written: the broker has requeued it.
            (_, Event::Died) => ended(DeliveryEnd::Stale, Effect::Nothing),
            // Its handler is done, so a drain error does not list it.
            (Self::Held { .. } | Self::Waiting { .. }, Event::DeadlinePassed) => {
                ended(DeliveryEnd::Stale, Effect::Nothing)
            }

            (_, Event::DeadlinePassed) => ended(DeliveryEnd::Stranded, Effect::Nothing),

            (Self::Handed, Event::TakenBack) => ended(DeliveryEnd::Returned, Effect::Nack),
            // The broker redelivers it, so that another consumer makes the next attempt.
            (Self::Waiting { .. }, Event::DrainBegan) => ended(DeliveryEnd::Nacked, Effect::Nack),
            (Self::Held { .. }, Event::DrainBegan | Event::PauseOver) => {
                ended(DeliveryEnd::Nacked, Effect::Nack)
            }

            (Self::Handed, Event::Decided(decision)) => decided(decision, circumstances),

            (Self::Checking { delay, .. }, Event::RungThere) => copy(Target::Rung(delay)),
            (Self::Checking { .. }, Event::RungMissing) if circumstances.draining => {
                ended(DeliveryEnd::Nacked, Effect::Nack)
            }
            (
                Self::Checking {
                    delay,
                    rechecked: true,
                },
                Event::RungMissing,
            ) => to(
                Self::Waiting {
                    missing_rung: Some(delay),
                },
                Effect::ResumeWait,
            ),
            (
                Self::Checking {
                    delay,
                    rechecked: false,
                },
                Event::RungMissing,
            ) => wait_for_rung(delay),

            (
                Self::Waiting {
                    missing_rung: Some(delay),
                },
                Event::RecheckRung,
            ) => to(
                Self::Checking {
                    delay,
                    rechecked: true,
                },
                Effect::Check(delay),
            ),
            (Self::Waiting { .. }, Event::WaitOver) => copy(Target::Source),

            (Self::Copying { target, second_try }, Event::Copied(result)) => {
                copied(target, second_try, result, circumstances)
            }

            (Self::Redeclaring { target }, Event::Redeclared(redeclared)) => match redeclared {
                Redeclared::Done => to(
                    Self::Copying {
                        target,
                        second_try: true,
                    },
                    Effect::Copy(target),
                ),
                Redeclared::Refused => counted(
                    set_aside_failed(target, circumstances),
                    Count::SetAsideFailed(target),
                ),
                // The queue exists, and comes back with its node. Rejecting would lose the message.
                Redeclared::NodeDown => counted(
                    hold(target, HandBackReason::Unroutable, circumstances),
                    Count::SetAsideFailed(target),
                ),
                Redeclared::NoAnswer => hold(target, HandBackReason::Timeout, circumstances),
            },

            _ => unchanged,
        }
    }
}

/// The handler has answered.
fn decided(decision: &Decision, circumstances: Circumstances) -> Transition {
    match *decision {
        Decision::Ack => ended(DeliveryEnd::Acked, Effect::Ack),
        // Needs no wait, so it goes on while draining.
        Decision::Retry(Wait::Thread(delay)) if delay.is_zero() => copy(Target::Source),
        Decision::Retry(Wait::Thread(_)) if circumstances.draining => {
            ended(DeliveryEnd::Nacked, Effect::Nack)
        }
        Decision::Retry(Wait::Thread(_)) => to(
            DeliveryState::Waiting { missing_rung: None },
            Effect::Nothing,
        ),
        Decision::Retry(Wait::Rung(delay)) if circumstances.rung_known => copy(Target::Rung(delay)),
        Decision::Retry(Wait::Rung(delay)) => to(
            DeliveryState::Checking {
                delay,
                rechecked: false,
            },
            Effect::Check(delay),
        ),
        Decision::DeadLetter { .. } => copy(Target::DeadLetter),
        Decision::Park { .. } => copy(Target::Parked),
    }
}

/// The publisher has answered.
fn copied(
    target: Target,
    second_try: bool,
    result: &PublishResult,
    circumstances: Circumstances,
) -> Transition {
    match (result, target) {
        (PublishResult::Confirmed, _) => ended(DeliveryEnd::Acked, Effect::Ack),
        // No wait begins while draining.
        (PublishResult::Unroutable(_), Target::Rung(_)) if circumstances.draining => {
            counted(ended(DeliveryEnd::Nacked, Effect::Nack), Count::RungMissing)
        }
        (PublishResult::Unroutable(_), Target::Rung(delay)) => wait_for_rung(delay),
        // The queue was probably deleted. A second copy follows if it can be declared again.
        (PublishResult::Unroutable(_), Target::DeadLetter | Target::Parked) if !second_try => to(
            DeliveryState::Redeclaring { target },
            Effect::Redeclare(target),
        ),
        (PublishResult::Unroutable(_), Target::DeadLetter | Target::Parked)
        | (PublishResult::ChannelClosed(_), _) => counted(
            set_aside_failed(target, circumstances),
            Count::SetAsideFailed(target),
        ),
        (PublishResult::Nacked, Target::DeadLetter | Target::Parked) => counted(
            hold(target, HandBackReason::Nacked, circumstances),
            Count::SetAsideFailed(target),
        ),
        (PublishResult::Unroutable(_), _) => {
            hold(target, HandBackReason::Unroutable, circumstances)
        }
        (PublishResult::Nacked, _) => hold(target, HandBackReason::Nacked, circumstances),
        (PublishResult::Unknown(UnknownCause::Timeout), _) => {
            hold(target, HandBackReason::Timeout, circumstances)
        }
        (PublishResult::Unknown(UnknownCause::Lost(_)) | PublishResult::NotSent(_), _) => {
            hold(target, HandBackReason::Lost, circumstances)
        }
    }
}

/// The message cannot be set aside.
fn set_aside_failed(target: Target, circumstances: Circumstances) -> Transition {
    if circumstances.never_reject {
        hold(target, HandBackReason::Unroutable, circumstances)
    } else {
        ended(DeliveryEnd::Rejected, Effect::Reject)
    }
}

/// Requeues after a pause; during a drain immediately.
fn hold(target: Target, reason: HandBackReason, circumstances: Circumstances) -> Transition {
    if circumstances.draining {
        ended(DeliveryEnd::Nacked, Effect::Nack)
    } else {
        to(DeliveryState::Held { reason }, Effect::Pause(target))
    }
}

fn wait_for_rung(delay: Duration) -> Transition {
    let step = to(
        DeliveryState::Waiting {
            missing_rung: Some(delay),
        },
        Effect::WaitForRung(delay),
    );
    counted(step, Count::RungMissing)
}

fn copy(target: Target) -> Transition {
    to(
        DeliveryState::Copying {
            target,
            second_try: false,
        },
        Effect::Copy(target),
    )
}

fn ended(end: DeliveryEnd, effect: Effect) -> Transition {
    to(DeliveryState::Ended(end), effect)
}

fn to(next: DeliveryState, effect: Effect) -> Transition {
    Transition {
        next,
        effect,
        count: None,
    }
}

fn counted(step: Transition, count: Count) -> Transition {
    Transition {
        count: Some(count),
        ..step
    }
}

#[cfg(test)]
mod model;
