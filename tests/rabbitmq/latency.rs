//! Small writes leave without delay: nothing waits for a delayed acknowledgement of TCP (40 ms).

use std::ops::Range;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rungmq::{Ack, Message, Queue, RetryPolicy};

use crate::harness::observed::{Observed, now};
use crate::harness::{Vhost, secs, wait_until};

/// Where the stall of a small write that waits for an acknowledgement lies.
const STALL: Range<Duration> = Duration::from_millis(38)..Duration::from_millis(48);
/// As wide, on both sides of it.
const BEFORE: Range<Duration> = Duration::from_millis(28)..Duration::from_millis(38);
const AFTER: Range<Duration> = Duration::from_millis(48)..Duration::from_millis(58);

/// A busy machine may put the trips of one round anywhere; a stall of TCP shows in each round.
const ROUNDS: usize = 3;

#[track_caller]
fn assert_no_stall(round: impl Fn() -> Vec<Duration>) {
    let rounds = (0..ROUNDS).map(|_| stalled(&round()));
    let stalled: Vec<String> = rounds.map_while(Result::err).collect();
    assert!(stalled.len() < ROUNDS, "{stalled:#?}");
}

/// An error, which shows the round, if one trip in a hundred may have met a stall. A busy machine
/// spreads its delays, a stall puts them all in one place.
fn stalled(trips: &[Duration]) -> Result<(), String> {
    let within = |range: &Range<Duration>| trips.iter().filter(|t| range.contains(*t)).count();
    let [before, stalled, after] = [BEFORE, STALL, AFTER].map(|range| within(&range));
    let mut sorted = trips.to_vec();
    sorted.sort();
    let at = |percent: usize| sorted[(sorted.len() - 1) * percent / 100];
    let shown = format!(
        "{stalled} of {} in {STALL:?}, {before} before and {after} after; median {:?}, 99 % {:?}, longest {:?}",
        trips.len(),
        at(50),
        at(99),
        at(100)
    );
    println!("{shown}");
    match stalled * 100 < trips.len() || stalled <= before + after {
        true => Ok(()),
        false => Err(shown),
    }
}

#[test]
fn retries_without_delay_never_stall() {
    assert_no_stall(retry);
}

/// The times between the deliveries of one message.
fn retry() -> Vec<Duration> {
    let vhost = Vhost::new();
    let service = Observed::on(&vhost);
    let policy = RetryPolicy::fixed(3001, Duration::ZERO).unwrap();
    service.declare_queue(Queue::new("q").classic(), &policy);
    let times = std::sync::Arc::new(Mutex::new(Vec::<Instant>::with_capacity(3001)));
    let noted = times.clone();
    let handle = move |message: Message<u64>| {
        noted.lock().push(now());
        if message.attempt() <= 3000 {
            Ack::retry("again")
        } else {
            Ack::accept()
        }
    };
    let consumer = service.mq.consumer("q").retry_policy(policy);
    consumer.start(handle).unwrap();
    service.mq.publish("", "q", &1).unwrap();
    wait_until(secs(120), "3000 retries", || service.consumed("acked") == 1);
    let times = times.lock();
    let trips: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(trips.len(), 3000);
    trips
}

#[test]
fn publishes_of_any_size_never_stall() {
    assert_no_stall(publish);
}

/// The times that publishes take.
fn publish() -> Vec<Duration> {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let service = Observed::on(&vhost);
    service.mq.publish("", "q", &0).unwrap();
    // Around a segment of TCP's, where the last piece is a small one.
    (0..1000)
        .map(|n| {
            let body = "x".repeat(n * 7 % 4000);
            let start = now();
            service.mq.publish("", "q", &body).unwrap();
            start.elapsed()
        })
        .collect()
}
