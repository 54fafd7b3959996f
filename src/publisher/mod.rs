//! The one thread that publishes: many messages in flight, one answer each.
//!
//! Workers never wait for it: a consumer thread hands a copy over and gets a [`CopyResult`] in its own channel. Only a
//! caller of `publish` waits.

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

/// How the metrics count a publish that ended so.
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

/// The end of one copy, for the consumer thread that asked for it.
#[derive(Debug)]
pub(crate) struct CopyResult {
    pub(crate) tag: u64,
    pub(crate) result: PublishResult,
}

/// What the publisher works on.
enum PublisherCommand {
    Copy(PublishJob),
    Publish(PublishJob),
    /// Look again at what waits: a drain has begun, or a generation has ended.
    Wake,
    /// The broker is there: a lost link need not wait for the end of its pause.
    ReconnectNow,
    /// The link is there, or could not be made.
    Opened(Result<connection::OpenedLink, String>),
    Notice {
        link: u64,
        notice: crate::link::LinkNotice,
    },
    /// No more publishing: answer everything that waits, and close.
    Stop {
        within: Duration,
    },
}

struct PublishJob {
    message: Outgoing,
    since: Instant,
    waiter: Waiter,
}

enum Waiter {
    Consumer {
        tag: u64,
        generation: Arc<Generation>,
        answers: Sender<CopyResult>,
    },
    Caller(Reply),
}

/// What publishing needs to know about its connection.
#[derive(Debug)]
pub(crate) struct PublisherSettings {
    pub(crate) dialler: Arc<Dialler>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    pub(crate) confirm_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    /// Between attempts to make the link again.
    pub(crate) backoff: Backoff,
    pub(crate) view: Arc<Mutex<PublisherView>>,
    pub(crate) writing: Arc<Mutex<Option<WriteInProgress>>>,
}

/// A write that is under way: it blocks for as long as the broker does not read.
#[derive(Debug)]
pub(crate) struct WriteInProgress {
    since: Instant,
    link: Arc<Link>,
}

/// What can be seen of the publishing side without asking it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublisherView {
    /// The broker does not read what is published, for this reason.
    pub(crate) blocked: Option<String>,
    /// There is no link, for this reason.
    pub(crate) down: Option<String>,
    /// How many copies wait unwritten for that.
    pub(crate) waiting: usize,
}

impl PublisherView {
    fn is_ready(&self) -> bool {
        self.blocked.is_none() && self.down.is_none()
    }
}

pub(crate) fn blocked_text(reason: &str) -> String {
    let text = "the broker has blocked this connection; publishing is paused";
    if reason.is_empty() {
        text.to_owned()
    } else {
        format!("{text}: {reason}")
    }
}

/// The handle to the publisher thread.
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
    /// Starts the thread. The receiver becomes ready (disconnected) when the thread has ended.
    pub(crate) fn start(
        settings: PublisherSettings,
    ) -> Result<(Self, crate::link::OverSignal), SpawnError> {
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

    /// Publishes and waits for the answer.
    pub(crate) fn publish(&self, message: Outgoing) -> PublishResult {
        let exchange = message.exchange.clone();
        let since = monotonic();
        let result = self.begin(message, since).wait(self.give_up(since));
        let published = Published::new(&exchange, publish_outcome(&result), since.elapsed());
        self.settings.metrics.published(&published);
        result
    }

    /// Publishes all of `messages`, many of them in flight at a time, and waits for every answer.
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

    /// A publish was declined before it came here.
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

    /// When a caller gives up on a message that could not even be written.
    fn give_up(&self, since: Instant) -> Option<Instant> {
        let PublisherSettings {
            confirm_timeout,
            connect_timeout,
            ..
        } = &*self.settings;
        since.checked_add(confirm_timeout.checked_add(*connect_timeout)?)
    }

    /// Gives up a link whose socket has taken nothing for as long as a confirm may take, while a write waits for that: the
    /// publisher, kind is stuck in the write, cannot do it.
    pub(crate) fn kill_stuck_link(&self) {
        let writing = self.settings.writing.lock();
        if let Some(WriteInProgress { since, link }) = &*writing {
            let limit = self.settings.confirm_timeout;
            let moved = link.activity().last_write().elapsed();
            if since.elapsed() >= limit && moved >= limit {
                warn!("the broker takes nothing that is published: the connection is given up");
                link.kill();
            }
        }
    }

    pub(crate) fn view(&self) -> PublisherView {
        self.settings.view.lock().clone()
    }

    /// Has the publisher look again at what waits unwritten.
    pub(crate) fn wake(&self) {
        self.send(PublisherCommand::Wake);
    }

    /// The broker has just been reached: a lost link is made again without waiting for the end of its pause.
    pub(crate) fn reconnect_now(&self) {
        self.send(PublisherCommand::ReconnectNow);
    }

    /// Ends publishing: what waits is answered as not sent, what is in flight as unknown.
    pub(crate) fn stop(&self, within: Duration) {
        self.send(PublisherCommand::Stop { within });
    }

    fn send(&self, command: PublisherCommand) {
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
    fn answer(self, result: PublishResult) {
        // Whoever waited may be gone: then nobody needs the answer.
        match self {
            Self::Consumer { tag, answers, .. } => drop(answers.send(CopyResult { tag, result })),
            Self::Caller(reply) => reply.answer(result),
        }
    }
}
