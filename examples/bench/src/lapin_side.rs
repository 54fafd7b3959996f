//! lapin on tokio's threads, as its documentation shows it. lapin sets TCP_NODELAY itself.

use crate::message::{ATTEMPT, ORIGINAL_EXCHANGE, ORIGINAL_ROUTING_KEY};
use crate::{Bench, IN_FLIGHT, PREFETCH, per_second};
use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};
use std::sync::OnceLock;
use std::time::Instant;

/// Acknowledges each message in the task that receives.
pub(crate) fn consume(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    bench.runtime.block_on(async {
        let connection = connect(&bench.url).await?;
        let channel = connection.create_channel().await?;
        let mut consumer = subscribe(&channel, queue).await?;
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

/// Handles up to 256 deliveries at a time in one task: a task for each was 5 to 25 % slower.
pub(crate) fn retry(bench: &Bench, queue: &str, messages: usize) -> Result<f64> {
    bench.runtime.block_on(async {
        let connection = connect(&bench.url).await?;
        let channel = connection.create_channel().await?;
        let copies = connection.create_channel().await?;
        copies
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let mut consumer = subscribe(&channel, queue).await?;
        let start = OnceLock::new();
        consumer
            .by_ref()
            .take(2 * messages)
            .map_err(anyhow::Error::from)
            .try_for_each_concurrent(IN_FLIGHT, async |delivery| {
                start.get_or_init(Instant::now);
                if !is_copy(&delivery) {
                    publish_copy(&copies, queue, &delivery).await?;
                }
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

/// Publishes a mandatory copy and awaits its confirm.
async fn publish_copy(copies: &Channel, queue: &str, delivery: &Delivery) -> Result<()> {
    let options = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let properties = of_copy(delivery);
    let confirm = copies
        .basic_publish("".into(), queue.into(), options, &delivery.data, properties)
        .await?
        .await?;
    ensure!(
        confirm.is_ack() && confirm.take_message().is_none(),
        "a copy was refused or came back"
    );
    Ok(())
}

/// Whether a delivery is a copy, by its attempt.
fn is_copy(delivery: &Delivery) -> bool {
    let headers = delivery.properties.headers().as_ref();
    let attempt = headers.and_then(|headers| headers.inner().get(ATTEMPT));
    matches!(attempt, Some(AMQPValue::LongInt(2)))
}

/// The properties of a delivery's copy.
fn of_copy(delivery: &Delivery) -> BasicProperties {
    let text = |text: &str| AMQPValue::LongString(LongString::from(text));
    let properties = delivery.properties.clone();
    let mut headers = properties.headers().clone().unwrap_or_default();
    headers.insert(ATTEMPT.into(), AMQPValue::LongInt(2));
    headers.insert(ORIGINAL_EXCHANGE.into(), text(delivery.exchange.as_str()));
    headers.insert(
        ORIGINAL_ROUTING_KEY.into(),
        text(delivery.routing_key.as_str()),
    );
    properties.with_headers(headers)
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

/// Returns when the broker has seen every acknowledgement.
async fn finish(channel: &Channel, consumer: &Consumer) -> Result<()> {
    channel
        .basic_cancel(consumer.tag(), BasicCancelOptions::default())
        .await?;
    channel.close(200, "done".into()).await?;
    Ok(())
}
