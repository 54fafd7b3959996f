//! How often a message is delivered, and how long it waits in between.

use crate::naming::delay_text;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The jitter of [`RetryPolicy::exponential`].
const EXPONENTIAL_JITTER: f64 = 0.2;

/// A wait spent in the consumer is never shorter, whatever its jitter.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// How often a message is delivered before it is given up, and how long it waits in between.
///
/// `attempts` counts deliveries, the first one included: five attempts are the first delivery and four retries. Policies
/// are immutable and cheap to clone. Defaults to [`RetryPolicy::none`].
///
/// ```
/// use rungmq::RetryPolicy;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), rungmq::PolicyError> {
/// let policy = RetryPolicy::exponential(5, Duration::from_secs(1), Duration::from_secs(60))?
///     .give_up_after(Duration::from_secs(6 * 60 * 60));
///
/// let waits: Vec<u64> = policy.schedule().map(|wait| wait.as_secs()).collect();
/// assert_eq!(waits, [1, 2, 4, 8]);
/// assert_eq!(policy.to_string(), "exponential(5, 1s, 1m, jitter 0.2), give up after 6h");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    shape: Shape,
    attempts: u32,
    jitter: f64,
    /// Zero is no limit.
    limit: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    None,
    Fixed { delay: Duration },
    Exponential { initial: Duration, cap: Duration },
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NextStep {
    /// A wait in the consumer, to which jitter applies. One above 15 minutes is cut to that when it comes to it; here it
    /// stands in full.
    Thread(Duration),
    /// A wait on the broker, in the retry queue of that delay.
    Rung(Duration),
    /// The message is dead-lettered: that was the last attempt.
    OutOfAttempts,
    /// The message is dead-lettered: it has reached the age of [`RetryPolicy::give_up_after`], attempts left or not.
    TooOld,
}

impl RetryPolicy {
    /// One delivery and no retry.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            shape: Shape::None,
            attempts: 1,
            jitter: 0.0,
            limit: Duration::ZERO,
        }
    }

    /// The same `delay` before every retry, without jitter. A delay of zero is a retry at once.
    ///
    /// # Errors
    ///
    /// `attempts` is 0.
    pub fn fixed(attempts: u32, delay: Duration) -> Result<Self, PolicyError> {
        if attempts == 0 {
            return Err(PolicyError::NoAttempts);
        }
        Ok(Self {
            shape: Shape::Fixed { delay },
            attempts,
            ..Self::none()
        })
    }

    /// `initial` before the first retry, then twice the last delay until `cap`; with a jitter of 0.2.
    ///
    /// # Errors
    ///
    /// `attempts` is 0, `initial` is zero, or `cap` is below `initial`.
    pub fn exponential(
        attempts: u32,
        initial: Duration,
        cap: Duration,
    ) -> Result<Self, PolicyError> {
        if attempts == 0 {
            return Err(PolicyError::NoAttempts);
        }
        if initial.is_zero() {
            return Err(PolicyError::NoInitialDelay);
        }
        if cap < initial {
            return Err(PolicyError::CapBelowInitial { initial, cap });
        }
        Ok(Self {
            shape: Shape::Exponential { initial, cap },
            attempts,
            jitter: EXPONENTIAL_JITTER,
            ..Self::none()
        })
    }

    /// Spreads waits by up to `jitter` of their length, both ways and evenly: 0.2 makes 10 s anything from 8 s to 12 s.
    ///
    /// Only waits in the consumer are spread. A wait in a retry queue is as long as the queue's name says.
    ///
    /// # Errors
    ///
    /// `jitter` is not a number from 0 to 1.
    pub fn with_jitter(self, jitter: f64) -> Result<Self, PolicyError> {
        if !(0.0..=1.0).contains(&jitter) {
            return Err(PolicyError::Jitter(jitter));
        }
        Ok(Self {
            // `contains` lets -0.0 in, which would show as "-0".
            jitter: jitter.abs(),
            ..self
        })
    }

    /// Gives up on a message that has reached this `age` when it fails, however many attempts are left.
    ///
    /// The age counts from the first time the message was published, by the publisher's clock. Defaults to zero, which is no
    /// limit; a message whose age is unknown is retried.
    #[must_use]
    pub fn give_up_after(self, age: Duration) -> Self {
        Self { limit: age, ..self }
    }

    /// How many deliveries there are at most, the first one included; at least 1.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The share of a wait that jitter may add or take away, from 0 to 1.
    #[must_use]
    pub fn jitter(&self) -> f64 {
        self.jitter
    }

    /// The age at which a message is given up, or `None` for no limit.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        (!self.limit.is_zero()).then_some(self.limit)
    }

    /// The wait after each attempt but the last, without jitter: one fewer than there are attempts.
    pub fn schedule(
        &self,
    ) -> impl DoubleEndedIterator<Item = Duration> + ExactSizeIterator + use<> {
        let policy = self.clone();
        (1..self.attempts).map(move |attempt| policy.base(attempt))
    }

    /// The wait after `attempt` has failed, without jitter, in whole milliseconds (rounded up).
    ///
    /// Attempts count from 1; 0 is taken for 1. Attempts past the last go on by the same rule.
    #[must_use]
    pub fn base(&self, attempt: u32) -> Duration {
        let delay = match self.shape {
            Shape::None => Duration::ZERO,
            Shape::Fixed { delay } => delay,
            Shape::Exponential { initial, cap } => doubled(initial, attempt.saturating_sub(1), cap),
        };
        rounded_up(delay)
    }

    /// The wait `delay` with this policy's jitter; `uniform` is the caller's random number from [0, 1).
    pub(crate) fn jittered(&self, delay: Duration, uniform: f64) -> Duration {
        if delay.is_zero() {
            return delay;
        }
        if self.jitter == 0.0 {
            return delay.max(SHORTEST_WAIT);
        }
        let factor = 1.0 + self.jitter * (2.0 * uniform - 1.0);
        Duration::try_from_secs_f64(delay.as_secs_f64() * factor)
            .unwrap_or(Duration::MAX)
            .max(SHORTEST_WAIT)
    }

    /// What follows when `attempt` has failed on a message of that `age`.
    pub(crate) fn next_step(
        &self,
        attempt: u32,
        age: Option<Duration>,
        threshold: Duration,
    ) -> NextStep {
        if attempt >= self.attempts {
            return NextStep::OutOfAttempts;
        }
        let too_old = self
            .limit()
            .zip(age)
            .is_some_and(|(limit, age)| age >= limit);
        if too_old {
            return NextStep::TooOld;
        }
        let delay = self.base(attempt);
        if in_broker(delay, threshold) {
            NextStep::Rung(delay)
        } else {
            NextStep::Thread(delay)
        }
    }
}

