//! Tests of rungs on a broker: delays of any size, in any mix, from several services.

use amiquip::AmqpProperties;
use rungmq::{Ack, Connection, Error, LadderError, Queue, RetryLadder, RetryPolicy, Topology};
use std::sync::Arc;
use std::time::Duration;

use crate::harness::support::{Any, Calls, Declared, connect, connect_counted, consumed};
use crate::harness::wait::Stopwatch;
use crate::harness::{Vhost, secs, table, wait_until};
use parking_lot::Mutex;

const THRESHOLD: Duration = Duration::from_millis(500);

fn fixed(attempts: u32, delay: Duration) -> RetryPolicy {
    RetryPolicy::fixed(attempts, delay).unwrap()
}

/// A message that has been delivered `attempt - 1` times before.
fn attempt(attempt: i32) -> AmqpProperties {
    let headers = table([("x-acemq-attempt", amiquip::AmqpValue::LongInt(attempt))]);
    AmqpProperties::default().with_headers(headers)
}

fn consume_always_failing(mq: &Connection, policy: &RetryPolicy, calls: &Calls) {
    let calls = calls.clone();
    mq.consumer("q")
        .retry_policy(policy.clone())
        .retry_threshold(THRESHOLD)
        .start(move |_: Any| {
            calls.add();
            Ack::retry("no stock")
        })
        .unwrap();
}

#[test]
fn fractions_of_a_second_from_two_services_are_two_rungs() {
    let vhost = Vhost::new();
    vhost.raw().quorum("q");
    let services = [connect(&vhost), connect(&vhost)];
    // One that a whole millisecond does not divide: rounded up, in the name and in the TTL.
    let delays = [
        Duration::from_millis(30_200),
        Duration::from_millis(30_700),
        Duration::from_micros(30_700_001),
        secs(30),
    ];
    for delay in delays {
        for mq in &services {
            mq.consumer("q")
                .retry_policy(fixed(2, delay))
                .start(|_: Any| ())
                .unwrap();
        }
    }
    let declared = Declared::on(&vhost);
    let rungs: Vec<_> = declared
        .queues_with(".retry.")
        .into_iter()
        .map(|name| {
            (
                name,
                declared.queue(name)["arguments"]["x-message-ttl"].clone(),
            )
        })
        .collect();
    assert_eq!(
        rungs,
        [
            ("q.retry.30200ms", 30_200.into()),
            ("q.retry.30700ms", 30_700.into()),
            ("q.retry.30701ms", 30_701.into()),
            ("q.retry.30s", 30_000.into()),
        ]
    );
    for mq in services {
        mq.close().unwrap();
    }
}

#[test]
fn rungs_of_thirty_days_and_of_ten_years_are_exact() {
    let vhost = Vhost::new();
    let mq = connect(&vhost);
    let day = 24 * 60 * 60;
    for (days, name) in [(30, "q.retry.720h"), (3650, "q.retry.87600h")] {
        let policy = fixed(2, Duration::from_secs(days * day));
        let queue = Queue::new("q").retry(&policy);
        Topology::new().queue(queue).apply(&mq).unwrap();
        mq.consumer("q")
            .retry_policy(policy)
            .start(|_: Any| ())
            .unwrap();
        let declared = Declared::on(&vhost);
        let ttl = &declared.queue(name)["arguments"]["x-message-ttl"];
        assert_eq!(*ttl, days * day * 1000);
    }
    mq.close().unwrap();
}

#[test]
fn delay_beyond_the_brokers_limit_declares_nothing() {
    let vhost = Vhost::new();
    vhost.raw().quorum("q");
    let before = Declared::on(&vhost);
    let mq = connect(&vhost);
    let limit = Duration::from_millis(315_360_000_000);
    for policy in [
        fixed(2, limit + Duration::from_millis(1)),
        fixed(2, Duration::MAX),
        RetryPolicy::exponential(100, secs(1), Duration::MAX).unwrap(),
    ] {
        let error = mq
            .consumer("q")
            .retry_policy(policy.clone())
            .start(|_: Any| ())
            .unwrap_err();
        assert!(
            matches!(error, Error::Ladder(LadderError::DelayTooLong(_))),
            "{error:?}"
        );
        assert!(error.to_string().contains("315360000000 ms"), "{error}");
        let queue = Queue::new("q").retry(&policy).dead_letter();
        let error = Topology::new().queue(queue).apply(&mq).unwrap_err();
        assert!(matches!(error, Error::Topology(_)), "{error:?}");
        assert!(error.to_string().contains("315360000000 ms"), "{error}");
        // An in-consumer wait needs no rung, so the delay is accepted.
        mq.consumer("unused")
            .retry_policy(policy)
            .retry_threshold(Duration::ZERO)
            .start(|_: Any| ())
            .unwrap_err()
            .is_not_found()
            .then_some(())
            .unwrap();
    }
    assert_eq!(Declared::on(&vhost), before);
    mq.close().unwrap();
}

