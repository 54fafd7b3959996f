//! Explains a retry policy as a table of attempts and waits.

use super::policy::{NextStep, RetryPolicy};
use crate::naming::delay_text;
use std::fmt::{self, Write};
use std::time::Duration;

/// What a [`RetryPolicy`] does with a message whose handler always fails. Created by
/// [`RetryPolicy::explain`].
///
/// `Display` formats a table for a terminal, [`markdown`](Self::markdown) one for a document. Both
/// have a line for each attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    policy: RetryPolicy,
    threshold: Duration,
}

/// One attempt of an [`Explanation`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ExplainedAttempt {
    /// The number of the attempt, starting at 1.
    pub attempt: u32,
    /// The age of the message at the start of this attempt: the sum of the waits before it. Jitter,
    /// the time in the handler, and the time in the source queue are not included.
    pub age: Duration,
    /// What follows if the attempt fails.
    pub then: NextStep,
}

impl RetryPolicy {
    /// Explains what this policy does with the retry threshold `threshold`.
    ///
    /// ```
    /// use rungmq::RetryPolicy;
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), rungmq::PolicyError> {
    /// let policy = RetryPolicy::fixed(3, Duration::from_secs(30))?;
    /// println!("{}", policy.explain(Duration::from_secs(30)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn explain(&self, threshold: Duration) -> Explanation {
        Explanation {
            policy: self.clone(),
            threshold,
        }
    }
}

impl Explanation {
    /// The attempts, up to the last one before the message is given up.
    pub fn rows(&self) -> impl Iterator<Item = ExplainedAttempt> {
        let mut age = Some(Duration::ZERO);
        let mut attempt = 0;
        std::iter::from_fn(move || {
            let now = age?;
            attempt += 1;
            let then = self.policy.next_step(attempt, Some(now), self.threshold);
            age = match then {
                // The next attempt starts after the wait; ages beyond the largest duration
                // saturate.
                NextStep::Thread(wait) | NextStep::Rung(wait) => Some(now.saturating_add(wait)),
                NextStep::OutOfAttempts | NextStep::TooOld => None,
            };
            Some(ExplainedAttempt {
                attempt,
                age: now,
                then,
            })
        })
    }

    /// The table in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from("| attempt | age | wait | where |\n|---:|---:|---:|---|\n");
        for row in self.rows() {
            let [attempt, age, wait, place] = self.cells(&row);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "| {attempt} | {age} | {wait} | {place} |");
        }
        text
    }

    fn cells(&self, row: &ExplainedAttempt) -> [String; 4] {
        let (wait, place) = match row.then {
            NextStep::Thread(wait) => (self.jittered_text(wait), "in the consumer".to_owned()),
            NextStep::Rung(wait) => {
                let wait = delay_text(wait);
                let place = format!("on the broker, {{q}}.retry.{wait}");
                (wait, place)
            }
            NextStep::OutOfAttempts => ("-".to_owned(), "given up: no attempt left".to_owned()),
            NextStep::TooOld => {
                let limit = delay_text(self.policy.limit().unwrap_or_default());
                ("-".to_owned(), format!("given up: {limit} old or older"))
            }
        };
        [row.attempt.to_string(), age_text(row.age), wait, place]
    }

    fn jittered_text(&self, wait: Duration) -> String {
        if wait.is_zero() || self.policy.jitter() == 0.0 {
            return delay_text(wait);
        }
        format!("{} ± {}%", delay_text(wait), self.policy.jitter() * 100.0)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["attempt", "age", "wait", "where"].map(str::to_owned);
        let lines =
            || std::iter::once(header.clone()).chain(self.rows().map(|row| self.cells(&row)));
        let mut widths = [0; 3];
        for line in lines() {
            for (width, cell) in widths.iter_mut().zip(&line) {
                *width = cell.chars().count().max(*width);
            }
        }
        // The last column is not padded, so lines have no trailing space.
        let [a, b, c] = widths;
        write!(
            f,
            "{}; retry threshold {}",
            self.policy,
            delay_text(self.threshold)
        )?;
        for [attempt, age, wait, place] in lines() {
            write!(f, "\n{attempt:>a$}  {age:>b$}  {wait:>c$}  {place}")?;
        }
        Ok(())
    }
}

/// An age in hours, minutes and seconds, such as `1h2m3s`.
fn age_text(age: Duration) -> String {
    let (hours, minutes) = (age.as_secs() / 3600, age.as_secs() / 60 % 60);
    let rest = Duration::new(age.as_secs() % 60, age.subsec_nanos());
    let mut text = String::new();
    for (count, unit) in [(hours, 'h'), (minutes, 'm')] {
        if count > 0 {
            text.push_str(&count.to_string());
            text.push(unit);
        }
    }
    if !rest.is_zero() || text.is_empty() {
        // `Duration` formats zero as "0ns".
        text.push_str(&format!("{rest:?}").replace("0ns", "0s"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn policy() -> RetryPolicy {
        RetryPolicy::exponential(6, secs(10), secs(300)).unwrap()
    }

    #[test]
    fn table_shows_where_each_wait_is_spent() {
        assert_eq!(
            policy().explain(secs(30)).to_string(),
            "exponential(6, 10s, 5m, jitter 0.2); retry threshold 30s\n\
             attempt    age       wait  where\n      \
                   1     0s  10s ± 20%  in the consumer\n      \
                   2    10s  20s ± 20%  in the consumer\n      \
                   3    30s        40s  on the broker, {q}.retry.40s\n      \
                   4  1m10s        80s  on the broker, {q}.retry.80s\n      \
                   5  2m30s       160s  on the broker, {q}.retry.160s\n      \
                   6  5m10s          -  given up: no attempt left"
        );
    }

    #[test]
    fn age_limit_ends_the_table_early() {
        let explanation = policy().give_up_after(secs(70)).explain(Duration::ZERO);
        assert_eq!(
            explanation.markdown(),
            "| attempt | age | wait | where |\n\
             |---:|---:|---:|---|\n\
             | 1 | 0s | 10s ± 20% | in the consumer |\n\
             | 2 | 10s | 20s ± 20% | in the consumer |\n\
             | 3 | 30s | 40s ± 20% | in the consumer |\n\
             | 4 | 1m10s | - | given up: 70s old or older |\n"
        );
        let last = explanation.rows().last().unwrap();
        assert_eq!(
            (last.attempt, last.age, last.then),
            (4, secs(70), NextStep::TooOld)
        );
    }

    #[test]
    fn policy_without_retries_has_one_row() {
        let explanation = RetryPolicy::none().explain(secs(30));
        let rows: Vec<_> = explanation.rows().collect();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].then, NextStep::OutOfAttempts);
    }

    #[test]
    fn extreme_policies_are_explained() {
        let policy = RetryPolicy::fixed(1_000_000, Duration::MAX).unwrap();
        let last = policy.explain(secs(1)).rows().last().unwrap();
        assert_eq!((last.attempt, last.age), (1_000_000, Duration::MAX));
    }

    #[test]
    fn ages_are_formatted_like_durations() {
        for (age, text) in [
            (Duration::ZERO, "0s"),
            (Duration::from_millis(1_500), "1.5s"),
            (secs(60), "1m"),
            (secs(3_601), "1h1s"),
            (Duration::from_millis(90), "90ms"),
        ] {
            assert_eq!(age_text(age), text);
        }
    }
}
