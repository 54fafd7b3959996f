//! The rungs of one source queue: the retry queues in which its messages wait on the broker.

use super::policy::{RetryPolicy, in_broker};
use crate::message::headers::Headers;
use crate::message::wire::{
    DEAD_LETTER_EXCHANGE_ARGUMENT, DEAD_LETTER_ROUTING_KEY_ARGUMENT, TTL_ARGUMENT,
};
use crate::naming;
use crate::naming::{NameTooLong, RETRY_EXCHANGE, delay_text, whole_millis};
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The longest `x-message-ttl` that RabbitMQ accepts: ten years of 365 days.
const LONGEST_MILLIS: u64 = 315_360_000_000;

/// The rungs of one queue: the retry queues on the broker, one for each delay.
///
/// A delay at or above the retry threshold is spent on the broker, a shorter one in the consumer.
/// With a threshold of zero every delay is spent in the consumer. Jitter does not apply to rungs:
/// their delays are those of the policy.
///
/// ```
/// use rungmq::{RetryLadder, RetryPolicy};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = RetryPolicy::exponential(6, Duration::from_secs(10), Duration::from_secs(60))?;
/// let ladder = RetryLadder::new("orders.new", &policy, Duration::from_secs(30))?;
///
/// let queues: Vec<&str> = ladder.rungs().iter().map(|rung| rung.queue()).collect();
/// assert_eq!(queues, ["orders.new.retry.40s", "orders.new.retry.1m"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryLadder {
    source: String,
    rungs: Vec<Rung>,
}

/// One retry queue of a [`RetryLadder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rung {
    queue: String,
    delay: Duration,
}

impl RetryLadder {
    /// Creates the ladder that `policy` needs for `queue`, with delays of at least `threshold`
    /// spent on the broker.
    ///
    /// # Errors
    ///
    /// Returns an error if a delay is longer than the broker accepts, or a name is longer than AMQP
    /// allows.
    pub fn new(
        queue: impl Into<String>,
        policy: &RetryPolicy,
        threshold: Duration,
    ) -> Result<Self, LadderError> {
        let source = queue.into();
        // Checked here too, because a ladder without rungs derives no name.
        naming::check("queue", &source)?;
        let mut rungs: Vec<Rung> = Vec::new();
        // Delays never decrease, so the last one is the longest.
        let longest = policy.schedule().next_back();
        for delay in policy.schedule() {
            // Delays never decrease, so equal ones are adjacent.
            let known = rungs.last().is_some_and(|rung| rung.delay == delay);
            if in_broker(delay, threshold) && !known {
                rungs.push(Rung::new(&source, delay)?);
            }
            // The rest of the schedule repeats this delay, possibly for a million attempts.
            if Some(delay) == longest {
                break;
            }
        }
        Ok(Self { source, rungs })
    }

    /// The source queue, whose messages wait in the rungs.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The rungs, shortest delay first.
    #[must_use]
    pub fn rungs(&self) -> &[Rung] {
        &self.rungs
    }

    /// Whether there are no rungs, so that every delay is spent in the consumer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rungs.is_empty()
    }

    /// The queue arguments of a rung. They are part of the contract: the broker refuses a
    /// declaration with other arguments once another service has declared the rung.
    pub(crate) fn arguments(&self, rung: &Rung) -> Headers {
        let mut arguments = Headers::new();
        arguments.insert(TTL_ARGUMENT, rung.millis());
        arguments.insert(DEAD_LETTER_EXCHANGE_ARGUMENT, RETRY_EXCHANGE);
        arguments.insert(DEAD_LETTER_ROUTING_KEY_ARGUMENT, self.source.as_str());
        arguments
    }
}

impl Rung {
    fn new(source: &str, delay: Duration) -> Result<Self, LadderError> {
        if whole_millis(delay) > LONGEST_MILLIS {
            return Err(LadderError::DelayTooLong(delay));
        }
        let queue = naming::retry_queue(source, delay);
        naming::check("retry queue", &queue)?;
        Ok(Self { queue, delay })
    }

    /// The name of the retry queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// The time a message waits in the queue, in whole milliseconds.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay
    }

    fn millis(&self) -> i64 {
        i64::try_from(whole_millis(self.delay)).unwrap_or(i64::MAX)
    }
}

/// A retry policy needs a rung that cannot be declared.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LadderError {
    /// The delay is longer than the ten years (315 360 000 000 ms) the broker accepts. Shorten the
    /// delay or the cap of the policy.
    DelayTooLong(Duration),
    /// The name of the queue or of a rung is longer than AMQP allows. Shorten the name of the
    /// queue.
    NameTooLong(NameTooLong),
}

impl From<NameTooLong> for LadderError {
    fn from(error: NameTooLong) -> Self {
        Self::NameTooLong(error)
    }
}

