//! Another client of the broker: it looks past the library under test.

use std::cell::RefCell;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use amiquip::{AmqpProperties, ExchangeType, FieldTable};
use rungmq::Headers;
use rungmq::testing::{ExclusiveConsumer, MemoryBroker, Published};

use super::amqp::{headers, kind, properties};
use super::got::{Got, table};
use super::node::{Client, Node};
use super::wait::{let_pass, wait_for, wait_for_value};

/// A client that is not the library's: one connection with one channel. Methods panic when the
/// broker refuses.
#[derive(Debug)]
pub struct Raw {
    node: Node,
    number: u64,
    client: Arc<Client>,
    occupied: RefCell<Vec<ExclusiveConsumer>>,
}

impl Raw {
    #[track_caller]
    pub fn open(url: &str) -> Self {
        Self::try_open(url).unwrap()
    }

    #[track_caller]
    pub fn try_open(url: &str) -> Result<Self, Box<dyn Error>> {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let name = url
            .strip_prefix("memory://")
            .expect("an embedded broker's URL");
        let node = Node::of(name.split('?').next().unwrap());
        if node.is_stopped() {
            return Err("the broker is stopped".into());
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let client = Arc::new(Client::default());
        node.inner().raws.lock().insert(number, Arc::clone(&client));
        Ok(Self {
            node,
            number,
            client,
            occupied: RefCell::default(),
        })
    }

    #[track_caller]
    fn broker(&self) -> &MemoryBroker {
        assert!(
            !self.client.cut.load(Ordering::SeqCst),
            "the raw client's connection is gone"
        );
        self.node.broker()
    }

    // Queues

    #[track_caller]
    pub fn queue(&self, name: &str, arguments: FieldTable) {
        let declared = self.broker().declare_queue(name, &headers(&arguments));
        declared.unwrap();
    }

    #[track_caller]
    pub fn classic(&self, name: &str) {
        self.queue(name, FieldTable::new());
    }

    #[track_caller]
    pub fn quorum(&self, name: &str) {
        self.queue(name, table([("x-queue-type", "quorum")]));
    }

    #[track_caller]
    pub fn delete_queue(&self, name: &str) {
        self.broker().delete_queue(name);
    }

    #[track_caller]
    pub fn purge(&self, queue: &str) -> u32 {
        small(self.broker().purge(queue).unwrap())
    }

    #[track_caller]
    pub fn exists(&self, queue: &str) -> bool {
        self.broker().queue(queue).is_some()
    }

    #[track_caller]
    pub fn count(&self, queue: &str) -> u32 {
        self.try_count(queue)
            .unwrap_or_else(|| panic!("there is no queue {queue}"))
    }

    #[track_caller]
    pub fn try_count(&self, queue: &str) -> Option<u32> {
        Some(small(self.broker().queue(queue)?.ready))
    }

    #[track_caller]
    pub fn consumers(&self, queue: &str) -> u32 {
        let queue = self.broker().queue(queue).expect("the queue exists");
        small(queue.consumers)
    }

    #[track_caller]
    pub fn wait_for_count(&self, queue: &str, n: u32, limit: Duration) {
        wait_for_value(limit, &format!("the count of {queue}"), &Some(n), || {
            self.try_count(queue)
        });
    }

    #[track_caller]
    pub fn wait_for_consumers(&self, queue: &str, n: u32, limit: Duration) {
        let consumers = || Some(small(self.broker().queue(queue)?.consumers));
        wait_for_value(
            limit,
            &format!("the consumers of {queue}"),
            &Some(n),
            consumers,
        );
    }

    // Exchanges

    #[track_caller]
    pub fn exchange(&self, name: &str, exchange_kind: ExchangeType) {
        let declared = self
            .broker()
            .declare_exchange(name, kind(exchange_kind), &Headers::new());
        declared.unwrap();
    }

    #[track_caller]
    pub fn delete_exchange(&self, name: &str) {
        self.broker().delete_exchange(name).unwrap();
    }

    #[track_caller]
    pub fn exchange_exists(&self, name: &str) -> bool {
        let exchanges = self.broker().exchanges();
        exchanges.iter().any(|exchange| exchange.name == name)
    }

    #[track_caller]
    pub fn bind(&self, queue: &str, exchange: &str, routing_key: &str) {
        let bound = self
            .broker()
            .bind(queue, exchange, routing_key, &Headers::new());
        bound.unwrap();
    }

    #[track_caller]
    pub fn unbind(&self, queue: &str, exchange: &str, routing_key: &str) {
        let unbound = self
            .broker()
            .unbind(queue, exchange, routing_key, &Headers::new());
        unbound.unwrap();
    }

    // Messages in

    #[track_caller]
    pub fn send(&self, queue: &str, body: impl AsRef<[u8]>, properties: AmqpProperties) {
        self.publish("", queue, body, properties);
    }

    #[track_caller]
    pub fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        body: impl AsRef<[u8]>,
        properties: AmqpProperties,
    ) {
        let acked = self.try_publish(exchange, routing_key, body, properties);
        assert!(
            acked,
            "the broker refused a message to {exchange:?} {routing_key:?}"
        );
    }

