//! One confirm channel with what waits for it and what is in flight on it.

use super::confirms::{Answer, Tracker};
use super::{Job, Waiter};
use crate::message::delivery::Outgoing;
use crate::message::publish::error::{PublishResult, UnknownCause};
use crate::time::instant::{later, monotonic};
use crate::transport::{Channel, Confirms, Failure, Gone};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// At most this many messages are in flight on one channel,
const WINDOW: usize = 256;
/// and at most this many bytes of bodies; a larger message goes alone.
const WINDOW_BYTES: usize = 32 * 1024 * 1024;

/// How often a channel that refuses is replaced at most: a full queue refuses on every channel.
const RENEW_AFTER: Duration = Duration::from_secs(5);

/// A confirm channel that is ready for use.
#[derive(Debug)]
pub(super) struct ConfirmChannel {
    pub(super) channel: Box<dyn Channel>,
    pub(super) confirms: Box<dyn Confirms>,
}

/// Copies go on one lane and callers' publishes on another: a caller's missing exchange closes its channel for everyone
/// who uses it.
pub(super) struct Lane {
    pub(super) open: Option<ConfirmChannel>,
    waiting: VecDeque<Job>,
    /// Copies whose channel the broker closed with a reply code: one of them is the reason, so each goes alone.
    suspects: VecDeque<Job>,
    suspect_in_flight: bool,
    /// Something was refused on the open channel.
    nacked: bool,
    renewed: Option<Instant>,
    tracker: Tracker<(Waiter, Instant)>,
    confirm_timeout: Duration,
    window: usize,
}

impl Lane {
    pub(super) fn new(confirm_timeout: Duration) -> Self {
        Self {
            window: WINDOW,
            open: None,
            waiting: VecDeque::new(),
            suspects: VecDeque::new(),
            suspect_in_flight: false,
            nacked: false,
            renewed: None,
            tracker: Tracker::new(),
            confirm_timeout,
        }
    }

    /// A lane with one message in flight at a time.
    pub(super) fn one_at_a_time(confirm_timeout: Duration) -> Self {
        Self {
            window: 1,
            ..Self::new(confirm_timeout)
        }
    }

    /// Takes the waiting jobs that `wanted` says, in order.
    pub(super) fn take(&mut self, wanted: impl Fn(&Job) -> bool) -> VecDeque<Job> {
        let (taken, kept) = self.waiting.drain(..).partition(wanted);
        self.waiting = kept;
        taken
    }

    pub(super) fn push(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len() + self.suspects.len()
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.suspects.is_empty()
    }

    /// Whether somebody waits for an answer. Nobody does for a ghost's.
    pub(super) fn has_outstanding(&self) -> bool {
        self.tracker.len() > self.tracker.ghosts().0
    }

    /// Half the window without answers, or the one message that all others wait for: the channel is better given up.
    pub(super) fn is_haunted(&self) -> bool {
        let (ghosts, bytes) = self.tracker.ghosts();
        ghosts >= self.window.div_ceil(2)
            || bytes >= WINDOW_BYTES / 2
            || self.suspect_in_flight && ghosts > 0
    }

    /// Whether the next message had better go on a new channel. RabbitMQ 3.10 goes on refusing on a channel whose publish
    /// met the death of a quorum queue's leader, until that node is back, and on another channel it does not.
    pub(super) fn is_spent(&self) -> bool {
        self.nacked
            && self.has_waiting()
            && !self.has_outstanding()
            && self.renewed.is_none_or(|at| at.elapsed() >= RENEW_AFTER)
    }

    /// Gives up the channel, on which nobody waits for an answer.
    pub(super) fn renew(&mut self) {
        self.lose();
        self.nacked = false;
        self.renewed = Some(monotonic());
    }

    /// The exchange of a message whose limit has passed.
    pub(super) fn late_exchange(&self) -> Option<String> {
        let late = self.tracker.late(monotonic()).next();
        late.map(|message| message.exchange.clone())
    }

    pub(super) fn next_limit(&self) -> Option<Instant> {
        self.tracker.next_limit()
    }

    /// While the broker has blocked the connection no confirm can be expected.
    pub(super) fn postpone(&mut self, by: Duration) {
        self.tracker.postpone(by);
    }