/// Whether a wait is spent on the broker, in a retry queue, and not in the consumer: never where there is no threshold, and
/// so never for a delay of zero.
pub(crate) fn in_broker(delay: Duration, threshold: Duration) -> bool {
    !threshold.is_zero() && delay >= threshold
}

fn doubled(initial: Duration, mut times: u32, cap: Duration) -> Duration {
    let mut delay = initial;
    while times > 0 && delay < cap {
        let step = times.min(31);
        delay = delay.saturating_mul(1 << step).min(cap);
        times -= step;
    }
    delay
}

fn rounded_up(delay: Duration) -> Duration {
    match delay.subsec_nanos() % 1_000_000 {
        0 => delay,
        over => delay.saturating_add(Duration::from_nanos(u64::from(1_000_000 - over))),
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::none()
    }
}

/// One line, such as `exponential(5, 1s, 1m, jitter 0.2), give up after 6h`.
impl fmt::Display for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempts = self.attempts;
        match self.shape {
            Shape::None => write!(f, "none")?,
            Shape::Fixed { delay } if self.jitter == 0.0 => {
                write!(f, "fixed({attempts}, {})", delay_text(delay))?;
            }
            Shape::Fixed { delay } => {
                let jitter = self.jitter;
                write!(
                    f,
                    "fixed({attempts}, {}, jitter {jitter})",
                    delay_text(delay)
                )?;
            }
            Shape::Exponential { initial, cap } => {
                let (initial, cap, jitter) = (delay_text(initial), delay_text(cap), self.jitter);
                write!(
                    f,
                    "exponential({attempts}, {initial}, {cap}, jitter {jitter})"
                )?;
            }
        }
        match self.limit() {
            Some(limit) => write!(f, ", give up after {}", delay_text(limit)),
            None => Ok(()),
        }
    }
}

/// A [`RetryPolicy`] that makes no sense.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PolicyError {
    /// There were to be 0 attempts. The first delivery counts: [`RetryPolicy::none`] has 1.
    NoAttempts,
    /// The jitter is not a number from 0 to 1.
    Jitter(f64),
    /// An exponential policy was to begin with a delay of zero, which stays zero however often it doubles.
    NoInitialDelay,
    /// The cap of an exponential policy is below its first delay.
    CapBelowInitial {
        /// The first delay.
        initial: Duration,
        /// The cap.
        cap: Duration,
    },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAttempts => {
                write!(
                    f,
                    "0 attempts: the first delivery counts, so there is at least 1"
                )
            }
            Self::Jitter(jitter) => write!(
                f,
                "jitter {jitter}: it is the share of a wait to spread it by, from 0 to 1"
            ),
            Self::NoInitialDelay => write!(
                f,
                "initial delay 0: doubling leaves it 0 (a fixed policy may have a delay of 0)"
            ),
            Self::CapBelowInitial { initial, cap } => {
                write!(f, "cap {cap:?}: it is below the initial delay {initial:?}")
            }
        }
    }
}

impl Error for PolicyError {}

#[cfg(test)]
mod tests;
