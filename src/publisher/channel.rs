//! One confirm channel: what waits to be written to it, and what is in flight on it.

use super::confirms::OutstandingConfirms;
use super::{PublishJob, Waiter};
use crate::message::delivery::Outgoing;
use crate::message::publish::error::{PublishResult, UnknownCause};
use crate::time::instant::{later, monotonic};
use crate::transport::{Channel, Confirms, Failure, Gone};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Limit of messages in flight on one channel.
const WINDOW: usize = 256;
/// Limit of the bodies in flight on one channel, in bytes. A larger message is sent alone.
const WINDOW_BYTES: usize = 32 * 1024 * 1024;

/// The shortest time between two replacements of a channel that nacks: a full queue nacks on every
/// channel.
const REPLACE_INTERVAL: Duration = Duration::from_secs(5);

/// An open channel in confirm mode.
#[derive(Debug)]
pub(super) struct ConfirmChannel {
    pub(super) channel: Box<dyn Channel>,
    pub(super) confirms: Box<dyn Confirms>,
}

/// Which of the publishing connection's confirm channels. Rule 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelKind {
    /// Copies of consumed messages.
    Copies,
    /// Callers' publishes to verified exchanges.
    Publishes,
    /// Callers' publishes to exchanges that are not verified yet.
    Unverified,
}

impl ChannelKind {
    pub(super) const ALL: [Self; 3] = [Self::Copies, Self::Publishes, Self::Unverified];
}

/// A confirm channel with its queue and its window.
///
/// The queue outlives the channel: unwritten messages wait for the next one. Copies and callers'
/// publishes never share a channel, because a publish to a missing exchange closes its channel for
/// every message on it.
pub(super) struct PublishChannel {
    /// `None` while there is no connection, or the channel is being replaced.
    pub(super) open: Option<ConfirmChannel>,
    waiting: VecDeque<PublishJob>,
    /// Copies in flight when the broker closed the channel with a reply code. One of them is the
    /// cause, so each is written alone.
    retry_individually: VecDeque<PublishJob>,
    /// The message in flight is one of `retry_individually`.
    individual_in_flight: bool,
    /// Whether the open channel has nacked a message.
    nacked: bool,
    /// When the channel was last replaced for a nack.
    replaced_at: Option<Instant>,
    outstanding: OutstandingConfirms<(Waiter, Instant)>,
    confirm_timeout: Duration,
    window: usize,
}

impl PublishChannel {
    pub(super) fn new(confirm_timeout: Duration) -> Self {
        Self {
            window: WINDOW,
            open: None,
            waiting: VecDeque::new(),
            retry_individually: VecDeque::new(),
            individual_in_flight: false,
            nacked: false,
            replaced_at: None,
            outstanding: OutstandingConfirms::new(),
            confirm_timeout,
        }
    }

    /// A channel with a window of one message.
    pub(super) fn one_at_a_time(confirm_timeout: Duration) -> Self {
        Self {
            window: 1,
            ..Self::new(confirm_timeout)
        }
    }

    /// Takes the waiting jobs that match `wanted`, in order.
    pub(super) fn take(&mut self, wanted: impl Fn(&PublishJob) -> bool) -> VecDeque<PublishJob> {
        let (taken, kept) = self.waiting.drain(..).partition(wanted);
        self.waiting = kept;
        taken
    }

    pub(super) fn push(&mut self, job: PublishJob) {
        self.waiting.push_back(job);
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len() + self.retry_individually.len()
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.retry_individually.is_empty()
    }

    /// Whether an answer is awaited. A message that has timed out does not count.
    pub(super) fn has_outstanding(&self) -> bool {
        self.outstanding.len() > self.outstanding.timed_out().0
    }

    /// Whether so many messages have timed out that the channel should be replaced: half the
    /// window, or the one message that all others wait for. Rule 6.
    pub(super) fn too_many_timed_out(&self) -> bool {
        let (timed_out, bytes) = self.outstanding.timed_out();
        timed_out >= self.window.div_ceil(2)
            || bytes >= WINDOW_BYTES / 2
            || self.individual_in_flight && timed_out > 0
    }

    /// Whether the next message should go on a new channel.
    ///
    /// RabbitMQ 3.10 goes on nacking on a channel that had a publish in flight when the leader of
    /// its quorum queue died, until that node is back. Other channels are not affected.
    pub(super) fn needs_new_channel(&self) -> bool {
        self.nacked
            && self.has_waiting()
            && !self.has_outstanding()
            && self
                .replaced_at
                .is_none_or(|at| at.elapsed() >= REPLACE_INTERVAL)
    }

    /// Drops a channel on which no answer is awaited.
    pub(super) fn discard_channel(&mut self) {
        self.take_outstanding();
        self.nacked = false;
        self.replaced_at = Some(monotonic());
    }

    /// The exchange of a message whose limit has passed.
    pub(super) fn timed_out_exchange(&self) -> Option<String> {
        let late = self.outstanding.late(monotonic()).next();
        late.map(|message| message.exchange.clone())
    }

    pub(super) fn next_limit(&self) -> Option<Instant> {
        self.outstanding.next_limit()
    }