#[test]
fn a_hundred_attempts_have_as_many_rungs_as_distinct_delays() {
    let vhost = Vhost::new();
    vhost.raw().quorum("q");
    let mq = connect(&vhost);
    let policy = RetryPolicy::exponential(100, secs(1), secs(60)).unwrap();
    RetryLadder::new("q", &policy, secs(1))
        .unwrap()
        .declare(&mq)
        .unwrap();
    let rungs = [
        "q.retry.16s",
        "q.retry.1m",
        "q.retry.1s",
        "q.retry.2s",
        "q.retry.32s",
        "q.retry.4s",
        "q.retry.8s",
    ];
    let mut declared = Declared::on(&vhost)
        .queues_with(".retry.")
        .join(" ")
        .split(' ')
        .map(str::to_owned)
        .collect::<Vec<_>>();
    declared.sort();
    assert_eq!(declared, rungs);
    mq.close().unwrap();
}

#[test]
fn jitter_creates_no_queues() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.quorum("q");
    let (mq, registry) = connect_counted(&vhost);
    let policy = RetryPolicy::exponential(5, secs(1), secs(60))
        .unwrap()
        .with_jitter(0.5)
        .unwrap();
    mq.consumer("q")
        .retry_policy(policy)
        .retry_threshold(secs(1))
        .concurrency(4)
        .prefetch(50)
        .start(|_: Any| Ack::retry("no stock"))
        .unwrap();
    let rungs = [(1, "1s"), (2, "2s"), (3, "4s"), (4, "8s")];
    for (number, _) in rungs {
        raw.send_all("q", (0..50).map(|n| n.to_string()), &attempt(number));
    }
    wait_until(secs(30), "200 failures wait in rungs", || {
        consumed(&registry, "q", "retried") >= 200
    });
    let names = rungs.map(|(_, delay)| format!("q.retry.{delay}"));
    assert_eq!(Declared::on(&vhost).queues_with(".retry."), names);
    mq.close().unwrap();
}

#[test]
fn jitter_spreads_in_consumer_waits_around_nominal() {
    const MESSAGES: usize = 60;
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    raw.send_all(
        "q",
        (0..MESSAGES).map(|n| n.to_string()),
        &AmqpProperties::default(),
    );
    let mq = connect(&vhost);
    let nominal = secs(1);
    let clock = Stopwatch::start();
    let failed = Arc::new(Mutex::new(vec![Duration::ZERO; MESSAGES]));
    let waits = Arc::new(Mutex::new(Vec::new()));
    let (failures, results) = (failed.clone(), waits.clone());
    mq.consumer("q")
        .retry_policy(fixed(2, nominal).with_jitter(0.5).unwrap())
        .prefetch(MESSAGES as u32)
        .start(move |message: Any| {
            let index = message.payload().as_u64().unwrap() as usize;
            if message.attempt() == 1 {
                failures.lock()[index] = clock.elapsed();
                return Err("no stock");
            }
            let waited = clock.elapsed() - failures.lock()[index];
            results.lock().push(waited);
            Ok(())
        })
        .unwrap();
    wait_until(secs(30), "all came again", || {
        waits.lock().len() == MESSAGES
    });
    let waits = waits.lock();
    let (shortest, longest) = (*waits.iter().min().unwrap(), *waits.iter().max().unwrap());
    assert!(shortest >= nominal / 2, "{shortest:?}");
    assert!(shortest < nominal, "{shortest:?}");
    assert!(longest > nominal, "{longest:?}");
    assert_eq!(Declared::on(&vhost).queues_with(".retry."), [""; 0]);
    mq.close().unwrap();
}

