//! Decides what happens to a delivery after its handler has answered. Pure.

use super::policy::{NextStep, RetryPolicy};
use crate::metrics::Outcome;
use std::time::Duration;

/// The answer of a handler, or the reason for which it did not run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    Accept,
    /// `fatal` if retrying cannot help.
    Retry {
        reason: String,
        fatal: bool,
    },
    Reject {
        reason: String,
    },
    Park {
        reason: String,
    },
    /// The codec could not decode the body, and the handler did not run.
    Undecodable {
        message: String,
    },
}

/// The prefix of the reason for an undecodable message. The rest may quote the body, so logs omit
/// it.
pub(crate) const UNDECODABLE: &str = "could not be decoded";

/// Where a message waits for its next attempt, and for how long, without jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// In the consumer. Zero is an immediate retry.
    Thread(Duration),
    /// On the broker, in the rung with this delay.
    Rung(Duration),
}

/// What to do with a delivery. Each reason is the complete text for `x-acemq-error`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    Ack,
    Retry(Wait),
    /// `outcome` is either [`Outcome::Rejected`] or [`Outcome::DeadLettered`].
    DeadLetter {
        reason: String,
        outcome: Outcome,
    },
    Park {
        reason: String,
    },
}

/// Decides what happens to a delivery; `attempt` counts from 1, and `age` is `None` if it is
/// unknown.
pub(crate) fn decide(
    verdict: Verdict,
    policy: &RetryPolicy,
    attempt: u32,
    age: Option<Duration>,
    threshold: Duration,
) -> Decision {
    match verdict {
        Verdict::Accept => Decision::Ack,
        // The texts of reasons are part of the contract with the other AceMQ libraries.
        Verdict::Reject { reason } => Decision::DeadLetter {
            reason: format!("rejected by the handler: {reason}"),
            outcome: Outcome::Rejected,
        },
        Verdict::Park { reason } => Decision::Park {
            reason: format!("parked by the handler: {reason}"),
        },
        Verdict::Undecodable { message } => Decision::Park {
            reason: format!("{UNDECODABLE}: {message}"),
        },
        Verdict::Retry {
            reason,
            fatal: true,
        } => dead_letter(format!("retrying cannot help: {reason}")),
        Verdict::Retry { reason, .. } => match policy.next_step(attempt, age, threshold) {
            NextStep::Rung(delay) => Decision::Retry(Wait::Rung(delay)),
            NextStep::Thread(delay) => Decision::Retry(Wait::Thread(delay)),
            NextStep::OutOfAttempts => {
                // The limit of the policy, not the attempt of the message, which may be higher
                // after a change.
                let attempts = policy.attempts();
                dead_letter(format!("gave up after {attempts} attempts: {reason}"))
            }
            NextStep::TooOld => {
                let limit = seconds(policy.limit().unwrap_or_default());
                dead_letter(format!(
                    "gave up on a message older than {limit} seconds: {reason}"
                ))
            }
        },
    }
}

fn dead_letter(reason: String) -> Decision {
    Decision::DeadLetter {
        reason,
        outcome: Outcome::DeadLettered,
    }
}

