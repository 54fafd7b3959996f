//! Tests of the test clock as a service's tests use it: schedules of hours that repeat exactly, in
//! milliseconds.

#![allow(clippy::disallowed_methods, reason = "what is measured is real time")]

use rungmq::testing::{MemoryBroker, TestClock};
use rungmq::{Ack, Connection, HealthStatus, Message, Queue, RetryPolicy, Topology};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

const fn minutes(n: u64) -> Duration {
    Duration::from_secs(n * 60)
}

const fn hours(n: u64) -> Duration {
    minutes(n * 60)
}

/// When an attempt came, which one, and whether it was delivered again.
type Attempts = Receiver<(Duration, u32, bool)>;

struct Service {
    mq: Connection,
    attempts: Attempts,
}

/// A service that never succeeds.
fn service(broker: &MemoryBroker, clock: &TestClock, policy: &RetryPolicy) -> Service {
    let mq = Connection::builder(broker.url())
        .retry_policy(policy.clone())
        .open()
        .unwrap();
    Topology::new()
        .queue(Queue::new("orders").dead_letter().retry(policy))
        .apply(&mq)
        .unwrap();
    let (seen, attempts) = mpsc::channel();
    let clock = clock.clone();
    mq.consume("orders", move |order: Message<String>| {
        seen.send((clock.elapsed(), order.attempt(), order.redelivered()))
            .unwrap();
        Ack::retry("the warehouse is closed")
    })
    .unwrap();
    Service { mq, attempts }
}

/// Six hours, with the broker restarted after two and the service after three; what came of it.
fn six_hours() -> (Vec<(Duration, u32, bool)>, String, Duration) {
    let clock = TestClock::new();
    let broker = MemoryBroker::with_clock(&clock);
    let policy = RetryPolicy::exponential(20, Duration::from_secs(10), hours(1))
        .unwrap()
        .with_jitter(0.2)
        .unwrap()
        .give_up_after(hours(6));
    let before = service(&broker, &clock, &policy);
    before.mq.publish("", "orders", "two apples").unwrap();
    clock.advance(hours(2));
    broker.restart();
    clock.advance(hours(1));
    before.mq.close().unwrap();
    let after = service(&broker, &clock, &policy);
    clock.advance_until_idle();
    after.mq.close().unwrap();
    let mut attempts: Vec<_> = before.attempts.try_iter().collect();
    attempts.extend(after.attempts.try_iter());
    let dead = broker.messages("orders.dlq");
    assert_eq!(dead.len(), 1);
    let reason = dead[0].envelope().error().unwrap().to_owned();
    (attempts, reason, clock.elapsed())
}

#[test]
fn six_hours_with_two_restarts_repeat_exactly() {
    let (attempts, reason, elapsed) = six_hours();
    let seconds: Vec<u64> = attempts.iter().map(|(at, ..)| at.as_secs()).collect();
    // 10 s doubling to an hour: the first two waits are spent in the consumer, at the middle of
    // their jitter.
    assert_eq!(
        seconds,
        [
            0, 10, 30, 70, 150, 310, 630, 1270, 2550, 5110, 8710, 12310, 15910, 19510, 23110
        ]
    );
    let numbers: Vec<u32> = attempts.iter().map(|(_, attempt, _)| *attempt).collect();
    assert_eq!(numbers, (1..=15).collect::<Vec<_>>());
    assert_eq!(
        reason,
        "gave up on a message older than 21600.0 seconds: the warehouse is closed"
    );
    assert_eq!(elapsed, Duration::from_secs(23_110));
    let first = (attempts, reason, elapsed);
    let mut slowest = Duration::ZERO;
    for _ in 0..1_000 {
        let began = Instant::now();
        assert_eq!(six_hours(), first);
        slowest = slowest.max(began.elapsed());
    }
    println!("the slowest of 1000 took {slowest:?}");
}

#[test]
fn requeues_are_paced_by_the_clock() {
    let clock = TestClock::new();
    let broker = MemoryBroker::with_clock(&clock);
    let policy = RetryPolicy::fixed(2, hours(1)).unwrap();
    let Service { mq, attempts } = service(&broker, &clock, &policy);
    mq.publish("", "orders", "two apples").unwrap();
    broker.nack_next_confirms(4);
    clock.advance_until_idle();
    mq.close().unwrap();
    let attempts: Vec<_> = attempts
        .try_iter()
        .map(|(at, attempt, redelivered)| (at.as_secs(), attempt, redelivered))
        .collect();
    // Back after 1, 2, 4 and 8 s; then the copy lands in its rung for an hour.
    assert_eq!(
        attempts,
        [
            (0, 1, false),
            (1, 1, true),
            (3, 1, true),
            (7, 1, true),
            (15, 1, true),
            (3615, 2, false)
        ]
    );
}