    #[track_caller]
    pub fn try_publish(
        &self,
        exchange: &str,
        routing_key: &str,
        body: impl AsRef<[u8]>,
        properties: AmqpProperties,
    ) -> bool {
        let published = self.write(exchange, routing_key, body.as_ref(), &properties);
        published != Published::Rejected
    }

    #[track_caller]
    pub fn send_all<B: AsRef<[u8]>>(
        &self,
        queue: &str,
        bodies: impl IntoIterator<Item = B>,
        properties: &AmqpProperties,
    ) {
        for body in bodies {
            let published = self.write("", queue, body.as_ref(), properties);
            assert_ne!(published, Published::Rejected, "a message to {queue}");
        }
    }

    /// What is not read yet has no answer.
    #[track_caller]
    pub fn publish_within(&self, limit: Duration, queue: &str, body: &[u8]) -> Option<bool> {
        if !self.node.reads(queue, body) {
            let_pass(limit);
            return None;
        }
        Some(self.try_publish("", queue, body, AmqpProperties::default()))
    }

    #[track_caller]
    pub fn comes_back(&self, exchange: &str, routing_key: &str) -> bool {
        let published = self.write(exchange, routing_key, b"", &AmqpProperties::default());
        published == Published::Unroutable
    }

    #[track_caller]
    fn write(
        &self,
        exchange: &str,
        routing_key: &str,
        body: &[u8],
        amqp: &AmqpProperties,
    ) -> Published {
        let (properties, headers) = properties(amqp);
        let broker = self.broker();
        let published = broker.publish(exchange, routing_key, properties, headers, body);
        published.unwrap()
    }

    // Messages out

    #[track_caller]
    pub fn get(&self, queue: &str) -> Option<Got> {
        self.broker().take(queue).unwrap().map(Got::from)
    }

    #[track_caller]
    pub fn wait_for_get(&self, queue: &str, limit: Duration) -> Got {
        wait_for(limit, &format!("a message in {queue}"), || self.get(queue))
    }

    #[track_caller]
    pub fn drain(&self, queue: &str) -> Vec<Got> {
        std::iter::from_fn(|| self.get(queue)).collect()
    }

    #[track_caller]
    pub fn browse(&self, queue: &str) -> Vec<Got> {
        let messages = self.broker().messages(queue).into_iter();
        // Takes every message and returns it, which marks it redelivered as a real broker does.
        drop(self.broker().consume_exclusively(queue).unwrap());
        messages.map(Got::from).collect()
    }

    #[track_caller]
    pub fn occupy(&self, queue: &str) {
        let occupant = self.broker().consume_exclusively(queue).unwrap();
        self.client.consumes.store(true, Ordering::SeqCst);
        self.occupied.borrow_mut().push(occupant);
    }

    pub fn cut(&self) {
        self.client.cut.store(true, Ordering::SeqCst);
        self.node.inner().raws.lock().remove(&self.number);
        self.occupied.borrow_mut().clear();
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.cut();
    }
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap()
}
