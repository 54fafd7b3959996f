//! lapin on tokio's threads, as its own documentation shows it. lapin sets TCP_NODELAY itself.

use crate::{Bench, IN_FLIGHT, PREFETCH, Queues, per_second};
use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt};
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, Consumer};
use std::sync::{LazyLock, OnceLock};
use std::time::Instant;
use tokio::runtime::{Builder, Runtime};

/// One runtime for the whole run: starting its threads is not part of what is measured.
static RUNTIME: LazyLock<std::io::Result<Runtime>> =
    LazyLock::new(|| Builder::new_multi_thread().enable_all().build());

/// One acknowledgement a message, in the task that receives.
pub(crate) fn consume(bench: &Bench, queues: &Queues, messages: usize) -> Result<f64> {
    on_runtime(async {
        let connection = connect(&bench.url).await?;
        let channel = connection.create_channel().await?;
        let mut consumer = subscribe(&channel, &queues.source).await?;
        let mut start = None;
        for _ in 0..messages {
            let delivery = consumer.next().await.context("the consumer ended")??;
            start.get_or_insert_with(Instant::now);
            delivery.ack(BasicAckOptions::default()).await?;
        }
        finish(&channel, &consumer).await?;
        let rate = per_second(messages, start.context("no message")?);
        connection.close(200, "done".into()).await?;
        Ok(rate)
    })
}

/// Up to 256 messages at a time: publish a mandatory copy, await its confirm, acknowledge the original.
///
/// In one task: a task of its own for each message was 5 to 25 % slower.
pub(crate) fn retry(bench: &Bench, queues: &Queues, messages: usize) -> Result<f64> {
    on_runtime(async {
        let connection = connect(&bench.url).await?;
        let channel = connection.create_channel().await?;
        let copies = connection.create_channel().await?;
        copies
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let mut consumer = subscribe(&channel, &queues.source).await?;
        let start = OnceLock::new();
        consumer
            .by_ref()
            .take(messages)
            .map_err(anyhow::Error::from)
            .try_for_each_concurrent(IN_FLIGHT, async |delivery| {
                start.get_or_init(Instant::now);
                let options = BasicPublishOptions {
                    mandatory: true,
                    ..BasicPublishOptions::default()
                };
                let queue = queues.copies.as_str().into();
                let confirm = copies
                    .basic_publish(
                        "".into(),
                        queue,
                        options,
                        &delivery.data,
                        delivery.properties.clone(),
                    )
                    .await?
                    .await?;
                ensure!(
                    confirm.is_ack() && confirm.take_message().is_none(),
                    "a copy was refused or came back"
                );
                delivery.ack(BasicAckOptions::default()).await?;
                Ok(())
            })
            .await?;
        finish(&channel, &consumer).await?;
        let rate = per_second(messages, *start.get().context("no message")?);
        connection.close(200, "done".into()).await?;
        Ok(rate)
    })
}

fn on_runtime<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    RUNTIME
        .as_ref()
        .context("tokio did not start")?
        .block_on(work)
}

async fn connect(url: &str) -> Result<Connection> {
    Ok(Connection::connect(url, ConnectionProperties::default()).await?)
}

async fn subscribe(channel: &Channel, queue: &str) -> Result<Consumer> {
    channel
        .basic_qos(PREFETCH, BasicQosOptions::default())
        .await?;
    let options = BasicConsumeOptions::default();
    Ok(channel
        .basic_consume(queue.into(), "".into(), options, FieldTable::default())
        .await?)
}

/// Until the broker has seen every acknowledgement.
async fn finish(channel: &Channel, consumer: &Consumer) -> Result<()> {
    channel
        .basic_cancel(consumer.tag(), BasicCancelOptions::default())
        .await?;
    channel.close(200, "done".into()).await?;
    Ok(())
}
