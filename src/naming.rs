//! The names of the exchanges and queues that the library declares.
//!
//! The AceMQ libraries in other languages use the same names: services that share a queue also
//! share its dead-letter queue, parked queue and retry queues. The names here never change.
//!
//! ```
//! use rungmq::naming;
//! use std::time::Duration;
//!
//! assert_eq!(naming::dead_letter_queue("orders.new"), "orders.new.dlq");
//! assert_eq!(naming::parked_queue("orders.new"), "orders.new.parked");
//! assert_eq!(naming::retry_queue("orders.new", Duration::from_secs(60)), "orders.new.retry.1m");
//! ```

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The direct exchange to which dead-letter and parked queues are bound.
pub const DEAD_LETTER_EXCHANGE: &str = "acemq.dlx";

/// The direct exchange that routes messages from retry queues back to their source queues.
pub const RETRY_EXCHANGE: &str = "acemq.retry";

/// The maximum length in bytes of an AMQP short string: a queue or exchange name or a routing key.
pub(crate) const LONGEST_NAME: usize = 255;

/// The number of characters shown of each end of a long name.
const SHOWN_CHARS: usize = 40;

/// The dead-letter queue of `queue`, for messages that were given up or rejected.
#[must_use]
pub fn dead_letter_queue(queue: &str) -> String {
    format!("{queue}.dlq")
}

/// The parked queue of `queue`, for messages that an operator has to inspect: those parked by the
/// handler and those that could not be decoded.
#[must_use]
pub fn parked_queue(queue: &str) -> String {
    format!("{queue}.parked")
}

/// The retry queue in which messages of `queue` wait for `delay` before the next delivery.
///
/// The delay is rounded up to whole milliseconds and written in the largest unit of `h`, `m` and
/// `s` that divides it, or in `ms` if none does: 60 s is `1m`, 90 s is `90s`, 45.5 s is `45500ms`.
/// A delay of zero, for which no queue is declared, is `0s`.
///
/// AceMQ for Ruby, Go and Python truncates fractions of a second instead, so names differ for such
/// delays.
#[must_use]
pub fn retry_queue(queue: &str, delay: Duration) -> String {
    format!("{queue}.retry.{}", delay_text(delay))
}

/// Formats a delay for names and texts.
pub(crate) fn delay_text(delay: Duration) -> String {
    let millis = whole_millis(delay);
    if millis == 0 {
        return "0s".to_owned();
    }
    for (unit, text) in [(3_600_000, "h"), (60_000, "m"), (1_000, "s")] {
        if millis.is_multiple_of(unit) {
            return format!("{}{text}", millis / unit);
        }
    }
    format!("{millis}ms")
}

/// The delay in milliseconds, rounded up and saturating.
pub(crate) fn whole_millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Checks that `name` fits an AMQP short string. `what`, such as `queue`, appears in the error.
///
/// amiquip encodes a longer name as a corrupt frame, and the broker closes the connection for it.
pub(crate) fn check(what: &'static str, name: &str) -> Result<(), NameTooLong> {
    if name.len() <= LONGEST_NAME {
        return Ok(());
    }
    Err(NameTooLong {
        what,
        shown: abbreviated(name),
        bytes: name.len(),
    })
}

/// Shortens a long name in its middle. Derived names differ at the end, so the end is kept.
pub(crate) fn abbreviated(name: &str) -> String {
    let length = name.chars().count();
    if length <= 2 * SHOWN_CHARS + 1 {
        return name.to_owned();
    }
    let head: String = name.chars().take(SHOWN_CHARS).collect();
    let tail: String = name.chars().skip(length - SHOWN_CHARS).collect();
    format!("{head}…{tail}")
}

/// A name or routing key is longer than the 255 bytes that AMQP allows.
///
/// The limit counts bytes, not characters. Names of dead-letter, parked and retry queues are longer
/// than the name of their queue and may exceed the limit first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTooLong {
    what: &'static str,
    shown: String,
    bytes: usize,
}

impl fmt::Display for NameTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, shown, bytes } = self;
        write!(
            f,
            "the {what} {shown:?} has {bytes} bytes, but AMQP allows {LONGEST_NAME}"
        )
    }
}

impl Error for NameTooLong {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn delay_is_written_in_the_largest_dividing_unit() {
        for (millis, text) in [
            (0, "0s"),
            (1, "1ms"),
            (500, "500ms"),
            (1000, "1s"),
            (59_000, "59s"),
            (60_000, "1m"),
            (90_000, "90s"),
            (3_600_000, "1h"),
            (5_400_000, "90m"),
            (86_400_000, "24h"),
            (45_500, "45500ms"),
        ] {
            assert_eq!(delay_text(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn fractions_of_a_millisecond_round_up() {
        assert_eq!(whole_millis(Duration::ZERO), 0);
        assert_eq!(whole_millis(Duration::from_nanos(1)), 1);
        assert_eq!(whole_millis(Duration::from_nanos(1_000_001)), 2);
        assert_eq!(whole_millis(Duration::MAX), u64::MAX);
        assert_eq!(
            retry_queue("q", Duration::from_micros(29_999_001)),
            "q.retry.30s"
        );
    }

    #[test]
    fn length_is_counted_in_bytes() {
        assert_eq!(check("queue", &"q".repeat(255)), Ok(()));
        assert!(check("queue", &"q".repeat(256)).is_err());
        assert_eq!(check("queue", &"é".repeat(127)), Ok(()));
        assert!(check("queue", &"é".repeat(128)).is_err());
    }

    #[test]
    fn error_shows_an_abbreviated_name() {
        let error = check("routing key", &"k".repeat(300)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "the routing key \"{ends}…{ends}\" has 300 bytes, but AMQP allows 255",
                ends = "k".repeat(40)
            )
        );
        let error = check("queue", &"\n€".repeat(100)).unwrap_err();
        assert!(error.to_string().lines().count() == 1, "{error}");
    }

    proptest! {
        #[test]
        fn names_are_unique_per_delay(a in delays(), b in delays()) {
            let (a, b) = (Duration::from_millis(a), Duration::from_millis(b));
            prop_assert_eq!(retry_queue("q", a) == retry_queue("q", b), a == b);
        }

        #[test]
        fn delay_text_is_exact(millis in delays()) {
            let text = delay_text(Duration::from_millis(millis));
            let digits = text.trim_end_matches(char::is_alphabetic);
            let unit = match &text[digits.len()..] {
                "h" => 3_600_000,
                "m" => 60_000,
                "s" => 1_000,
                "ms" => 1,
                other => panic!("no unit: {other}"),
            };
            prop_assert_eq!(digits.parse::<u64>().unwrap() * unit, millis);
        }

        #[test]
        fn delays_are_never_shortened(seconds in any::<u64>(), nanos in 0..1_000_000_000_u32) {
            let delay = Duration::new(seconds, nanos);
            let millis = whole_millis(delay);
            prop_assert!(millis == u64::MAX || Duration::from_millis(millis) >= delay);
            prop_assert!(millis == 0 || Duration::from_millis(millis - 1) < delay);
        }
    }

    /// Any delay, with a bias to whole seconds, minutes and hours.
    fn delays() -> impl Strategy<Value = u64> {
        let round = (
            0..50_u64,
            prop_oneof![Just(1_000), Just(60_000), Just(3_600_000)],
        )
            .prop_map(|(n, unit)| n * unit);
        prop_oneof![any::<u64>(), 0..5_000_u64, round]
    }
}