    /// Moves every limit, because no confirm arrives while the broker blocks the connection.
    pub(super) fn postpone(&mut self, by: Duration) {
        self.outstanding.postpone(by);
    }

    /// Writes as much as the window allows. `Err` when the channel failed; without a channel
    /// everything stays queued.
    pub(super) fn write(&mut self) -> Result<(), Failure> {
        // Taken out for the call, which borrows the rest of `self`.
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let written = self.write_on(open.channel.as_ref());
        self.open = Some(open);
        written
    }

    fn write_on(&mut self, channel: &dyn Channel) -> Result<(), Failure> {
        while !self.waits_for_consuming_link()
            && let Some(job) = self.next_job()
        {
            // Checked just before the write: Rule 3 for copies, Rule 19 for callers.
            if !is_wanted(&job.waiter) {
                continue;
            }
            // Counted as in flight even when the write fails: part of it may have been sent.
            let written = channel.publish(&job.message);
            let limit = later(monotonic(), self.confirm_timeout);
            self.outstanding
                .written(job.message, limit, (job.waiter, job.since));
            written?;
        }
        Ok(())
    }

    /// Whether the next copy's consuming connection is silent. Rule 3: the copy waits until that
    /// connection is heard again or is dead.
    pub(super) fn waits_for_consuming_link(&self) -> bool {
        let next = self.retry_individually.front().or(self.waiting.front());
        next.is_some_and(|job| match &job.waiter {
            Waiter::Consumer { generation, .. } => generation.is_live() && generation.is_silent(),
            Waiter::Caller(_) => false,
        })
    }

    /// Takes the next job that fits the window.
    fn next_job(&mut self) -> Option<PublishJob> {
        if self.individual_in_flight && !self.outstanding.is_empty() {
            return None;
        }
        self.individual_in_flight = false;
        // The one that closes its channel while it is alone is the cause.
        if !self.retry_individually.is_empty() {
            if !self.outstanding.is_empty() {
                return None;
            }
            self.individual_in_flight = true;
            return self.retry_individually.pop_front();
        }
        let body = self.waiting.front()?.message.body.len();
        let fits =
            self.outstanding.len() < self.window && self.outstanding.bytes() + body <= WINDOW_BYTES;
        // A message larger than the window is sent alone.
        if fits || self.outstanding.is_empty() {
            self.waiting.pop_front()
        } else {
            None
        }
    }

    /// Reads confirms and returns, and passes each result to `answered`.
    pub(super) fn receive(
        &mut self,
        answered: &mut dyn FnMut(Waiter, Instant, PublishResult, Outgoing),
    ) -> ChannelStatus {
        let Some(open) = &self.open else {
            return ChannelStatus::Open;
        };
        let mut confirms = Vec::new();
        let gone = loop {
            match open.confirms.next_confirm() {
                Ok(Some(confirm)) => confirms.push(confirm),
                Ok(None) => break false,
                Err(Gone) => break true,
            }
        };
        // Rule 4: the broker sends a return before the confirm of its message. So the returns of
        // the confirms read above have arrived by now, and are marked before those confirms count.
        let mut stray = false;
        while let Some(returned) = open.confirms.next_return() {
            stray |= !self.outstanding.mark_returned(&returned);
        }
        for confirm in confirms {
            for ((waiter, since), message, result) in self.outstanding.confirm(confirm) {
                self.nacked |= result == PublishResult::Nacked;
                answered(waiter, since, result, message);
            }
        }
        match (gone, stray) {
            (true, _) => ChannelStatus::Gone,
            (false, true) => ChannelStatus::StrayReturn,
            (false, false) => ChannelStatus::Open,
        }
    }

    /// Takes the waiters whose limit has passed.
    pub(super) fn expire(&mut self) -> Vec<(Waiter, Instant)> {
        self.outstanding.expire(monotonic())
    }

