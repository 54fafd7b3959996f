//! Parses the command line.

use rungmq::RetryPolicy;
use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

pub(crate) const USAGE: &str = "\
worker [OPTION...] QUEUE...
  --url URL              the broker; default AMQP_URL, else amqp://guest:guest@localhost:5672.
                         memory://NAME is an embedded broker, private to this process
  --declare              declare the queues and what the policy needs; default: they must exist
  --queue-type TYPE      quorum (default) or classic, for --declare
  --policy POLICY        none (default), fixed:N:DUR or exponential:N:DUR:CAP; N counts deliveries
  --jitter F             spread of waits in the consumer, 0 to 1; default 0.2, or 0 for fixed
  --give-up-after DUR    dead-letter messages older than this, default never
  --threshold DUR        delays from this on are spent on the broker, default 30s; 0s is never
  --concurrency N        concurrent handlers for each queue, default 1
  --prefetch N           unsettled deliveries for each queue, default 20 or the concurrency,
                         whichever is larger
  --confirm-timeout DUR  limit for the broker's confirm, default 10s
  --answer ANSWER        accept (default), retry, reject, fatal, park, panic, or fail-first:N
                         (retry up to attempt N)
  --reason TEXT          the reason of the answer, default \"the worker was told to\"
  --reason-bytes N       a reason of N bytes instead
  --work DUR             duration of each handler, default 0s
  --count N              close after N handled deliveries, default never
  --for DUR              close after this time, default never
  --close-timeout DUR    timeout of the close, default 20s
DUR is a whole number with a unit: 500ms, 10s, 5m, 2h. SIGTERM and SIGINT close.
Exit codes: 0; 1 if the close failed or left deliveries behind; 2 if the start failed.";

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) url: String,
    pub(crate) declare: bool,
    pub(crate) queue_type: QueueType,
    pub(crate) policy: RetryPolicy,
    pub(crate) threshold: Duration,
    pub(crate) concurrency: Option<u32>,
    pub(crate) prefetch: Option<u32>,
    pub(crate) confirm_timeout: Option<Duration>,
    pub(crate) answer: Answer,
    pub(crate) reason: String,
    pub(crate) work: Duration,
    pub(crate) count: Option<u64>,
    pub(crate) run_for: Option<Duration>,
    pub(crate) close_timeout: Duration,
    pub(crate) queues: Vec<String>,
}

#[derive(Clone, Copy)]
pub(crate) enum QueueType {
    Quorum,
    Classic,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Answer {
    Accept,
    Retry,
    Reject,
    Fatal,
    Park,
    Panic,
    /// Retries up to and including this attempt, then accepts.
    FailFirst(u32),
}

impl Options {
    /// Parses the arguments; `None` if they ask for help.
    pub(crate) fn from_args(args: impl Iterator<Item = OsString>) -> Result<Option<Self>, String> {
        let args: Result<Vec<String>, OsString> = args.map(OsString::into_string).collect();
        let mut args = args
            .map_err(|arg| format!("not UTF-8: {arg:?}"))?
            .into_iter();
        let mut options = Self {
            url: std::env::var("AMQP_URL")
                .unwrap_or_else(|_| "amqp://guest:guest@localhost:5672".into()),
            declare: false,
            queue_type: QueueType::Quorum,
            policy: RetryPolicy::none(),
            threshold: Duration::from_secs(30),
            concurrency: None,
            prefetch: None,
            confirm_timeout: None,
            answer: Answer::Accept,
            reason: String::new(),
            work: Duration::ZERO,
            count: None,
            run_for: None,
            close_timeout: Duration::from_secs(20),
            queues: Vec::new(),
        };
        let (mut jitter, mut give_up_after) = (None, None);
        let (mut reason, mut reason_bytes) = (None, None);

        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            let in_option = |problem: String| format!("{arg}: {problem}");
            match arg.as_str() {
                "--help" | "-h" => return Ok(None),
                "--url" => options.url = value()?,
                "--declare" => options.declare = true,
                "--queue-type" => options.queue_type = queue_type(&value()?).map_err(in_option)?,
                "--policy" => options.policy = policy(&value()?).map_err(in_option)?,
                "--jitter" => jitter = Some(number(&value()?).map_err(in_option)?),
                "--give-up-after" => give_up_after = Some(duration(&value()?).map_err(in_option)?),
                "--threshold" => options.threshold = duration(&value()?).map_err(in_option)?,
                "--concurrency" => {
                    options.concurrency = Some(number(&value()?).map_err(in_option)?)
                }
                "--prefetch" => options.prefetch = Some(number(&value()?).map_err(in_option)?),
                "--confirm-timeout" => {
                    options.confirm_timeout = Some(duration(&value()?).map_err(in_option)?)
                }
                "--answer" => options.answer = answer(&value()?).map_err(in_option)?,
                "--reason" => reason = Some(value()?),
                "--reason-bytes" => reason_bytes = Some(number(&value()?).map_err(in_option)?),
                "--work" => options.work = duration(&value()?).map_err(in_option)?,
                "--count" => options.count = Some(at_least_one(&value()?).map_err(in_option)?),
                "--for" => options.run_for = Some(duration(&value()?).map_err(in_option)?),
                "--close-timeout" => {
                    options.close_timeout = duration(&value()?).map_err(in_option)?
                }
                unknown if unknown.starts_with('-') => {
                    return Err(format!("unknown option {unknown}"));
                }
                _ => options.queues.push(arg),
            }
        }

