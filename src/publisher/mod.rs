//! The publisher: one thread that owns the publishing connection and keeps many messages in flight.
//!
//! A consumer thread hands a copy over and receives a [`CopyResult`] on its own channel. Only
//! callers of `publish` wait.

pub(crate) mod channel;
pub(crate) mod confirms;
pub(crate) mod connection;

mod reply;
mod thread;

use crate::link::{Backoff, Dialler, Generation, Link};
use crate::message::delivery::Outgoing;
use crate::message::publish::error::PublishResult;
use crate::metrics::{Metrics, PublishOutcome, Published};
use crate::time::clock::Clock;
use crate::time::instant::monotonic;
use crate::time::threads::SpawnError;
use crossbeam_channel::{Sender, unbounded};
use log::warn;
use parking_lot::Mutex;
use reply::{Pending, Reply, reply};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The metric label of a result.
fn publish_outcome(result: &PublishResult) -> PublishOutcome {
    match result {
        PublishResult::Confirmed => PublishOutcome::Confirmed,
        PublishResult::Unroutable(_) => PublishOutcome::Unroutable,
        PublishResult::Nacked | PublishResult::NotSent(_) | PublishResult::ChannelClosed(_) => {
            PublishOutcome::Refused
        }
        PublishResult::Unknown(_) => PublishOutcome::Failed,
    }
}

/// The result of one copy, for the consumer thread that asked for it.
#[derive(Debug)]
pub(crate) struct CopyResult {
    pub(crate) tag: u64,
    pub(crate) result: PublishResult,
}

/// Messages to the publisher thread.
enum PublisherCommand {
    Copy(PublishJob),
    Publish(PublishJob),
    /// Check the waiting copies again: a drain has begun, or a generation has ended.
    Wake,
    /// The broker was reached: end the pause between two attempts to connect.
    ReconnectNow,
    /// The connection is open, or opening it has failed.
    Opened(Result<connection::OpenedLink, String>),
    Notice {
        link: u64,
        notice: crate::link::LinkNotice,
    },
    /// Answer everything that waits, and close.
    Stop {
        within: Duration,
    },
}

/// A message to be published, and where its result goes.
struct PublishJob {
    message: Outgoing,
    since: Instant,
    waiter: Waiter,
}

/// Where the result of a message goes.
enum Waiter {
    Consumer {
        tag: u64,
        generation: Arc<Generation>,
        answers: Sender<CopyResult>,
    },
    Caller(Reply),
}

/// The configuration and the shared views of the publisher.
#[derive(Debug)]
pub(crate) struct PublisherSettings {
    pub(crate) dialler: Arc<Dialler>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    /// Limit of the wait for a confirm.
    pub(crate) confirm_timeout: Duration,
    /// Limit of a connection attempt and of opening a channel.
    pub(crate) connect_timeout: Duration,
    /// Pauses between attempts to connect.
    pub(crate) backoff: Backoff,
    /// Written by the publisher thread, read by health.
    pub(crate) view: Arc<Mutex<PublisherView>>,
    /// Set around every step that may block in a write; read by the supervisor.
    pub(crate) writing: Arc<Mutex<Option<WriteInProgress>>>,
}

/// A write that may be blocked, for as long as the broker does not read.
#[derive(Debug)]
pub(crate) struct WriteInProgress {
    since: Instant,
    link: Arc<Link>,
}

/// What other threads see of the publisher.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublisherView {
    /// Why the broker has blocked publishing, if it has.
    pub(crate) blocked: Option<String>,
    /// Why there is no connection, if it was lost.
    pub(crate) down: Option<String>,
    /// How many copies wait unwritten because of that.
    pub(crate) waiting: usize,
}

impl PublisherView {
    fn is_ready(&self) -> bool {
        self.blocked.is_none() && self.down.is_none()
    }
}

/// The text for a connection that the broker has blocked.
pub(crate) fn blocked_text(reason: &str) -> String {
    let text = "the broker has blocked this connection; publishing is paused";
    if reason.is_empty() {
        text.to_owned()
    } else {
        format!("{text}: {reason}")
    }
}

/// A handle of the publisher thread. Clones are the same publisher.
#[derive(Clone)]
pub(crate) struct Publisher {
    commands: Sender<PublisherCommand>,
    settings: Arc<PublisherSettings>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Publisher")
    }
}

impl Publisher {
    /// Starts the thread. The signal is ready once the thread has ended.
    pub(crate) fn start(
        settings: PublisherSettings,
    ) -> Result<(Self, crate::link::OverSignal), SpawnError> {
        let (commands, inbox) = unbounded();
        let settings = Arc::new(settings);
        let ended = thread::start(inbox, commands.clone(), settings.clone())?;
        Ok((Self { commands, settings }, ended))
    }

