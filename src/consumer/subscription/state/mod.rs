//! The states of one delivery: a pure function from state and event to the next state and what to do.
//!
//! The consumer thread is the only one that applies it. A delivery gets at most one settlement, an acknowledgement only
//! after its handler accepted or its copy was confirmed and not returned, and nothing at all once its channel has died.

use crate::metrics::HandBackReason;
use crate::retry::{Decision, Wait};
use std::time::Duration;

/// Where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// The rung of that delay.
    Rung(Duration),
    /// Back to the queue that it came from.
    Source,
    DeadLetter,
    Parked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// With the workers: received and not started, or its handler runs. They know which.
    Handed,
    /// It is being asked whether its rung exists; `asked_again` when it has been waiting in the consumer meanwhile.
    Checking {
        delay: Duration,
        asked_again: bool,
    },
    /// Waits in the consumer; for a rung that is missing when there is one.
    Waiting {
        missing_rung: Option<Duration>,
    },
    /// A copy is with the publisher.
    Copying {
        target: Target,
        second_try: bool,
    },
    /// The queue that a set-aside copy came back from is being declared again.
    Redeclaring {
        target: Target,
    },
    /// Will be handed back when its pause is over.
    Held {
        reason: HandBackReason,
    },
    Ended(End),
}

/// How a delivery ended. Whatever comes later for it is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    Acked,
    /// Handed back: it will be redelivered with its attempt unchanged.
    Nacked,
    /// Rejected for good, because it could not be set aside.
    Rejected,
    /// Handed back without having been started.
    Returned,
    /// Its channel is gone: the broker has it back by itself.
    Stale,
    /// Unsettled at the deadline: the broker gets it back with the channel.
    Stranded,
}

/// How a copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CopyEnd {
    Confirmed,
    Returned,
    Nacked,
    /// Written, and no answer in time.
    TimedOut,
    /// Written, and the connection was lost.
    Lost,
    /// Not written.
    NotSent,
    /// The broker closed the channel over this very copy.
    ChannelClosed,
}

/// How it went to declare a queue again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Redeclared {
    Done,
    /// The broker will not have it (403, 406).
    Refused,
    /// The queue exists on a cluster node that is down (404).
    NodeDown,
    NoAnswer,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event<'a> {
    Decided(&'a Decision),
    RungThere,
    RungMissing,
    /// A wait for a missing rung asks for it again.
    AskAgain,
    WaitOver,
    Copied(CopyEnd),
    Redeclared(Redeclared),
    PauseOver,
    /// No worker had started it, and none will.
    TakenBack,
    /// The channel will close: waits end, and nothing new starts.
    DrainBegan,
    Died,
    DeadlinePassed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    Nothing,
    Check(Duration),
    /// Wait in a worker's thread for the rung's delay.
    WaitForRung(Duration),
    /// Go on with the wait that was interrupted by asking.
    WaitOn,
    Copy(Target),
    Redeclare(Target),
    /// Hand back after the pause that the target's pace says.
    Pause(Target),
    Ack,
    Nack,
    Reject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Count {
    RungMissing,
    SetAsideFailed(Target),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) next: State,
    pub(crate) effect: Effect,
    pub(crate) count: Option<Count>,
}

/// What holds for the consumer when an event comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Circumstances {
    pub(crate) draining: bool,
    /// Whether the rung of a long retry is known to exist.
    pub(crate) rung_known: bool,
    /// A message that cannot be set aside is handed back rather than rejected.
    pub(crate) never_reject: bool,
}