        if options.queues.is_empty() {
            return Err("no queue given".into());
        }
        if let Some(jitter) = jitter {
            options.policy = options
                .policy
                .with_jitter(jitter)
                .map_err(|error| format!("--jitter: {error}"))?;
        }
        if let Some(age) = give_up_after {
            options.policy = options.policy.give_up_after(age);
        }
        options.reason = match (reason, reason_bytes) {
            (Some(_), Some(_)) => {
                return Err("--reason and --reason-bytes exclude each other".into());
            }
            (Some(text), None) => text,
            (None, Some(bytes)) => three_byte_characters(bytes),
            (None, None) => "the worker was told to".into(),
        };
        Ok(Some(options))
    }
}

fn queue_type(text: &str) -> Result<QueueType, String> {
    match text {
        "quorum" => Ok(QueueType::Quorum),
        "classic" => Ok(QueueType::Classic),
        _ => Err(format!("expected quorum or classic, not {text:?}")),
    }
}

fn policy(text: &str) -> Result<RetryPolicy, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let policy = match parts[..] {
        ["none"] => return Ok(RetryPolicy::none()),
        ["fixed", attempts, delay] => RetryPolicy::fixed(number(attempts)?, duration(delay)?),
        ["exponential", attempts, initial, cap] => {
            RetryPolicy::exponential(number(attempts)?, duration(initial)?, duration(cap)?)
        }
        _ => {
            return Err(format!(
                "expected none, fixed:N:DUR or exponential:N:DUR:CAP, not {text:?}"
            ));
        }
    };
    policy.map_err(|error| error.to_string())
}

fn answer(text: &str) -> Result<Answer, String> {
    Ok(match text {
        "accept" => Answer::Accept,
        "retry" => Answer::Retry,
        "reject" => Answer::Reject,
        "fatal" => Answer::Fatal,
        "park" => Answer::Park,
        "panic" => Answer::Panic,
        _ => match text.strip_prefix("fail-first:") {
            Some(failures) => Answer::FailFirst(number(failures)?),
            None => {
                return Err(format!(
                    "expected accept, retry, reject, fatal, park, panic or fail-first:N, \
                     not {text:?}"
                ));
            }
        },
    })
}

fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => {
            return Err(format!(
                "expected a duration such as 500ms, 10s, 5m or 2h, not {text:?}"
            ));
        }
    };
    let count: u64 = number(count).map_err(|_| format!("invalid duration {text:?}"))?;
    let millis = count
        .checked_mul(millis)
        .ok_or_else(|| format!("duration {text} is too long"))?;
    Ok(Duration::from_millis(millis))
}

fn number<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("invalid number {text:?}"))
}

fn at_least_one(text: &str) -> Result<u64, String> {
    match number(text)? {
        0 => Err("must be at least 1".into()),
        n => Ok(n),
    }
}

/// A text of exactly `bytes` bytes in three-byte characters. It ends in ASCII characters if `bytes`
/// is not a multiple of three.
fn three_byte_characters(bytes: usize) -> String {
    "€".repeat(bytes / 3) + &"x".repeat(bytes % 3)
}
