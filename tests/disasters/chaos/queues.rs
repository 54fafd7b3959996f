//! The queues of the run, and what was taken out of them.

use std::time::Duration;

use parking_lot::Mutex;
use rungmq::{Connection, Queue, Topology};

use crate::harness::observed::{number, unacknowledged};
use crate::harness::wait::Stopwatch;
use crate::harness::work;
use crate::harness::{Got, Row, Vhost, secs, wait_until};

pub(crate) const CLASSIC: &str = "classic";
pub(crate) const QUORUM: &str = "quorum";
/// The source queues.
pub(crate) const SOURCES: [&str; 2] = [CLASSIC, QUORUM];

pub(crate) struct Queues<'a> {
    vhost: &'a Vhost<'a>,
    /// The names of all rungs, dead-letter and parked queues.
    copies: Vec<String>,
    dead: Mutex<Vec<Got>>,
    parked: Mutex<Vec<Got>>,
}

impl<'a> Queues<'a> {
    pub(crate) fn declare(vhost: &'a Vhost<'a>) -> Self {
        let mq = Connection::open(vhost.url()).unwrap();
        let policy = work::policy().unwrap();
        let queue = |name| {
            Queue::new(name)
                .dead_letter()
                .retry(&policy)
                .retry_threshold(work::THRESHOLD)
        };
        Topology::new()
            .queue(queue(CLASSIC).classic())
            // RabbitMQ 4 has a limit of 20, and counts what comes back from killed consumers and
            // lost connections.
            .queue(queue(QUORUM).argument("x-delivery-limit", 10_000))
            .apply(&mq)
            .unwrap();
        mq.close().unwrap();
        let mut copies = vhost.queue_names();
        copies.retain(|name| name.contains('.'));
        assert_eq!(copies.len(), 8, "{copies:?}");
        Self {
            vhost,
            copies,
            dead: Mutex::default(),
            parked: Mutex::default(),
        }
    }

    /// Empties the dead-letter and parked queues, as an operator does.
    pub(crate) fn clear_out(&self) {
        let raw = self.vhost.raw();
        for queue in self.vhost.queue_names() {
            if queue.ends_with(".dlq") {
                self.dead.lock().extend(raw.drain(&queue));
            } else if queue.ends_with(".parked") {
                self.parked.lock().extend(raw.drain(&queue));
            }
        }
    }

    /// What has been taken out of the dead-letter queues, and of the parked ones.
    pub(crate) fn cleared_out(self) -> (Vec<Got>, Vec<Got>) {
        (self.dead.into_inner(), self.parked.into_inner())
    }

    /// The names of the dead-letter and parked queues that are there.
    pub(crate) fn set_aside(&self) -> Vec<String> {
        let mut names = self.vhost.queue_names();
        names.retain(|name| name.ends_with(".dlq") || name.ends_with(".parked"));
        names
    }

    /// Deletes each rung, dead-letter and parked queue that is empty; returns their names.
    pub(crate) fn delete_empty(&self) -> Vec<String> {
        self.vhost.delete_empty(&self.copies)
    }

    /// Waits until no message is in the source queues, in a rung or with a consumer; or what is
    /// left when the limit is over.
    pub(crate) fn settle(&self, limit: Duration) -> Option<String> {
        let clock = Stopwatch::start();
        let mut empty_since = Stopwatch::start();
        let mut left = String::new();
        // Counts of quorum queues lag by seconds.
        wait_until(limit + secs(60), "settled or given up", || {
            let rows = self.vhost.list_queues(&["name", "messages"]);
            let in_queues = |row: &&Row| {
                let name = row["name"].as_str().unwrap();
                !name.ends_with(".dlq") && !name.ends_with(".parked") && number(row, "messages") > 0
            };
            let queues: Vec<_> = rows.iter().filter(in_queues).collect();
            let unacknowledged = unacknowledged(self.vhost);
            if !queues.is_empty() || unacknowledged > 0 {
                left = format!("{queues:?}, unacknowledged {unacknowledged}");
                empty_since = Stopwatch::start();
            } else if empty_since.elapsed() > secs(5) {
                left.clear();
                return true;
            }
            clock.elapsed() > limit
        });
        Some(left).filter(|left| !left.is_empty())
    }
}