    /// Writes what may be written. `Err` when the channel did not take it; without a channel everything stays.
    pub(super) fn write(&mut self) -> Result<(), Failure> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let written = self.write_on(open.channel.as_ref());
        self.open = Some(open);
        written
    }

    fn write_on(&mut self, channel: &dyn Channel) -> Result<(), Failure> {
        while !self.waits_for_silence()
            && let Some(job) = self.next_job()
        {
            if !is_wanted(&job.waiter) {
                continue;
            }
            let written = channel.publish(&job.message);
            let limit = later(monotonic(), self.confirm_timeout);
            self.tracker
                .written(job.message, limit, (job.waiter, job.since));
            written?;
        }
        Ok(())
    }

    /// Whether the next copy's own connection is silent: it is not written until that has spoken again, or has died.
    pub(super) fn waits_for_silence(&self) -> bool {
        let next = self.suspects.front().or(self.waiting.front());
        next.is_some_and(|job| match &job.waiter {
            Waiter::Consumer { generation, .. } => generation.is_live() && generation.is_silent(),
            Waiter::Caller(_) => false,
        })
    }

    fn next_job(&mut self) -> Option<Job> {
        if self.suspect_in_flight && !self.tracker.is_empty() {
            return None;
        }
        self.suspect_in_flight = false;
        if !self.suspects.is_empty() {
            if !self.tracker.is_empty() {
                return None;
            }
            self.suspect_in_flight = true;
            return self.suspects.pop_front();
        }
        let body = self.waiting.front()?.message.body.len();
        let fits = self.tracker.len() < self.window && self.tracker.bytes() + body <= WINDOW_BYTES;
        if fits || self.tracker.is_empty() {
            self.waiting.pop_front()
        } else {
            None
        }
    }

    /// Takes in what the broker answered; each answer goes to its waiter through `answered`.
    pub(super) fn receive(
        &mut self,
        answered: &mut dyn FnMut(Waiter, Instant, PublishResult, Outgoing),
    ) -> Received {
        let Some(open) = &self.open else {
            return Received::Nothing;
        };
        let mut confirms = Vec::new();
        let gone = loop {
            match open.confirms.next_confirm() {
                Ok(Some(confirm)) => confirms.push(confirm),
                Ok(None) => break false,
                Err(Gone) => break true,
            }
        };
        let mut stray = false;
        while let Some(returned) = open.confirms.next_return() {
            stray |= !self.tracker.mark_returned(&returned);
        }
        for confirm in confirms {
            for ((waiter, since), message, answer) in self.tracker.confirm(confirm) {
                let result = match answer {
                    Answer::Confirmed => PublishResult::Confirmed,
                    Answer::Returned(text) => PublishResult::Unroutable(text),
                    Answer::Nacked => {
                        self.nacked = true;
                        PublishResult::Nacked
                    }
                };
                answered(waiter, since, result, message);
            }
        }
        match (gone, stray) {
            (true, _) => Received::Gone,
            (false, true) => Received::StrayReturn,
            (false, false) => Received::Nothing,
        }
    }

    /// Those whose limit has passed.
    pub(super) fn expire(&mut self) -> Vec<(Waiter, Instant)> {
        self.tracker.expire(monotonic())
    }

    /// The broker closed the channel over one of the messages in flight. A single one is the culprit and is returned;
    /// several copies are tried again, one at a time, and of several callers' publishes nobody knows. A ghost counts: it may
    /// be the culprit too.
    pub(super) fn channel_closed(&mut self, text: &str) -> Vec<(Waiter, Instant, PublishResult)> {
        self.open = None;
        self.suspect_in_flight = false;
        let alone = self.tracker.len() == 1;
        let mut ended = Vec::new();
        for ((waiter, since), message) in self.tracker.take() {
            match waiter {
                _ if alone => {
                    let result = PublishResult::ChannelClosed(text.to_owned());
                    ended.push((waiter, since, result));
                }
                Waiter::Consumer { .. } => self.suspects.push_back(Job {
                    message,
                    since,
                    waiter,
                }),
                Waiter::Caller(_) => {
                    let cause =
                        UnknownCause::Lost(format!("the broker closed the channel: {text}"));
                    ended.push((waiter, since, PublishResult::Unknown(cause)));
                }
            }
        }
        ended
    }

    /// Nothing in flight will be answered any more.
    pub(super) fn lose(&mut self) -> Vec<(Waiter, Instant)> {
        self.open = None;
        self.suspect_in_flight = false;
        self.tracker
            .take()
            .into_iter()
            .map(|(waiter, _)| waiter)
            .collect()
    }

    /// Takes out of the queue what `give_up` says; nothing of it was ever written.
    pub(super) fn withdraw(&mut self, mut give_up: impl FnMut(&Waiter) -> bool) -> Vec<Waiter> {
        let mut withdrawn = Vec::new();
        for queue in [&mut self.suspects, &mut self.waiting] {
            let (gone, kept): (VecDeque<Job>, VecDeque<Job>) =
                queue.drain(..).partition(|job| give_up(&job.waiter));
            *queue = kept;
            withdrawn.extend(gone.into_iter().map(|job| job.waiter));
        }
        withdrawn
    }
}

/// What a look at the channel brought, beside answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Nothing,
    /// A return that matches no message in flight: the channel's bookkeeping cannot be trusted any more.
    StrayReturn,
    Gone,
}

/// Just before the write: the copy of a dead generation would double a message that the broker already has back, and a
/// caller may have given up.
fn is_wanted(waiter: &Waiter) -> bool {
    match waiter {
        Waiter::Consumer { generation, .. } => generation.is_live(),
        Waiter::Caller(reply) => reply.claim(),
    }
}

#[cfg(test)]
mod tests;
