//! The names of everything the library declares on a broker.
//!
//! They are shared with services in other languages: two services that share a queue share its dead-letter queue, its
//! parked queue and its retry queues too, so a name here never changes.
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

/// The direct exchange that dead-letter queues and parked queues are bound to.
pub const DEAD_LETTER_EXCHANGE: &str = "acemq.dlx";

/// The direct exchange that brings a message back from a retry queue to its source queue.
pub const RETRY_EXCHANGE: &str = "acemq.retry";

/// What AMQP's short strings hold: exchange and queue names, routing keys.
pub(crate) const LONGEST_NAME: usize = 255;

/// How much of either end of a long name is shown.
const SHOWN_CHARS: usize = 40;

/// The queue for messages of `queue` that were given up or rejected.
#[must_use]
pub fn dead_letter_queue(queue: &str) -> String {
    format!("{queue}.dlq")
}

/// The queue for messages of `queue` that a person must look at: parked by the handler, or undecodable.
#[must_use]
pub fn parked_queue(queue: &str) -> String {
    format!("{queue}.parked")
}

/// The queue in which a message of `queue` waits for `delay` before it is delivered again.
///
/// The delay is rounded up to whole milliseconds and written in the largest of `h`, `m` and `s` that divides it; one
/// that is no whole number of seconds is written in `ms`. So 60 s is `1m`, 90 s is `90s`, 45.5 s is `45500ms`. A delay of
/// zero, which never has a queue, reads `0s`.
///
/// AceMQ for Ruby, Go and Python cuts fractions of a second off instead; the names differ only for such delays.
#[must_use]
pub fn retry_queue(queue: &str, delay: Duration) -> String {
    format!("{queue}.retry.{}", delay_text(delay))
}

/// A delay as names and texts show it.
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

/// The delay in milliseconds, rounded up; `u64::MAX` when it is longer than that.
pub(crate) fn whole_millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Whether AMQP can carry `name`; `what` says in the error what it names, such as `queue`.
///
/// amiquip writes a longer one as a corrupt frame, for which the broker closes the whole connection.
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

/// A long name with its middle left out: derived names differ at their end.
pub(crate) fn abbreviated(name: &str) -> String {
    let length = name.chars().count();
    if length <= 2 * SHOWN_CHARS + 1 {
        return name.to_owned();
    }
    let head: String = name.chars().take(SHOWN_CHARS).collect();
    let tail: String = name.chars().skip(length - SHOWN_CHARS).collect();
    format!("{head}…{tail}")
}

/// A name or routing key, given or derived, is longer than the 255 bytes that AMQP allows.
///
/// Bytes count, not characters. Names derived from a queue's are longer than its own: choose a shorter queue name.
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
            "the {what} {shown:?} takes {bytes} bytes, but AMQP allows {LONGEST_NAME}"
        )
    }
}

impl Error for NameTooLong {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn delays_read_in_the_largest_unit_that_divides_them() {
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
    fn fractions_of_a_millisecond_count_as_a_whole_one() {
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
    fn bytes_count_and_not_characters() {
        assert_eq!(check("queue", &"q".repeat(255)), Ok(()));
        assert!(check("queue", &"q".repeat(256)).is_err());
        assert_eq!(check("queue", &"é".repeat(127)), Ok(()));
        assert!(check("queue", &"é".repeat(128)).is_err());
    }

    #[test]
    fn the_error_shows_what_is_too_long_without_showing_it_all() {
        let error = check("routing key", &"k".repeat(300)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "the routing key \"{ends}…{ends}\" takes 300 bytes, but AMQP allows 255",
                ends = "k".repeat(40)
            )
        );
        let error = check("queue", &"\n€".repeat(100)).unwrap_err();
        assert!(error.to_string().lines().count() == 1, "{error}");
    }

    proptest! {
        #[test]
        fn different_delays_have_different_names(a in delays(), b in delays()) {
            let (a, b) = (Duration::from_millis(a), Duration::from_millis(b));
            prop_assert_eq!(retry_queue("q", a) == retry_queue("q", b), a == b);
        }

        #[test]
        fn the_text_says_the_delay(millis in delays()) {
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
        fn a_delay_is_never_cut_short(seconds in any::<u64>(), nanos in 0..1_000_000_000_u32) {
            let delay = Duration::new(seconds, nanos);
            let millis = whole_millis(delay);
            prop_assert!(millis == u64::MAX || Duration::from_millis(millis) >= delay);
            prop_assert!(millis == 0 || Duration::from_millis(millis - 1) < delay);
        }
    }

    /// Any delay, and often one that is near a whole second, minute or hour.
    fn delays() -> impl Strategy<Value = u64> {
        let round = (
            0..50_u64,
            prop_oneof![Just(1_000), Just(60_000), Just(3_600_000)],
        )
            .prop_map(|(n, unit)| n * unit);
        prop_oneof![any::<u64>(), 0..5_000_u64, round]
    }
}
