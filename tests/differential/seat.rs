//! One channel with the thread that owns it, as the library has them too: subscriptions borrow their channel.

use crate::message::delivery::{Delivery, Outgoing, Returned};
use crate::transport::{Channel, Confirm, Confirms, Failure, Incoming, Subscription};
use crossbeam_channel::{Receiver, Select, Sender, bounded, unbounded};
use std::fmt;
use std::time::Duration;

/// How long a broker may take for a confirm.
const LIMIT: Duration = Duration::from_secs(60);

/// What has been heard of a consumer.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all of them are deliveries"
)]
pub(super) enum Heard {
    Delivery(Delivery),
    Cancelled,
    Ended(Failure),
}

/// What became of a publish.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) confirm: Result<Confirm, Failure>,
    pub(super) returned: Vec<Returned>,
}

type Work = Box<dyn for<'a> FnOnce(&'a dyn Channel, &mut Consumers<'a>, &dyn Confirms) + Send>;

/// The consumers of a channel, by number.
type Consumers<'a> = Vec<(usize, Box<dyn Subscription + 'a>)>;

/// A channel. Calls run on its thread, one after the other.
pub(super) struct Seat {
    work: Sender<Work>,
    closed: Receiver<Result<(), Failure>>,
}

impl Seat {
    /// Makes it a confirm channel.
    pub(super) fn open(channel: Box<dyn Channel>) -> Result<Self, Failure> {
        let confirms = channel.confirms()?;
        let (work, tasks) = unbounded::<Work>();
        let (closing, closed) = bounded(1);
        std::thread::spawn(move || {
            let mut consumers: Consumers<'_> = Vec::new();
            for task in tasks {
                task(&*channel, &mut consumers, &*confirms);
            }
            // Dropped, they would cancel first.
            std::mem::forget(consumers);
            let _ = closing.send(channel.close());
            drop(confirms);
        });
        Ok(Self { work, closed })
    }

    fn call<T: Send + 'static>(
        &self,
        task: impl for<'a> FnOnce(&'a dyn Channel, &mut Consumers<'a>, &dyn Confirms) -> T
        + Send
        + 'static,
    ) -> T {
        let (answer, answered) = bounded(1);
        let work: Work = Box::new(move |channel, consumers, confirms| {
            let _ = answer.send(task(channel, consumers, confirms));
        });
        self.work.send(work).unwrap();
        answered.recv().unwrap()
    }

    /// Runs one call of the seam.
    pub(super) fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Channel) -> T + Send + 'static,
    ) -> T {
        self.call(move |channel, _, _| call(channel))
    }

    /// Settles, and waits until the broker has read it.
    pub(super) fn settle(
        &self,
        settle: impl FnOnce(&dyn Channel) -> Result<(), Failure> + Send + 'static,
    ) -> Result<(), Failure> {
        self.with(move |channel| {
            settle(channel)?;
            channel.set_prefetch(0)
        })
    }

    pub(super) fn publish(&self, message: Outgoing) -> Published {
        self.call(move |channel, _, confirms| {
            let confirm = channel.publish(&message).and_then(|()| {
                confirm(confirms)
                    // The channel is closed; the next call says why.
                    .unwrap_or_else(|| Err(channel.set_prefetch(0).unwrap_err()))
            });
            let returned = std::iter::from_fn(|| confirms.next_return()).collect();
            Published { confirm, returned }
        })
    }

    pub(super) fn subscribe(
        &self,
        queue: &str,
        prefetch: u16,
        number: usize,
    ) -> Result<(), Failure> {
        let queue = queue.to_owned();
        self.call(move |channel, consumers, _| {
            channel.set_prefetch(prefetch)?;
            let subscription = channel.subscribe(&queue)?;
            consumers.push((number, subscription));
            Ok(())
        })
    }

    /// Cancels the consumer with that number, and returns what it was still handed.
    pub(super) fn cancel(&self, number: usize) -> Result<Vec<Delivery>, Failure> {
        self.call(move |_, consumers, _| {
            let Some(at) = consumers.iter().position(|(other, _)| *other == number) else {
                return Ok(Vec::new());
            };
            let (_, consumer) = consumers.remove(at);
            consumer.cancel()?;
            let mut late = Vec::new();
            loop {
                match next(&*consumer) {
                    Incoming::Delivery(delivery) => late.push(delivery),
                    Incoming::CancelOk | Incoming::Cancelled => return Ok(late),
                    Incoming::Ended(failure) => return Err(failure),
                }
            }
        })
    }

    /// What the consumers have heard meanwhile, by their numbers.
    pub(super) fn heard(&self) -> Vec<(usize, Heard)> {
        self.call(|_, consumers, _| {
            let mut heard = Vec::new();
            consumers.retain(|(number, consumer)| {
                while let Some(incoming) = consumer.next() {
                    let (what, goes_on) = match incoming {
                        Incoming::Delivery(delivery) => (Heard::Delivery(delivery), true),
                        Incoming::Cancelled => (Heard::Cancelled, false),
                        Incoming::CancelOk => continue,
                        Incoming::Ended(failure) => (Heard::Ended(failure), false),
                    };
                    heard.push((*number, what));
                    if !goes_on {
                        return false;
                    }
                }
                true
            });
            heard
        })
    }

    /// Closes the channel with its consumers on it.
    pub(super) fn close(self) -> Result<(), Failure> {
        drop(self.work);
        self.closed.recv().unwrap()
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seat")
    }
}

/// Waits for a confirm; `None` when the channel is gone.
fn confirm(confirms: &dyn Confirms) -> Option<Result<Confirm, Failure>> {
    loop {
        match confirms.next_confirm() {
            Ok(Some(confirm)) => return Some(Ok(confirm)),
            Ok(None) => {}
            Err(_) => return None,
        }
        let mut select = Select::new();
        confirms.watch(&mut select);
        if select.ready_timeout(LIMIT).is_err() {
            return Some(Err(Failure::TimedOut));
        }
    }
}

fn next(consumer: &dyn Subscription) -> Incoming {
    loop {
        if let Some(incoming) = consumer.next() {
            return incoming;
        }
        let mut select = Select::new();
        consumer.watch(&mut select);
        if select.ready_timeout(LIMIT).is_err() {
            return Incoming::Ended(Failure::TimedOut);
        }
    }
}
