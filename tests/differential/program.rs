//! What both brokers are made to do.

use crate::message::delivery::Outgoing;
use crate::message::headers::{HeaderValue, Headers};
use crate::topology::declaration::{Declaration, ExchangeKind};
use std::fmt;

/// The channels of a program, by the link that each belongs to.
pub(super) const CHANNELS: [usize; 3] = [0, 0, 1];

/// How many links a program has. What is exclusive belongs to the first, to begin with.
pub(super) const LINKS: usize = 2;

/// The queues of a program.
pub(super) const QUEUES: [&str; 4] = ["q0", "q1", "q2", "q3"];

/// The exchanges of a program.
pub(super) const EXCHANGES: [&str; 3] = ["x0", "x1", "x2"];

/// Steps in order. Any of them may be left out: what is no longer there is refused by both brokers, or passed over.
#[derive(Clone, Debug)]
pub(super) struct Program(pub(super) Vec<Step>);

/// One thing that a client does. Channels and links are numbers in [`CHANNELS`] and below [`LINKS`].
#[derive(Clone)]
#[allow(
    clippy::large_enum_variant,
    reason = "programs are short, and most steps publish"
)]
pub(super) enum Step {
    Declare {
        link: usize,
        declaration: Declaration,
    },
    Check {
        link: usize,
        declaration: Declaration,
    },
    /// With arguments, which the seam has none for.
    Exchange {
        name: &'static str,
        kind: ExchangeKind,
        arguments: Headers,
    },
    Bind {
        queue: &'static str,
        exchange: &'static str,
        routing_key: String,
        arguments: Headers,
    },
    Unbind {
        queue: &'static str,
        exchange: &'static str,
        routing_key: String,
        arguments: Headers,
    },
    DeleteQueue(&'static str),
    DeleteExchange(&'static str),
    Purge(&'static str),
    Publish {
        channel: usize,
        message: Outgoing,
    },
    Pull {
        channel: usize,
        queue: &'static str,
    },
    /// Settles one of the unsettled deliveries of the channel: `which`, counted round and round.
    Ack {
        channel: usize,
        which: usize,
        multiple: bool,
    },
    Nack {
        channel: usize,
        which: usize,
    },
    Reject {
        channel: usize,
        which: usize,
    },
    /// Fetches from a queue on a channel of its own, and acknowledges that twice.
    AckTwice(&'static str),
    Subscribe {
        channel: usize,
        queue: &'static str,
        prefetch: u16,
    },
    /// Cancels one of the consumers of the channel.
    Cancel {
        channel: usize,
        which: usize,
    },
    Close(usize),
    /// Ends a link without a word.
    Kill(usize),
}

impl Program {
    /// Whether something in it expires within the run.
    pub(super) fn is_short_lived(&self) -> bool {
        let is_short = |millis: i64| millis < 1000;
        self.0.iter().any(|step| match step {
            Step::Publish { message, .. } => {
                let expiration = message.properties.expiration.as_deref();
                expiration
                    .and_then(|text| text.parse().ok())
                    .is_some_and(is_short)
            }
            Step::Declare {
                declaration: Declaration::Queue { arguments, .. },
                ..
            } => {
                let ttl = arguments.get("x-message-ttl");
                ttl.and_then(HeaderValue::as_i64).is_some_and(is_short)
            }
            _ => false,
        })
    }

    /// Whether a queue may hand a message on to another one.
    pub(super) fn has_dead_letters(&self) -> bool {
        let has_exchange = |step: &Step| {
            matches!(step, Step::Declare { declaration: Declaration::Queue { arguments, .. }, .. }
                if arguments.contains("x-dead-letter-exchange"))
        };
        self.0.iter().any(has_exchange)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            writeln!(f, "  {number:>2} {step:?}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Declare { link, declaration } => write!(f, "link {link} declares {declaration}"),
            Self::Check { link, declaration } => write!(f, "link {link} checks {declaration}"),
            Self::Exchange {
                name,
                kind,
                arguments,
            } => write!(
                f,
                "a client declares exchange {name} ({kind}) {arguments:?}"
            ),
            Self::Bind {
                queue,
                exchange,
                routing_key,
                arguments,
            } => write!(
                f,
                "a client binds {queue} to {exchange} with {routing_key:?} {arguments:?}"
            ),
            Self::Unbind {
                queue,
                exchange,
                routing_key,
                arguments,
            } => write!(
                f,
                "a client unbinds {queue} from {exchange} with {routing_key:?} {arguments:?}"
            ),
            Self::DeleteQueue(queue) => write!(f, "a client deletes queue {queue}"),
            Self::DeleteExchange(exchange) => write!(f, "a client deletes exchange {exchange}"),
            Self::Purge(queue) => write!(f, "a client purges {queue}"),
            Self::Publish { channel, message } => {
                let Outgoing {
                    exchange,
                    routing_key,
                    mandatory,
                    properties,
                    headers,
                    body,
                } = message;
                write!(
                    f,
                    "channel {channel} publishes {:?} to {exchange:?} with {routing_key:?}",
                    String::from_utf8_lossy(body)
                )?;
                f.write_str(if *mandatory { ", mandatory" } else { "" })?;
                for (name, value) in [
                    (
                        "mode",
                        properties.delivery_mode.map(|mode| mode.to_string()),
                    ),
                    (
                        "priority",
                        properties.priority.map(|priority| priority.to_string()),
                    ),
                    ("expiration", properties.expiration.clone()),
                ] {
                    if let Some(value) = value {
                        write!(f, ", {name} {value}")?;
                    }
                }
                if headers.is_empty() {
                    return Ok(());
                }
                write!(f, ", {headers:?}")
            }
            Self::Pull { channel, queue } => write!(f, "channel {channel} fetches from {queue}"),
            Self::Ack {
                channel,
                which,
                multiple,
            } => {
                let multiple = if *multiple { " and all before" } else { "" };
                write!(f, "channel {channel} acks #{which}{multiple}")
            }
            Self::Nack { channel, which } => write!(f, "channel {channel} requeues #{which}"),
            Self::Reject { channel, which } => write!(f, "channel {channel} rejects #{which}"),
            Self::AckTwice(queue) => write!(f, "somebody fetches from {queue} and acks twice"),
            Self::Subscribe {
                channel,
                queue,
                prefetch,
            } => write!(
                f,
                "channel {channel} consumes from {queue} with prefetch {prefetch}"
            ),
            Self::Cancel { channel, which } => {
                write!(f, "channel {channel} cancels consumer #{which}")
            }
            Self::Close(channel) => write!(f, "channel {channel} is closed"),
            Self::Kill(link) => write!(f, "link {link} is killed"),
        }
    }
}