/// Formats seconds with at least one decimal and without trailing zeros, as the contract requires.
fn seconds(limit: Duration) -> String {
    let text = format!("{}.{:09}", limit.as_secs(), limit.subsec_nanos());
    let shorter = text.trim_end_matches('0');
    match shorter.strip_suffix('.') {
        Some(whole) => format!("{whole}.0"),
        None => shorter.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const THRESHOLD: Duration = Duration::from_secs(30);

    fn policy() -> RetryPolicy {
        RetryPolicy::fixed(3, Duration::from_secs(1))
            .unwrap()
            .give_up_after(Duration::from_millis(500))
    }

    fn retry() -> Verdict {
        Verdict::Retry {
            reason: "no stock".into(),
            fatal: false,
        }
    }

    fn dead(reason: &str, outcome: Outcome) -> Decision {
        Decision::DeadLetter {
            reason: reason.into(),
            outcome,
        }
    }

    #[test]
    fn only_retry_consults_the_policy() {
        let reason = || "no stock".to_owned();
        let decided = |verdict| decide(verdict, &policy(), 99, Some(Duration::MAX), THRESHOLD);
        assert_eq!(decided(Verdict::Accept), Decision::Ack);
        assert_eq!(
            decided(Verdict::Reject { reason: reason() }),
            dead("rejected by the handler: no stock", Outcome::Rejected)
        );
        assert_eq!(
            decided(Verdict::Park { reason: reason() }),
            Decision::Park {
                reason: "parked by the handler: no stock".into()
            }
        );
        assert_eq!(
            decided(Verdict::Undecodable { message: reason() }),
            Decision::Park {
                reason: "could not be decoded: no stock".into()
            }
        );
    }

    #[test]
    fn fatal_reason_is_not_retried() {
        let verdict = Verdict::Retry {
            reason: "FatalError: bad".into(),
            fatal: true,
        };
        assert_eq!(
            decide(verdict, &policy(), 1, None, THRESHOLD),
            dead(
                "retrying cannot help: FatalError: bad",
                Outcome::DeadLettered
            )
        );
    }

    #[test]
    fn reason_tells_attempts_from_age() {
        let old = Some(Duration::from_millis(500));
        let too_old = "gave up on a message older than 0.5 seconds: no stock";
        let attempts = "gave up after 3 attempts: no stock";
        assert_eq!(
            decide(retry(), &policy(), 2, old, THRESHOLD),
            dead(too_old, Outcome::DeadLettered)
        );
        for (attempt, age) in [(3, old), (3, None), (4, None), (u32::MAX, old)] {
            assert_eq!(
                decide(retry(), &policy(), attempt, age, THRESHOLD),
                dead(attempts, Outcome::DeadLettered)
            );
        }
    }

    #[test]
    fn zero_delay_waits_in_the_consumer() {
        let policy = RetryPolicy::fixed(2, Duration::ZERO).unwrap();
        assert_eq!(
            decide(retry(), &policy, 1, None, Duration::ZERO),
            Decision::Retry(Wait::Thread(Duration::ZERO))
        );
    }

    #[test]
    fn limits_are_shown_in_seconds_with_decimals() {
        assert_eq!(seconds(Duration::from_secs(21_600)), "21600.0");
        assert_eq!(seconds(Duration::from_millis(500)), "0.5");
        assert_eq!(seconds(Duration::from_millis(10_050)), "10.05");
        assert_eq!(seconds(Duration::from_nanos(1)), "0.000000001");
        assert_eq!(
            seconds(Duration::from_secs(u64::MAX)),
            "18446744073709551615.0"
        );
    }

    proptest! {
        #[test]
        fn retried_while_attempts_and_age_allow(
            attempts in 1..50_u32,
            attempt in 1..60_u32,
            delay in 0..120_000_u64,
            limit in prop_oneof![Just(0), 1..1_000_u64],
            age in prop::option::of(0..1_000_u64),
            threshold in prop_oneof![Just(0), 1..120_000_u64],
        ) {
            let policy = RetryPolicy::fixed(attempts, Duration::from_millis(delay)).unwrap();
            let policy = policy.give_up_after(Duration::from_millis(limit));
            let decision = decide(
                retry(),
                &policy,
                attempt,
                age.map(Duration::from_millis),
                Duration::from_millis(threshold),
            );
            let too_old = limit > 0 && age.is_some_and(|age| age >= limit);
            if attempt < attempts && !too_old {
                let wait = Duration::from_millis(delay);
                let rung = threshold > 0 && delay > 0 && delay >= threshold;
                let expected = if rung { Wait::Rung(wait) } else { Wait::Thread(wait) };
                prop_assert_eq!(decision, Decision::Retry(expected));
            } else {
                let Decision::DeadLetter { reason, outcome } = decision else {
                    panic!("not given up: {decision:?}");
                };
                prop_assert_eq!(outcome, Outcome::DeadLettered);
                prop_assert_eq!(reason.starts_with("gave up after "), attempt >= attempts);
            }
        }
    }
}
