//! The names and constants of the wire contract, and the format of message ids.
//!
//! AceMQ libraries in other languages read and write the same headers, so a name here never
//! changes. Each name is spelled out in this module only.

/// The prefix of the headers that belong to the AceMQ libraries.
pub(crate) const RESERVED_PREFIX: &str = "x-acemq-";

pub(crate) const ID: &str = "x-acemq-id";
pub(crate) const TYPE: &str = "x-acemq-type";
pub(crate) const VERSION: &str = "x-acemq-version";
pub(crate) const CORRELATION: &str = "x-acemq-correlation";
pub(crate) const CAUSATION: &str = "x-acemq-causation";
pub(crate) const ATTEMPT: &str = "x-acemq-attempt";
pub(crate) const FIRST_SEEN: &str = "x-acemq-first-seen";
pub(crate) const ORIGIN: &str = "x-acemq-origin";
pub(crate) const ERROR: &str = "x-acemq-error";
pub(crate) const CLAIM: &str = "x-acemq-claim";

/// The reserved headers that [`Envelope`](super::envelope::Envelope) reads and writes.
pub(crate) const ENVELOPE_HEADERS: [&str; 10] = [
    ID,
    TYPE,
    VERSION,
    CORRELATION,
    CAUSATION,
    ATTEMPT,
    FIRST_SEEN,
    ORIGIN,
    ERROR,
    CLAIM,
];

/// The exchange of the first publish. An application header that stays on every copy.
pub(crate) const ORIGINAL_EXCHANGE: &str = "x-original-exchange";
/// The routing key of the first publish. An application header that stays on every copy.
pub(crate) const ORIGINAL_ROUTING_KEY: &str = "x-original-routingKey";

/// RabbitMQ's record of dead-letterings, newest first.
pub(crate) const DEATHS: &str = "x-death";

/// RabbitMQ's count of redeliveries of a message in a quorum queue.
pub(crate) const DELIVERY_COUNT: &str = "x-delivery-count";

/// Headers about the path that a delivery took. No copy carries them: RabbitMQ 3.x takes a retry
/// with an `x-death` for a dead-letter cycle and silently drops it, and `CC` and `BCC` route the
/// copy to further queues.
pub(crate) const NEVER_CARRIED: [&str; 4] = ["CC", "BCC", DEATHS, DELIVERY_COUNT];
/// The prefixes of further headers that no copy carries.
pub(crate) const NEVER_CARRIED_PREFIXES: [&str; 2] = ["x-first-death-", "x-last-death-"];

/// Queue arguments.
pub(crate) const QUEUE_TYPE_ARGUMENT: &str = "x-queue-type";
pub(crate) const TTL_ARGUMENT: &str = "x-message-ttl";
pub(crate) const DEAD_LETTER_EXCHANGE_ARGUMENT: &str = "x-dead-letter-exchange";
pub(crate) const DEAD_LETTER_ROUTING_KEY_ARGUMENT: &str = "x-dead-letter-routing-key";

/// The values of AMQP's `delivery_mode`.
pub(crate) const TRANSIENT: u8 = 1;
pub(crate) const PERSISTENT: u8 = 2;

/// A new message id: a random UUID (version 4).
pub(crate) fn new_id() -> String {
    uuid(rand::random())
}

fn uuid(random: u128) -> String {
    // RFC 9562: the version stands in bits 76 to 79, the variant in bits 62 and 63.
    let bits = random & !(0xf << 76) & !(0b11 << 62) | 0x4 << 76 | 0b10 << 62;
    let hex = format!("{bits:032x}");
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_sets_version_and_variant() {
        assert_eq!(uuid(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }

    #[test]
    fn ids_are_unique() {
        let ids: std::collections::BTreeSet<_> = (0..1000).map(|_| new_id()).collect();
        assert_eq!(ids.len(), 1000);
    }
}