#[test]
fn reconnect_after_hours_comes_within_the_longest_pause() {
    let clock = TestClock::new();
    let broker = MemoryBroker::with_clock(&clock);
    let policy = RetryPolicy::none();
    let Service { mq, attempts } = service(&broker, &clock, &policy);
    mq.publish("", "orders", "one").unwrap();
    clock.advance(hours(1));
    broker.stop();
    clock.advance(hours(1));
    assert_eq!(mq.health().status, HealthStatus::Down);
    let refused = mq.publish("", "orders", "two").unwrap_err();
    assert!(refused.is_refused(), "{refused}");
    broker.start();
    clock.advance(Duration::from_secs(30));
    assert_eq!(mq.health().status, HealthStatus::Up);
    mq.publish("", "orders", "three").unwrap();
    clock.advance(Duration::ZERO);
    let at: Vec<_> = attempts.try_iter().map(|(at, ..)| at).collect();
    assert_eq!(at, [hours(0), hours(2) + Duration::from_secs(30)]);
    assert_eq!(broker.messages("orders.dlq").len(), 2);
    mq.close().unwrap();
}

#[test]
fn wait_ending_while_broker_is_down_reaches_classic_queue_only() {
    for (is_classic, expected) in [(true, vec![1, 2]), (false, vec![1])] {
        let clock = TestClock::new();
        let broker = MemoryBroker::with_clock(&clock);
        let policy = RetryPolicy::fixed(2, hours(1)).unwrap();
        let mq = Connection::open(broker.url()).unwrap();
        let queue = Queue::new("orders").dead_letter().retry(&policy);
        let queue = if is_classic { queue.classic() } else { queue };
        Topology::new().queue(queue).apply(&mq).unwrap();
        let (seen, attempts) = mpsc::channel();
        mq.consumer("orders")
            .retry_policy(policy)
            .start(move |order: Message<String>| {
                seen.send(order.attempt()).unwrap();
                Ack::retry("the warehouse is closed")
            })
            .unwrap();
        mq.publish("", "orders", "two apples").unwrap();
        clock.advance(minutes(30));
        broker.restart();
        clock.advance(minutes(15));
        broker.stop();
        clock.advance(minutes(15));
        broker.start();
        clock.advance(hours(2));
        mq.close().unwrap();
        assert_eq!(attempts.try_iter().collect::<Vec<_>>(), expected);
        let dead = broker.messages("orders.dlq").len();
        assert_eq!(dead, expected.len() - 1);
    }
}

#[test]
fn what_handlers_publish_has_been_handled_too() {
    let clock = TestClock::new();
    let broker = MemoryBroker::with_clock(&clock);
    let mq = Connection::open(broker.url()).unwrap();
    Topology::new()
        .queue(Queue::new("chain").dead_letter())
        .apply(&mq)
        .unwrap();
    let (publisher, (done, numbers)) = (mq.clone(), mpsc::channel());
    mq.consumer("chain")
        .concurrency(4)
        .start(move |left: Message<u32>| {
            done.send(*left.payload()).unwrap();
            if *left.payload() > 0 {
                publisher
                    .publish("", "chain", &(left.payload() - 1))
                    .unwrap();
            }
            Ack::accept()
        })
        .unwrap();
    for start in 1..=20 {
        mq.publish("", "chain", &start).unwrap();
        clock.advance(Duration::ZERO);
        let seen: Vec<u32> = numbers.try_iter().collect();
        assert_eq!(seen, (0..=start).rev().collect::<Vec<_>>());
        let queue = broker.queue("chain").unwrap();
        assert_eq!((queue.ready, queue.unacked), (0, 0));
    }
    mq.close().unwrap();
}

#[test]
fn waits_in_the_consumer_fall_where_the_test_wants_them() {
    for (place, millis) in [(0.0, 800), (0.5, 1000), (1.0, 1200)] {
        let clock = TestClock::new();
        clock.set_jitter(place);
        let broker = MemoryBroker::with_clock(&clock);
        let second = Duration::from_secs(1);
        let policy = RetryPolicy::exponential(2, second, second).unwrap();
        let Service { mq, attempts } = service(&broker, &clock, &policy);
        mq.publish("", "orders", "two apples").unwrap();
        clock.advance_until_idle();
        mq.close().unwrap();
        let at: Vec<_> = attempts.try_iter().map(|(at, ..)| at.as_millis()).collect();
        assert_eq!(at, [0, millis]);
    }
}

#[test]
fn a_handler_that_moves_the_clock_is_told_at_once() {
    let clock = TestClock::new();
    let broker = MemoryBroker::with_clock(&clock);
    let mq = Connection::open(broker.url()).unwrap();
    let topology = Topology::new().queue(Queue::new("q").dead_letter());
    topology.apply(&mq).unwrap();
    let inner = clock.clone();
    mq.consume("q", move |_: Message<String>| inner.advance(hours(1)))
        .unwrap();
    mq.publish("", "q", "two apples").unwrap();
    clock.advance(Duration::ZERO);
    let dead = &broker.messages("q.dlq")[0];
    let reason = dead.envelope().error().unwrap().to_owned();
    assert!(reason.contains("cannot move the clock"), "{reason}");
    mq.close().unwrap();
}

#[test]
fn a_broker_whose_name_is_none_for_a_url_is_not_made() {
    for name in ["", "two words", "a/b", "é"] {
        let error = MemoryBroker::builder().name(name).start().unwrap_err();
        assert!(error.to_string().contains("consists of letters"), "{error}");
        assert!(MemoryBroker::named(name).is_err());
    }
}