    /// Hands a copy over. Its result is sent to `answers`, unless its generation ends before it is
    /// written.
    pub(crate) fn copy(
        &self,
        message: Outgoing,
        tag: u64,
        generation: &Arc<Generation>,
        answers: &Sender<CopyResult>,
    ) {
        let waiter = Waiter::Consumer {
            tag,
            generation: generation.clone(),
            answers: answers.clone(),
        };
        self.send(PublisherCommand::Copy(PublishJob {
            message,
            since: monotonic(),
            waiter,
        }));
    }

    /// Publishes and waits for the result.
    pub(crate) fn publish(&self, message: Outgoing) -> PublishResult {
        let exchange = message.exchange.clone();
        let since = monotonic();
        let result = self.begin(message, since).wait(self.give_up(since));
        let published = Published::new(&exchange, publish_outcome(&result), since.elapsed());
        self.settings.metrics.published(&published);
        result
    }

    /// Publishes all of `messages`, with many in flight at a time, and waits for every result.
    pub(crate) fn publish_all(&self, messages: Vec<Outgoing>) -> Vec<PublishResult> {
        let since = monotonic();
        let pending: Vec<(String, Pending)> = messages
            .into_iter()
            .map(|message| (message.exchange.clone(), self.begin(message, since)))
            .collect();
        let finish = |(exchange, pending): (String, Pending)| {
            let result = pending.wait(self.give_up(since));
            let published = Published::new(&exchange, publish_outcome(&result), since.elapsed());
            self.settings.metrics.published(&published);
            result
        };
        pending.into_iter().map(finish).collect()
    }

    /// Counts a publish that was declined before it came here.
    pub(crate) fn count_refused(&self, exchange: &str) {
        let refused = Published::new(exchange, PublishOutcome::Refused, Duration::ZERO);
        self.settings.metrics.published(&refused);
    }

    fn begin(&self, message: Outgoing, since: Instant) -> Pending {
        let (reply, pending) = reply();
        let waiter = Waiter::Caller(reply);
        self.send(PublisherCommand::Publish(PublishJob {
            message,
            since,
            waiter,
        }));
        pending
    }

    /// When a caller gives up on a message that has not been written.
    fn give_up(&self, since: Instant) -> Option<Instant> {
        let PublisherSettings {
            confirm_timeout,
            connect_timeout,
            ..
        } = &*self.settings;
        since.checked_add(confirm_timeout.checked_add(*connect_timeout)?)
    }

    /// Shuts down a connection whose write has made no progress for as long as a confirm may take.
    ///
    /// Called by the supervisor, since the publisher thread is stuck in that write.
    pub(crate) fn kill_stuck_link(&self) {
        // Held until the kill, so that a write that begins meanwhile is not cut off for an earlier
        // one.
        let writing = self.settings.writing.lock();
        if let Some(WriteInProgress { since, link }) = &*writing {
            let limit = self.settings.confirm_timeout;
            // Rule 6: progress is judged by the bytes moved; a large message may take long.
            let stuck = since.elapsed().min(link.activity().last_write().elapsed());
            if stuck >= limit {
                let seconds = stuck.as_secs();
                warn!("publish blocked for {seconds} s without progress; closing the connection");
                link.kill();
            }
        }
    }

    pub(crate) fn view(&self) -> PublisherView {
        self.settings.view.lock().clone()
    }

    /// Makes the publisher check its waiting copies again.
    pub(crate) fn wake(&self) {
        self.send(PublisherCommand::Wake);
    }

    /// Ends the pause between two attempts to connect; called when the broker was just reached.
    pub(crate) fn reconnect_now(&self) {
        self.send(PublisherCommand::ReconnectNow);
    }

    /// Ends publishing: unwritten messages are answered as not sent, those in flight as unknown.
    pub(crate) fn stop(&self, within: Duration) {
        self.send(PublisherCommand::Stop { within });
    }

    fn send(&self, command: PublisherCommand) {
        // The thread has ended, so the message was not written.
        if let Err(unsent) = self.commands.send(command)
            && let PublisherCommand::Copy(job) | PublisherCommand::Publish(job) = unsent.0
        {
            job.waiter.answer(PublishResult::NotSent(
                "the connection was closed".to_owned(),
            ));
        }
    }
}

impl Waiter {
    /// Delivers the result.
    fn answer(self, result: PublishResult) {
        // The send fails once the subscription has ended, when no answer is needed any more.
        match self {
            Self::Consumer { tag, answers, .. } => {
                let _ = answers.send(CopyResult { tag, result });
            }
            Self::Caller(reply) => reply.answer(result),
        }
    }
}
