//! Fetches single messages, and moves dead letters back to their queue.

use super::Connection;
use crate::error::Error;
use crate::message::copy::replayed;
use crate::message::delivery::Delivery;
use crate::message::envelope::Envelope;
use crate::message::publish::error::{PublishError, PublishErrorKind};
use crate::message::wire::new_id;
use crate::message::{Message, Opened};
use crate::naming;
use crate::time::threads::Role;
use crate::transport::{Channel, Failure};
use crossbeam_channel::{bounded, select};
use std::sync::Arc;
use std::time::Duration;

impl Connection {
    /// Takes one message out of a queue; `None` when the queue is empty.
    ///
    /// The message is acknowledged before it is returned, so it is lost if the process ends before
    /// it is handled. This is for tools and tests that look into dead-letter and parked queues; a
    /// service [consumes](Self::consume) its messages.
    ///
    /// # Errors
    ///
    /// [`Error::Broker`] when the queue does not exist or may not be read; [`Error::NameTooLong`],
    /// [`Error::Timeout`], [`Error::ConnectionLost`] and [`Error::Closed`]. After a timeout the
    /// message may be lost.
    pub fn pull(&self, queue: &str) -> Result<Option<Message<Vec<u8>>>, Error> {
        naming::check("queue", queue)?;
        let name = queue.to_owned();
        let limit = self.0.core.services.call_timeout;
        let pulled = self.on_channel(
            &format!("pulling from the queue {queue:?}"),
            limit,
            move |channel| {
                let Some(delivery) = channel.get(&name)? else {
                    return Ok(None);
                };
                channel.ack(delivery.tag, false)?;
                Ok(Some(delivery))
            },
        )?;
        Ok(pulled.map(|delivery| {
            let payload = delivery.body.to_vec();
            Message::new(payload, Arc::new(self.read(delivery)))
        }))
    }

    /// Moves the dead letters of a queue back to it, and returns how many it moved.
    ///
    /// Each message starts afresh, with attempt 1, no error, and an age that counts from now; where
    /// it was first published is kept. A message is acknowledged in `{queue}.dlq` only after the
    /// broker has confirmed it in the queue. The call moves at most as many messages as the
    /// dead-letter queue held when it began, so that messages that fail again do not keep it busy.
    ///
    /// # Errors
    ///
    /// The first failure ends the call; messages moved before it stay moved, and none is lost.
    ///
    /// * [`Error::Broker`] when there is no dead-letter queue.
    /// * [`Error::Publish`] when the queue does not take a message. A message whose publish is not
    ///   confirmed stays in the dead-letter queue, and may be in the queue as well. So may one
    ///   whose acknowledgement fails.
    /// * [`Error::NameTooLong`] for the name `{queue}.dlq`.
    /// * [`Error::ConnectionLost`], [`Error::Timeout`] and [`Error::Closed`] as for every call.
    pub fn replay(&self, queue: &str) -> Result<usize, Error> {
        let dead_letters = naming::dead_letter_queue(queue);
        naming::check("dead-letter queue", &dead_letters)?;
        let (source, services) = (queue.to_owned(), self.0.core.services.clone());
        let frame_max = self.0.core.state.uplink()?.link.frame_max();
        let what = format!("replaying the queue {dead_letters:?}");
        let (moved, failed) = self.on_channel(&what, Duration::MAX, move |channel| {
            let mut moved = 0;
            // A message that fails again returns to this queue, so only those here now are moved.
            let held = channel.count(&dead_letters)?;
            while moved < held {
                let Some(delivery) = channel.get(&dead_letters)? else {
                    break;
                };
                let tag = delivery.tag;
                let now = services.clock.epoch_millis();
                let opened = open(delivery, now);
                let message = replayed(&opened, &source, now, frame_max);
                match PublishErrorKind::of(services.publisher.publish(message)) {
                    None => channel.ack(tag, false)?,
                    Some(kind) => {
                        // The requeue keeps the message even if the broker has the copy: a
                        // duplicate is better than a loss.
                        channel.nack(tag)?;
                        return Ok((moved, Some(kind)));
                    }
                }
                moved += 1;
            }
            Ok((moved, None))
        })?;
        match failed {
            None => Ok(moved),
            Some(kind) => Err(PublishError::new(kind, None).into()),
        }
    }

    fn read(&self, delivery: Delivery) -> Opened {
        open(delivery, self.0.core.services.clock.epoch_millis())
    }

    /// Runs `work` on a channel and a thread of its own, and waits for it at most `limit`.
    ///
    /// A call to the broker cannot be interrupted, so a caller's thread never makes one.
    fn on_channel<R: Send + 'static>(
        &self,
        what: &str,
        limit: Duration,
        work: impl FnOnce(&dyn Channel) -> Result<R, Failure> + Send + 'static,
    ) -> Result<R, Error> {
        let core = &self.0.core;
        let link = core.state.uplink()?.link;
        let (reply, answer) = bounded(1);
        let (opening, open_limit) = (link.clone(), core.services.call_timeout);
        let errand = move || {
            let result = opening.open_channel(open_limit).and_then(|channel| {
                let done = work(channel.as_ref())?;
                channel.close()?;
                Ok(done)
            });
            // The caller may have timed out and dropped the receiver.
            let _ = reply.send(result);
        };
        let clock = &core.services.clock;
        clock.spawn(Role::Owner, "rungmq-errand".to_owned(), Box::new(errand))?;
        // The thread cannot be interrupted: after a timeout it ends with its call.
        select! {
            recv(answer) -> result => result.unwrap_or_else(|_| Err(link.lost())),
            recv(link.gone()) -> _ => Err(link.lost()),
            default(limit) => Err(Failure::TimedOut),
        }
        .map_err(|failure| Error::broker(what.to_owned(), failure))
    }
}

fn open(delivery: Delivery, now_millis: i64) -> Opened {
    let envelope = Envelope::read(
        &delivery.properties,
        &delivery.headers,
        &delivery.routing_key,
        now_millis,
        new_id,
    );
    Opened::new(delivery, envelope)
}
