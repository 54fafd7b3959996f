//! The queues of the runs: made, filled, counted and deleted for every contender alike.

use crate::IN_FLIGHT;
use crate::raw::{Confirmed, connect};
use amiquip::{Channel, Connection, QueueDeclareOptions, QueueDeleteOptions};
use anyhow::{Context, Result};

/// One connection for the whole run, idle while a contender is measured.
pub(crate) struct Admin {
    channel: Channel,
    publisher: Confirmed,
    /// How many messages the publisher has sent, which is also its last delivery tag.
    sent: u64,
    _connection: Connection,
}

impl Admin {
    pub(crate) fn open(url: &str) -> Result<Self> {
        let mut connection = connect(url)?;
        Ok(Self {
            channel: connection.open_channel(None)?,
            publisher: Confirmed::open(&mut connection)?,
            sent: 0,
            _connection: connection,
        })
    }

    pub(crate) fn declare(&self, queue: &str) -> Result<()> {
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        self.channel.queue_declare(queue, options)?;
        Ok(())
    }

    pub(crate) fn fill(&mut self, queue: &str, body: &[u8], messages: usize) -> Result<()> {
        self.sent = self
            .publisher
            .publish_all(queue, body, messages, IN_FLIGHT, self.sent)?;
        Ok(())
    }

    /// How many messages are ready in the queue.
    pub(crate) fn count(&self, queue: &str) -> Result<usize> {
        let queue = self.channel.queue_declare_passive(queue)?;
        let count = queue.declared_message_count().context("no count")?;
        Ok(usize::try_from(count)?)
    }

    /// Deletes the queue and those that a rungmq consumer declares beside it. RabbitMQ also accepts
    /// the name of a queue that does not exist.
    pub(crate) fn delete(&self, queue: &str) -> Result<()> {
        for suffix in ["", ".dlq", ".parked"] {
            self.channel
                .queue_delete(format!("{queue}{suffix}"), QueueDeleteOptions::default())?;
        }
        Ok(())
    }
}