impl State {
    /// The next state, and what to do.
    pub(crate) fn step(self, event: &Event<'_>, circumstances: Circumstances) -> Step {
        let unchanged = to(self, Effect::Nothing);
        match (self, event) {
            (Self::Ended(_), _) => unchanged,
            (_, Event::Died) => ended(End::Stale, Effect::Nothing),
            (Self::Held { .. } | Self::Waiting { .. }, Event::DeadlinePassed) => {
                ended(End::Stale, Effect::Nothing)
            }

            (_, Event::DeadlinePassed) => ended(End::Stranded, Effect::Nothing),

            (Self::Handed, Event::TakenBack) => ended(End::Returned, Effect::Nack),
            (Self::Waiting { .. }, Event::DrainBegan) => ended(End::Nacked, Effect::Nack),
            (Self::Held { .. }, Event::DrainBegan | Event::PauseOver) => {
                ended(End::Nacked, Effect::Nack)
            }

            (Self::Handed, Event::Decided(decision)) => decided(decision, circumstances),

            (Self::Checking { delay, .. }, Event::RungThere) => copy(Target::Rung(delay)),
            (Self::Checking { .. }, Event::RungMissing) if circumstances.draining => {
                ended(End::Nacked, Effect::Nack)
            }
            (
                Self::Checking {
                    delay,
                    asked_again: true,
                },
                Event::RungMissing,
            ) => to(
                Self::Waiting {
                    missing_rung: Some(delay),
                },
                Effect::WaitOn,
            ),
            (
                Self::Checking {
                    delay,
                    asked_again: false,
                },
                Event::RungMissing,
            ) => wait_for_rung(delay),

            (
                Self::Waiting {
                    missing_rung: Some(delay),
                },
                Event::AskAgain,
            ) => to(
                Self::Checking {
                    delay,
                    asked_again: true,
                },
                Effect::Check(delay),
            ),
            (Self::Waiting { .. }, Event::WaitOver) => copy(Target::Source),

            (Self::Copying { target, second_try }, Event::Copied(end)) => {
                copied(target, second_try, *end, circumstances)
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

fn decided(decision: &Decision, circumstances: Circumstances) -> Step {
    match *decision {
        Decision::Ack => ended(End::Acked, Effect::Ack),
        Decision::Retry(Wait::Thread(delay)) if delay.is_zero() => copy(Target::Source),
        Decision::Retry(Wait::Thread(_)) if circumstances.draining => {
            ended(End::Nacked, Effect::Nack)
        }
        Decision::Retry(Wait::Thread(_)) => {
            to(State::Waiting { missing_rung: None }, Effect::Nothing)
        }
        Decision::Retry(Wait::Rung(delay)) if circumstances.rung_known => copy(Target::Rung(delay)),
        Decision::Retry(Wait::Rung(delay)) => to(
            State::Checking {
                delay,
                asked_again: false,
            },
            Effect::Check(delay),
        ),
        Decision::DeadLetter { .. } => copy(Target::DeadLetter),
        Decision::Park { .. } => copy(Target::Parked),
    }
}

fn copied(target: Target, second_try: bool, end: CopyEnd, circumstances: Circumstances) -> Step {
    match (end, target) {
        (CopyEnd::Confirmed, _) => ended(End::Acked, Effect::Ack),
        (CopyEnd::Returned, Target::Rung(_)) if circumstances.draining => {
            counted(ended(End::Nacked, Effect::Nack), Count::RungMissing)
        }
        (CopyEnd::Returned, Target::Rung(delay)) => wait_for_rung(delay),
        (CopyEnd::Returned, Target::DeadLetter | Target::Parked) if !second_try => {
            to(State::Redeclaring { target }, Effect::Redeclare(target))
        }
        (CopyEnd::Returned, Target::DeadLetter | Target::Parked) | (CopyEnd::ChannelClosed, _) => {
            counted(
                set_aside_failed(target, circumstances),
                Count::SetAsideFailed(target),
            )
        }
        (CopyEnd::Nacked, Target::DeadLetter | Target::Parked) => counted(
            hold(target, HandBackReason::Nacked, circumstances),
            Count::SetAsideFailed(target),
        ),
        (CopyEnd::Returned, _) => hold(target, HandBackReason::Unroutable, circumstances),
        (CopyEnd::Nacked, _) => hold(target, HandBackReason::Nacked, circumstances),
        (CopyEnd::TimedOut, _) => hold(target, HandBackReason::Timeout, circumstances),
        (CopyEnd::Lost | CopyEnd::NotSent, _) => hold(target, HandBackReason::Lost, circumstances),
    }
}

fn set_aside_failed(target: Target, circumstances: Circumstances) -> Step {
    if circumstances.never_reject {
        hold(target, HandBackReason::Unroutable, circumstances)
    } else {
        ended(End::Rejected, Effect::Reject)
    }
}

fn hold(target: Target, reason: HandBackReason, circumstances: Circumstances) -> Step {
    if circumstances.draining {
        ended(End::Nacked, Effect::Nack)
    } else {
        to(State::Held { reason }, Effect::Pause(target))
    }
}

fn wait_for_rung(delay: Duration) -> Step {
    let step = to(
        State::Waiting {
            missing_rung: Some(delay),
        },
        Effect::WaitForRung(delay),
    );
    counted(step, Count::RungMissing)
}

fn copy(target: Target) -> Step {
    to(
        State::Copying {
            target,
            second_try: false,
        },
        Effect::Copy(target),
    )
}

fn ended(end: End, effect: Effect) -> Step {
    to(State::Ended(end), effect)
}

fn to(next: State, effect: Effect) -> Step {
    Step {
        next,
        effect,
        count: None,
    }
}

fn counted(step: Step, count: Count) -> Step {
    Step {
        count: Some(count),
        ..step
    }
}

#[cfg(test)]
mod model;
