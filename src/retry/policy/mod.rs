//! Retry policies: the number of attempts and the delays between them.

use crate::naming::delay_text;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The jitter of [`RetryPolicy::exponential`].
const EXPONENTIAL_JITTER: f64 = 0.2;

/// The minimum of a non-zero delay in the consumer after jitter.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// How many times a message is delivered before it is given up, and the delays in between.
///
/// Attempts include the first delivery: five attempts are one delivery and four retries. A policy
/// is immutable and cheap to clone. The default is [`RetryPolicy::none`].
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
    /// The age limit; zero means none.
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
    /// A wait in the consumer. Jitter is not included. The consumer shortens a wait of more than 15
    /// minutes to 15 minutes; this is the full delay of the policy.
    Thread(Duration),
    /// A wait on the broker, in the rung with this delay.
    Rung(Duration),
    /// The message is dead-lettered after its last attempt.
    OutOfAttempts,
    /// The message is dead-lettered because it has reached the age of
    /// [`RetryPolicy::give_up_after`].
    TooOld,
}

impl RetryPolicy {
    /// A policy with one delivery and no retries.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            shape: Shape::None,
            attempts: 1,
            jitter: 0.0,
            limit: Duration::ZERO,
        }
    }

    /// A policy with the same `delay` before every retry and no jitter. A delay of zero retries
    /// immediately.
    ///
    /// # Errors
    ///
    /// Returns an error if `attempts` is 0.
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

    /// A policy that waits `initial` before the first retry and doubles the delay for each further
    /// one, up to `cap`. The jitter is 0.2.
    ///
    /// # Errors
    ///
    /// Returns an error if `attempts` is 0, `initial` is zero, or `cap` is below `initial`.
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

    /// Sets the jitter, a fraction of each delay. Delays are spread evenly in both directions: with
    /// a jitter of 0.2, a delay of 10 s becomes 8 s to 12 s.
    ///
    /// Jitter applies to waits in the consumer only. A wait in a rung always has the delay of the
    /// rung.
    ///
    /// # Errors
    ///
    /// Returns an error if `jitter` is not between 0 and 1.
    pub fn with_jitter(self, jitter: f64) -> Result<Self, PolicyError> {
        if !(0.0..=1.0).contains(&jitter) {
            return Err(PolicyError::Jitter(jitter));
        }
        Ok(Self {
            // The range contains -0.0, which would be displayed as "-0".
            jitter: jitter.abs(),
            ..self
        })
    }

    /// Sets an age limit: a message that has reached `age` when its handler fails is given up, even
    /// with attempts left.
    ///
    /// The age counts from the first publish, by the clock of the publisher. Defaults to zero,
    /// which means no limit. A message of unknown age is retried.
    #[must_use]
    pub fn give_up_after(self, age: Duration) -> Self {
        Self { limit: age, ..self }
    }

    /// The maximum number of deliveries, including the first one; at least 1.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The jitter, a fraction of each delay from 0 to 1.
    #[must_use]
    pub fn jitter(&self) -> f64 {
        self.jitter
    }

    /// The age limit; `None` means no limit.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        (!self.limit.is_zero()).then_some(self.limit)
    }

    /// The delays after each attempt but the last, without jitter. There is one less than attempts.
    pub fn schedule(
        &self,
    ) -> impl DoubleEndedIterator<Item = Duration> + ExactSizeIterator + use<> {
        let policy = self.clone();
        (1..self.attempts).map(move |attempt| policy.base(attempt))
    }

    /// The delay after a failed `attempt`, without jitter, rounded up to whole milliseconds.
    ///
    /// Attempts count from 1; 0 is treated as 1. The same rule holds for attempts beyond the last.
    #[must_use]
    pub fn base(&self, attempt: u32) -> Duration {
        let delay = match self.shape {
            Shape::None => Duration::ZERO,
            Shape::Fixed { delay } => delay,
            Shape::Exponential { initial, cap } => doubled(initial, attempt.saturating_sub(1), cap),
        };
        rounded_up(delay)
    }

    /// Applies jitter to `delay`; `uniform` is a random number from [0, 1) that the caller
    /// provides.
    pub(crate) fn jittered(&self, delay: Duration, uniform: f64) -> Duration {
        if delay.is_zero() {
            return delay;
        }
        if self.jitter == 0.0 {
            return delay.max(SHORTEST_WAIT);
        }
        // `uniform` is in [0, 1), so the factor is in [1 - jitter, 1 + jitter).
        let factor = 1.0 + self.jitter * (2.0 * uniform - 1.0);
        // Fails only above the largest duration.
        Duration::try_from_secs_f64(delay.as_secs_f64() * factor)
            .unwrap_or(Duration::MAX)
            .max(SHORTEST_WAIT)
    }

    /// What follows a failed `attempt` of a message with this `age`, which is `None` if unknown.
    pub(crate) fn next_step(
        &self,
        attempt: u32,
        age: Option<Duration>,
        threshold: Duration,
    ) -> NextStep {
        if attempt >= self.attempts {
            // Also for attempts beyond the last, which a shortened policy leaves behind.
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

/// Whether a delay is spent on the broker, in a rung. A threshold of zero means never, so a delay
/// of zero is always spent in the consumer.
pub(crate) fn in_broker(delay: Duration, threshold: Duration) -> bool {
    !threshold.is_zero() && delay >= threshold
}

/// `initial`, doubled `times` times, at most `cap`.
fn doubled(initial: Duration, mut times: u32, cap: Duration) -> Duration {
    let mut delay = initial;
    while times > 0 && delay < cap {
        // A shift of 32 would overflow the factor.
        let step = times.min(31);
        delay = delay.saturating_mul(1 << step).min(cap);
        times -= step;
    }
    delay
}

fn rounded_up(delay: Duration) -> Duration {
    match delay.subsec_nanos() % 1_000_000 {
        0 => delay,
        // The largest delay cannot be rounded up and stays as it is.
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

/// An invalid [`RetryPolicy`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PolicyError {
    /// The number of attempts is 0. The first delivery counts, so the minimum is 1.
    NoAttempts,
    /// The jitter is not between 0 and 1.
    Jitter(f64),
    /// The initial delay of an exponential policy is zero. Doubling it would leave it zero.
    NoInitialDelay,
    /// The cap of an exponential policy is below its initial delay.
    CapBelowInitial {
        /// The initial delay.
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
                    "0 attempts: the first delivery counts, so the minimum is 1"
                )
            }
            Self::Jitter(jitter) => write!(f, "jitter {jitter}: it must be between 0 and 1"),
            Self::NoInitialDelay => write!(
                f,
                "initial delay 0: doubling leaves it 0 (a fixed policy may have a delay of 0)"
            ),
            Self::CapBelowInitial { initial, cap } => {
                write!(f, "cap {cap:?}: below the initial delay {initial:?}")
            }
        }
    }
}

impl Error for PolicyError {}

#[cfg(test)]
mod tests;