#[test]
fn a_long_wait_does_not_hold_up_a_short_one() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.quorum("q");
    let mq = connect(&vhost);
    let clock = Stopwatch::start();
    let home = Arc::new(Mutex::new(Vec::new()));
    let came = home.clone();
    // The waits are 1, 2, 4 and 6 s.
    mq.consumer("q")
        .retry_policy(RetryPolicy::exponential(5, secs(1), secs(6)).unwrap())
        .retry_threshold(THRESHOLD)
        .start(move |message: Any| {
            if message.exchange() != "acemq.retry" {
                return Ack::retry("no stock");
            }
            came.lock().push((message.attempt(), clock.elapsed()));
            Ack::accept()
        })
        .unwrap();
    raw.send("q", "1", attempt(4));
    raw.wait_for_count("q.retry.6s", 1, secs(10));
    raw.send("q", "2", attempt(1));
    wait_until(secs(20), "both are home", || home.lock().len() == 2);
    let home = home.lock().clone();
    let ([(2, short), (5, long)], true) = (&home[..], true) else {
        panic!("not in the order of their waits: {home:?}");
    };
    assert!(*long - *short > secs(2), "{home:?}");
    mq.close().unwrap();
}

#[test]
fn two_services_with_two_policies_share_a_queue() {
    for swapped in [false, true] {
        let vhost = Vhost::new();
        let raw = vhost.raw();
        raw.quorum("q");
        let (one, other) = (connect(&vhost), connect(&vhost));
        let five = RetryPolicy::exponential(5, secs(1), secs(60)).unwrap();
        let three = fixed(3, secs(2));
        let (first, calls_of_first) = (Calls::default(), Calls::default());
        let mut starts = [(&one, &five, &first), (&other, &three, &calls_of_first)];
        if swapped {
            starts.reverse();
        }
        for (mq, policy, calls) in starts {
            consume_always_failing(mq, policy, calls);
        }
        assert_eq!(
            Declared::on(&vhost).queues_with(".retry."),
            ["q.retry.1s", "q.retry.2s", "q.retry.4s", "q.retry.8s"]
        );

        // Only the service with three attempts is left, and gets the fourth of the other's policy.
        one.close().unwrap();
        raw.wait_for_consumers("q", 1, secs(10));
        raw.send("q", "1", attempt(4));
        let dead = raw.wait_for_get("q.dlq", secs(10));
        assert_eq!(calls_of_first.count(), 1);
        assert_eq!(first.count(), 0);
        assert_eq!(dead.header_number("x-acemq-attempt"), Some(4));
        assert_eq!(
            dead.header_text("x-acemq-error"),
            Some("gave up after 3 attempts: no stock")
        );
        raw.wait_for_count("q", 0, secs(5));
        other.close().unwrap();
    }
}

#[test]
fn a_consumer_that_starts_makes_the_binding_home_again() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.quorum("q");
    let policy = fixed(3, secs(1));
    let mq = connect(&vhost);
    RetryLadder::new("q", &policy, THRESHOLD)
        .unwrap()
        .declare(&mq)
        .unwrap();
    raw.unbind("q", "acemq.retry", "q");
    assert_eq!(Declared::on(&vhost).bound_by_name("acemq.retry", "q"), 0);
    let calls = Calls::default();
    consume_always_failing(&mq, &policy, &calls);
    assert_eq!(Declared::on(&vhost).bound_by_name("acemq.retry", "q"), 1);
    raw.send("q", "1", AmqpProperties::default());
    calls.wait_for(3, secs(20));
    raw.wait_for_count("q.dlq", 1, secs(10));
    mq.close().unwrap();
}

#[test]
fn a_ladder_declares_exchange_rungs_and_the_way_home() {
    let vhost = Vhost::new();
    vhost.raw().quorum("q");
    let mq = connect(&vhost);
    let policy = RetryPolicy::exponential(4, secs(20), secs(60)).unwrap();
    let ladder = RetryLadder::new("q", &policy, secs(30)).unwrap();
    ladder.declare(&mq).unwrap();
    ladder.declare(&mq).unwrap();
    let declared = Declared::on(&vhost);
    let names: Vec<_> = ladder.rungs().iter().map(|rung| rung.queue()).collect();
    assert_eq!(names, ["q.retry.40s", "q.retry.1m"]);
    assert_eq!(
        declared.queues_with("q"),
        ["q", "q.retry.1m", "q.retry.40s"]
    );
    assert!(declared.has_exchange("acemq.retry"));
    // Dead-lettering is not the ladder's.
    assert!(!declared.has_exchange("acemq.dlx"));
    assert_eq!(declared.bindings.len(), 1);
    assert_eq!(declared.bound_by_name("acemq.retry", "q"), 1);

    // Without a rung there is nothing to declare, not even the exchange.
    let vhost = Vhost::new();
    let empty = connect(&vhost);
    let ladder = RetryLadder::new("q", &policy, Duration::ZERO).unwrap();
    assert!(ladder.is_empty());
    ladder.declare(&empty).unwrap();
    assert!(!Declared::on(&vhost).has_exchange("acemq.retry"));
    empty.close().unwrap();
    mq.close().unwrap();
}
