//! The one thread that publishes: many messages in flight, one answer each.
//!
//! Workers never wait for it: a consumer thread hands a copy over and gets a [`CopyAnswer`] in its own channel. Only a
//! caller of `publish` waits.

mod lane;
mod thread;
mod tracker;

use crate::clock::monotonic;
use crate::link::{Dialler, Generation};
use crate::metrics::{Metrics, PublishOutcome, Published};
use crate::transport::Outgoing;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// How one copy or publish ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublishResult {
    /// A queue has it.
    Confirmed,
    /// No queue took it.
    Unroutable(String),
    /// The broker refused it: a nack.
    Nacked,
    /// It was never written, so the broker does not have it.
    NotSent(String),
    /// It was written and nobody answered: the broker may have it or not.
    Unknown(UnknownCause),
    /// The broker closed the channel over this very message.
    ChannelClosed(String),
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnknownCause {
    Timeout,
    Lost(String),
}

impl PublishResult {
    fn outcome(&self) -> PublishOutcome {
        match self {
            Self::Confirmed => PublishOutcome::Confirmed,
            Self::Unroutable(_) => PublishOutcome::Unroutable,
            Self::Nacked | Self::NotSent(_) | Self::ChannelClosed(_) => PublishOutcome::Refused,
            Self::Unknown(_) => PublishOutcome::Failed,
        }
    }
}

/// The end of one copy, for the consumer thread that asked for it.
#[derive(Debug)]
pub(crate) struct CopyAnswer {
    pub(crate) tag: u64,
    pub(crate) result: PublishResult,
}

/// What the publisher works on.
enum Command {
    Copy(Job),
    Publish(Job),
    /// Look again at what waits: a drain has begun, or a generation has ended.
    LookAgain,
    /// The link is there, or could not be made.
    Opened(thread::Opening),
    Notice {
        link: u64,
        notice: crate::link::LinkNotice,
    },
    /// No more publishing: answer everything that waits, and close.
    Stop {
        within: Duration,
    },
}

struct Job {
    message: Outgoing,
    since: Instant,
    waiter: Waiter,
}

enum Waiter {
    Consumer {
        tag: u64,
        generation: Arc<Generation>,
        answers: Sender<CopyAnswer>,
    },
    Caller {
        ticket: Arc<Ticket>,
        answer: Sender<PublishResult>,
    },
}

/// Decides between a caller that gives up and the publisher that writes: exactly one of them wins.
#[derive(Debug, Default)]
struct Ticket(AtomicU8);

impl Ticket {
    const QUEUED: u8 = 0;
    const WRITTEN: u8 = 1;
    const WITHDRAWN: u8 = 2;

    fn decide(&self, end: u8) -> bool {
        self.0
            .compare_exchange(Self::QUEUED, end, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// What publishing needs to know about its connection.
#[derive(Debug)]
pub(crate) struct PublisherSettings {
    pub(crate) dialler: Arc<Dialler>,
    pub(crate) metrics: Metrics,
    pub(crate) confirm_timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

/// The handle to the publisher thread.
#[derive(Clone)]
pub(crate) struct Publisher {
    commands: Sender<Command>,
    settings: Arc<PublisherSettings>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Publisher")
    }
}

impl Publisher {
    /// Starts the thread. The receiver becomes ready (disconnected) when the thread has ended.
    pub(crate) fn start(
        settings: PublisherSettings,
    ) -> io::Result<(Self, crate::link::OverSignal)> {
        let (commands, inbox) = unbounded();
        let settings = Arc::new(settings);
        let ended = thread::start(inbox, commands.clone(), settings.clone())?;
        Ok((Self { commands, settings }, ended))
    }

    /// Hands a copy over. Its answer comes to `answers`, unless its generation ends before it is written.
    pub(crate) fn copy(
        &self,
        message: Outgoing,
        tag: u64,
        generation: &Arc<Generation>,
        answers: &Sender<CopyAnswer>,
    ) {
        let waiter = Waiter::Consumer {
            tag,
            generation: generation.clone(),
            answers: answers.clone(),
        };
        self.send(Command::Copy(Job {
            message,
            since: monotonic(),
            waiter,
        }));
    }

    /// Publishes and waits for the answer.
    pub(crate) fn publish(&self, message: Outgoing) -> PublishResult {
        let exchange = message.exchange.clone();
        let since = monotonic();
        let result = Pending::start(self, message, since).wait();
        self.settings.metrics.published(&Published::new(
            &exchange,
            result.outcome(),
            since.elapsed(),
        ));
        result
    }

    /// Publishes all of `messages`, many of them in flight at a time, and waits for every answer.
    pub(crate) fn publish_all(&self, messages: Vec<Outgoing>) -> Vec<PublishResult> {
        let since = monotonic();
        let exchanges: Vec<String> = messages
            .iter()
            .map(|message| message.exchange.clone())
            .collect();
        let pending: Vec<Pending> = messages
            .into_iter()
            .map(|message| Pending::start(self, message, since))
            .collect();
        let results: Vec<PublishResult> = pending.into_iter().map(Pending::wait).collect();
        for (exchange, result) in exchanges.iter().zip(&results) {
            self.settings.metrics.published(&Published::new(
                exchange,
                result.outcome(),
                since.elapsed(),
            ));
        }
        results
    }

    /// Has the publisher look again at what waits unwritten.
    pub(crate) fn look_again(&self) {
        self.send(Command::LookAgain);
    }

    /// Ends publishing: what waits is answered as not sent, what is in flight as unknown.
    pub(crate) fn stop(&self, within: Duration) {
        self.send(Command::Stop { within });
    }

    fn send(&self, command: Command) {
        if let Err(unsent) = self.commands.send(command)
            && let Command::Copy(job) | Command::Publish(job) = unsent.0
        {
            job.waiter.answer(PublishResult::NotSent(
                "the connection was closed".to_owned(),
            ));
        }
    }
}

impl Waiter {
    fn answer(self, result: PublishResult) {
        // Whoever waited may be gone: then nobody needs the answer.
        match self {
            Self::Consumer { tag, answers, .. } => drop(answers.send(CopyAnswer { tag, result })),
            Self::Caller { answer, .. } => drop(answer.send(result)),
        }
    }
}

/// A caller's publish on its way.
struct Pending {
    ticket: Arc<Ticket>,
    answer: Receiver<PublishResult>,
    give_up: Option<Instant>,
}

impl Pending {
    fn start(publisher: &Publisher, message: Outgoing, since: Instant) -> Self {
        let (reply, answer) = bounded(1);
        let ticket = Arc::new(Ticket::default());
        let waiter = Waiter::Caller {
            ticket: ticket.clone(),
            answer: reply,
        };
        publisher.send(Command::Publish(Job {
            message,
            since,
            waiter,
        }));
        let settings = &publisher.settings;
        let give_up = settings
            .confirm_timeout
            .checked_add(settings.connect_timeout)
            .and_then(|d| since.checked_add(d));
        Self {
            ticket,
            answer,
            give_up,
        }
    }

    /// Once written, the publisher itself bounds the wait.
    fn wait(self) -> PublishResult {
        let lost =
            || PublishResult::Unknown(UnknownCause::Lost("the connection was closed".to_owned()));
        if let Some(give_up) = self.give_up {
            if let Ok(result) = self.answer.recv_deadline(give_up) {
                return result;
            }
            if self.ticket.decide(Ticket::WITHDRAWN) {
                return PublishResult::NotSent(
                    "the connection was not ready within the limit".to_owned(),
                );
            }
        }
        self.answer.recv().unwrap_or_else(|_| lost())
    }
}