impl fmt::Display for LadderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DelayTooLong(delay) => write!(
                f,
                "the retry delay {} ({} ms) is longer than the {LONGEST_MILLIS} ms \
                 that the broker allows",
                delay_text(*delay),
                whole_millis(*delay)
            ),
            Self::NameTooLong(error) => error.fmt(f),
        }
    }
}

/// Has no source, because `Display` already shows the text of a [`NameTooLong`].
impl Error for LadderError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::headers::HeaderValue;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn fixed(delay: Duration) -> RetryPolicy {
        RetryPolicy::fixed(1_000_000, delay).unwrap()
    }

    #[test]
    fn delay_beyond_the_brokers_limit_is_refused() {
        let threshold = millis(30_000);
        let ladder = RetryLadder::new("q", &fixed(millis(LONGEST_MILLIS)), threshold).unwrap();
        assert_eq!(ladder.rungs()[0].queue(), "q.retry.87600h");
        let error =
            RetryLadder::new("q", &fixed(millis(LONGEST_MILLIS + 1)), threshold).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the retry delay 315360000001ms (315360000001 ms) is longer than the 315360000000 ms \
             that the broker allows"
        );
        let error = RetryLadder::new("q", &fixed(Duration::MAX), threshold).unwrap_err();
        assert_eq!(error, LadderError::DelayTooLong(Duration::MAX));
        // A delay spent in the consumer has no limit.
        assert!(
            RetryLadder::new("q", &fixed(Duration::MAX), Duration::ZERO)
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn thirty_days_do_not_overflow() {
        let ladder = RetryLadder::new("q", &fixed(millis(2_592_000_000)), millis(1)).unwrap();
        let arguments = ladder.arguments(&ladder.rungs()[0]);
        assert_eq!(
            arguments.get("x-message-ttl"),
            Some(&HeaderValue::I64(2_592_000_000))
        );
        assert_eq!(arguments.len(), 3);
    }

    #[test]
    fn fractions_of_a_second_make_separate_rungs() {
        let name = |delay| {
            let ladder = RetryLadder::new("q", &fixed(millis(delay)), millis(1)).unwrap();
            ladder.rungs()[0].queue().to_owned()
        };
        assert_eq!(
            (name(30_200), name(30_700)),
            ("q.retry.30200ms".into(), "q.retry.30700ms".into())
        );
    }

    #[test]
    fn names_are_checked_even_without_rungs() {
        let long = "q".repeat(250);
        assert!(RetryLadder::new(long.as_str(), &fixed(millis(1000)), Duration::ZERO).is_ok());
        let error = RetryLadder::new(long, &fixed(millis(1000)), millis(1)).unwrap_err();
        assert!(
            error.to_string().starts_with("the retry queue \"qqq"),
            "{error}"
        );
        let error = RetryLadder::new("q".repeat(256), &RetryPolicy::none(), millis(1)).unwrap_err();
        assert!(error.to_string().starts_with("the queue \"qqq"), "{error}");
    }

    #[test]
    fn many_attempts_need_few_rungs() {
        let policy = RetryPolicy::exponential(u32::MAX, millis(1), millis(LONGEST_MILLIS)).unwrap();
        let ladder = RetryLadder::new("q", &policy, millis(1)).unwrap();
        assert_eq!(ladder.rungs().len(), 40);
    }

    #[test]
    fn delays_rounded_to_one_name_share_a_rung() {
        let policy = RetryPolicy::exponential(5, Duration::from_micros(300), millis(60)).unwrap();
        let ladder = RetryLadder::new("q", &policy, millis(1)).unwrap();
        let names: Vec<_> = ladder.rungs().iter().map(Rung::queue).collect();
        assert_eq!(names, ["q.retry.1ms", "q.retry.2ms", "q.retry.3ms"]);
    }

    proptest! {
        #[test]
        fn rungs_are_the_delays_from_the_threshold_up(
            attempts in 1..60_u32,
            initial in 1..100_000_000_u64,
            growth in 0..2_000_u64,
            threshold in prop_oneof![Just(0), 1..1_000_000_u64],
        ) {
            let (initial, threshold) = (Duration::from_micros(initial), millis(threshold));
            let cap = initial * (growth as u32 + 1);
            let policy = RetryPolicy::exponential(attempts, initial, cap).unwrap();
            let ladder = RetryLadder::new("q", &policy, threshold).unwrap();
            let expected: BTreeSet<_> = policy
                .schedule()
                .filter(|&delay| threshold > Duration::ZERO && delay >= threshold)
                .collect();
            let delays: Vec<_> = ladder.rungs().iter().map(Rung::delay).collect();
            prop_assert_eq!(delays, expected.into_iter().collect::<Vec<_>>());
            let names: BTreeSet<_> = ladder.rungs().iter().map(Rung::queue).collect();
            prop_assert_eq!(names.len(), ladder.rungs().len());
            for rung in ladder.rungs() {
                prop_assert_eq!(
                    ladder.arguments(rung).get("x-message-ttl").and_then(HeaderValue::as_i64),
                    Some(rung.delay().as_millis() as i64)
                );
            }
        }
    }
}