    /// Ends the messages in flight after the broker closed the channel over one of them.
    ///
    /// A single message is the cause, and its result says so. Of several, copies are written again,
    /// one at a time; callers' publishes are unknown. A message that has timed out counts, since it
    /// may be the cause.
    pub(super) fn channel_closed(&mut self, text: &str) -> Vec<(Waiter, Instant, PublishResult)> {
        self.open = None;
        self.individual_in_flight = false;
        // Timed-out messages are counted here, but are no longer in the iteration below.
        let alone = self.outstanding.len() == 1;
        let mut ended = Vec::new();
        for ((waiter, since), message) in self.outstanding.take() {
            match waiter {
                _ if alone => {
                    let result = PublishResult::ChannelClosed(text.to_owned());
                    ended.push((waiter, since, result));
                }
                Waiter::Consumer { .. } => self.retry_individually.push_back(PublishJob {
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

    /// Takes every message in flight: none will be answered.
    pub(super) fn take_outstanding(&mut self) -> Vec<(Waiter, Instant)> {
        self.open = None;
        self.individual_in_flight = false;
        self.outstanding
            .take()
            .into_iter()
            .map(|(waiter, _)| waiter)
            .collect()
    }

    /// Removes the unwritten messages that `give_up` selects.
    pub(super) fn withdraw(&mut self, mut give_up: impl FnMut(&Waiter) -> bool) -> Vec<Waiter> {
        let mut withdrawn = Vec::new();
        for queue in [&mut self.retry_individually, &mut self.waiting] {
            let (gone, kept): (VecDeque<PublishJob>, VecDeque<PublishJob>) =
                queue.drain(..).partition(|job| give_up(&job.waiter));
            *queue = kept;
            withdrawn.extend(gone.into_iter().map(|job| job.waiter));
        }
        withdrawn
    }
}

/// The state of a channel after reading from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelStatus {
    Open,
    /// A return matched no message in flight, so the bookkeeping of the channel is not reliable.
    StrayReturn,
    /// It has ended.
    Gone,
}

/// Whether a message may still be written. A copy of a dead generation would duplicate a message
/// that the broker has requeued, and a caller may have given up.
fn is_wanted(waiter: &Waiter) -> bool {
    match waiter {
        Waiter::Consumer { generation, .. } => generation.is_live(),
        Waiter::Caller(reply) => reply.claim(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Generation;
    use crate::message::headers::{Headers, Properties};
    use crate::publisher::CopyResult;
    use crate::transport::fake::{FakeChannel, FakeConfirms};
    use crate::transport::{Activity, Confirm};
    use crossbeam_channel::{Sender, unbounded};
    use std::sync::Arc;

    struct Fixture {
        channel: PublishChannel,
        confirms: Sender<Confirm>,
        generation: Arc<Generation>,
        answers: Sender<CopyResult>,
    }

    impl Fixture {
        fn new(confirm_timeout: Duration) -> Self {
            let mut fixture = Self {
                channel: PublishChannel::new(confirm_timeout),
                confirms: unbounded().0,
                generation: Arc::new(Generation::new(Activity::new(Duration::ZERO))),
                answers: unbounded().0,
            };
            fixture.open();
            fixture
        }

        fn open(&mut self) {
            let (confirms, inbox) = unbounded();
            self.confirms = confirms;
            self.channel.open = Some(ConfirmChannel {
                channel: Box::new(FakeChannel::new()),
                confirms: Box::new(FakeConfirms(inbox)),
            });
        }

        fn push(&mut self, tag: u64) {
            self.channel.push(PublishJob {
                message: Outgoing {
                    exchange: String::new(),
                    routing_key: "q".to_owned(),
                    mandatory: true,
                    properties: Properties::default(),
                    headers: Headers::new(),
                    body: Arc::default(),
                },
                since: monotonic(),
                waiter: Waiter::Consumer {
                    tag,
                    generation: self.generation.clone(),
                    answers: self.answers.clone(),
                },
            });
        }

        fn write(&mut self, tag: u64) {
            self.push(tag);
            self.channel
                .write()
                .expect("a fake channel takes everything");
        }

        fn answer(&mut self, tag: u64, ack: bool) {
            let confirm = Confirm {
                tag,
                multiple: false,
                ack,
            };
            self.confirms.send(confirm).expect("the channel is open");
            self.channel.receive(&mut |_, _, _, _| {});
        }
    }

    #[test]
    fn single_message_causes_close_and_several_are_retried_alone() {
        let mut fixture = Fixture::new(Duration::from_secs(10));
        fixture.write(1);
        let ended = fixture.channel.channel_closed("403");
        assert!(matches!(
            &ended[..],
            [(_, _, PublishResult::ChannelClosed(_))]
        ));
        fixture.open();
        fixture.write(1);
        fixture.write(2);
        assert_eq!(fixture.channel.channel_closed("403").len(), 0);
        fixture.open();
        fixture
            .channel
            .write()
            .expect("a fake channel takes everything");
        assert_eq!(fixture.channel.waiting(), 1);
        assert_eq!(fixture.channel.channel_closed("403").len(), 1);
    }

    #[test]
    fn message_beside_a_timed_out_one_is_not_the_cause() {
        let mut fixture = Fixture::new(Duration::ZERO);
        fixture.write(1);
        assert_eq!(fixture.channel.expire().len(), 1);
        fixture.write(2);
        assert_eq!(fixture.channel.channel_closed("403").len(), 0);
        assert_eq!(fixture.channel.waiting(), 1);
    }

    #[test]
    fn nacking_channel_is_replaced_when_idle_and_not_too_often() {
        let mut fixture = Fixture::new(Duration::from_secs(10));
        fixture.write(1);
        fixture.write(2);
        fixture.answer(1, false);
        fixture.push(3);
        assert!(!fixture.channel.needs_new_channel(), "one is outstanding");
        fixture.answer(2, true);
        assert!(fixture.channel.needs_new_channel());
        fixture.channel.discard_channel();
        fixture.open();
        fixture
            .channel
            .write()
            .expect("a fake channel takes everything");
        fixture.answer(1, false);
        fixture.push(4);
        assert!(
            !fixture.channel.needs_new_channel(),
            "it has just been replaced"
        );
        fixture.channel.replaced_at = monotonic().checked_sub(REPLACE_INTERVAL);
        assert!(fixture.channel.needs_new_channel());
    }
}
