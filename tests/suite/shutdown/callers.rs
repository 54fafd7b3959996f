//! Tests of close, cancel and wait from any thread: from handlers, from several threads,
//! repeatedly.

use std::time::Duration;

use rungmq::{Ack, Error};

use super::*;
use crate::harness::holds_for;
use crate::harness::wait::timed;

/// What a handler does with its own consumer's connection.
type Deed = fn(&Connection, &Consumer) -> Result<(), Error>;

/// A handler does `deed` while nothing else runs, and accepts.
#[track_caller]
fn inside_a_handler(deed: Deed) {
    let stage = Stage::new();
    let (mq, done) = (stage.mq.clone(), Log::default());
    let itself: Arc<Mutex<Option<Consumer>>> = Arc::default();
    let (log, own) = (done.clone(), itself.clone());
    let consumer = stage
        .mq
        .consume(Q, move |_: Any| {
            let own = own.lock().clone().unwrap();
            let (result, took) = timed(|| deed(&mq, &own));
            log.add(format!("{result:?}, in time: {}", took < secs(5)));
        })
        .unwrap();
    *itself.lock() = Some(consumer.clone());
    stage.send(Q, "1", 2);
    done.wait_for(1);
    assert_eq!(done.lines(), ["Ok(()), in time: true"]);
    // The delivery whose handler called is settled behind the call.
    stage.wait_for_outcomes(Q, "acked", 1);
    stage.raw.wait_for_consumers(Q, 0, LIMIT);
    wait_until(LIMIT, "nothing is in flight", || consumer.in_flight() == 0);
    assert_eq!(stage.raw.count(Q), 0);
    itself.lock().take();
}

#[test]
fn close_from_inside_a_handler_does_not_wait_for_that_handler() {
    inside_a_handler(|mq, _| mq.close_within(secs(20)));
}

#[test]
fn close_from_inside_a_handler_may_have_no_limit() {
    inside_a_handler(|mq, _| mq.close_within(Duration::MAX));
}

#[test]
fn cancel_from_inside_a_handler_does_not_wait_for_that_handler() {
    inside_a_handler(|_, consumer| consumer.cancel(secs(20)));
}

#[test]
fn cancel_then_close_from_inside_a_handler() {
    inside_a_handler(|mq, consumer| {
        consumer.cancel(secs(20))?;
        mq.close_within(secs(20))?;
        mq.close_within(secs(20))
    });
}

#[test]
fn close_in_handler_with_zero_timeout_leaves_its_delivery() {
    let stage = Stage::new();
    let (mq, done) = (stage.mq.clone(), Log::default());
    let log = done.clone();
    stage
        .mq
        .consume(Q, move |_: Any| {
            log.add(format!("{:?}", mq.close_within(Duration::ZERO)))
        })
        .unwrap();
    stage.send(Q, "1", 2);
    done.wait_for(1);
    assert_eq!(done.lines(), ["Ok(())"]);
    stage.raw.wait_for_consumers(Q, 0, LIMIT);
    stage.mq.wait().unwrap();
}

#[test]
fn two_handlers_close_at_once_and_a_thread_too() {
    let stage = Stage::new();
    let (mq, done, gate) = (stage.mq.clone(), Log::default(), Gate::new());
    let (log, held) = (done.clone(), gate.held());
    let consumer = stage
        .mq
        .consumer(Q)
        .concurrency(2)
        .start(move |_: Any| {
            held.wait();
            log.add(format!("{:?}", mq.close_within(secs(20))));
        })
        .unwrap();
    stage.send(Q, "1", 1);
    stage.send(Q, "2", 1);
    wait_until(LIMIT, "both run", || consumer.in_flight() == 2);
    gate.open();
    let (result, took) = timed(|| stage.mq.close_within(secs(20)));
    result.unwrap();
    assert!(took < secs(10), "{took:?}");
    done.wait_for(2);
    assert_eq!(done.lines(), ["Ok(())", "Ok(())"]);
    stage.wait_for_outcomes(Q, "acked", 2);
    stage.raw.wait_for_consumers(Q, 0, LIMIT);
    assert_eq!(stage.raw.count(Q), 0);
}

#[test]
fn a_close_inside_a_handler_waits_for_the_other_handlers() {
    let stage = Stage::new();
    let (mq, done, gate) = (stage.mq.clone(), Log::default(), Gate::new());
    let (log, held) = (done.clone(), gate.held());
    let consumer = stage
        .mq
        .consumer(Q)
        .concurrency(2)
        .start(move |message: Any| match message.id() {
            "closes" => log.add(format!("{:?}", mq.close_within(secs(20)))),
            _ => held.wait(),
        })
        .unwrap();
    stage.send(Q, "runs", 1);
    wait_until(LIMIT, "one runs", || consumer.in_flight() == 1);
    stage.send(Q, "closes", 1);
    wait_until(LIMIT, "the close has begun", || !stage.mq.is_running());
    holds_for(secs(0.3), "the close waits", || done.len() == 0);
    gate.open();
    done.wait_for(1);
    assert_eq!(done.lines(), ["Ok(())"]);
    stage.wait_for_outcomes(Q, "acked", 2);
}

#[test]
fn handler_waiting_for_the_connection_holds_up_no_close() {
    let stage = Stage::new();
    let (mq, done) = (stage.mq.clone(), Log::default());
    let log = done.clone();
    let consumer = stage
        .mq
        .consume(Q, move |_: Any| log.add(format!("{:?}", mq.wait())))
        .unwrap();
    stage.send(Q, "1", 1);
    wait_until(LIMIT, "it runs", || consumer.in_flight() == 1);
    let (result, took) = timed(|| stage.mq.close_within(secs(20)));
    result.unwrap();
    assert!(took < secs(10), "{took:?}");
    done.wait_for(1);
    assert_eq!(done.lines(), ["Ok(())"]);
    stage.wait_for_outcomes(Q, "acked", 1);
}

/// A main thread that returns from `wait` ends the process: what a handler did right after its
/// close would be lost.
#[test]
fn wait_lasts_until_the_closing_handler_is_settled() {
    let stage = Stage::new();
    let (mq, gate, closed) = (stage.mq.clone(), Gate::new(), Log::default());
    let (held, log) = (gate.held(), closed.clone());
    stage
        .mq
        .consume(Q, move |_: Any| {
            mq.close_within(secs(20)).unwrap();
            log.add("closed");
            held.wait();
        })
        .unwrap();
    let (main, waited) = (stage.mq.clone(), Log::default());
    let log = waited.clone();
    let waiting = thread::spawn(move || {
        let result = main.wait();
        log.add("waited");
        result
    });
    stage.send(Q, "1", 1);
    closed.wait_for(1);
    holds_for(secs(0.3), "wait goes on", || waited.len() == 0);
    gate.open();
    waiting.join().unwrap().unwrap();
    assert_eq!(stage.outcomes(Q, "acked"), 1);
    assert_eq!(stage.raw.count(Q), 0);
}

#[test]
fn wait_returns_when_another_thread_has_closed() {
    let stage = Stage::new();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let mq = stage.mq.clone();
            thread::spawn(move || mq.wait())
        })
        .collect();
    holds_for(secs(0.1), "they wait", || {
        waiters.iter().all(|waiter| !waiter.is_finished())
    });
    stage.mq.close().unwrap();
    for waiter in waiters {
        waiter.join().unwrap().unwrap();
    }
    stage.mq.wait().unwrap();
}

#[test]
fn closing_from_two_threads_returns_to_both_when_it_is_done() {
    let stage = Stage::new();
    let (_, gate) = stage.held_delivery(Ack::accept);
    let closes = [closing(&stage.mq, secs(20)), closing(&stage.mq, secs(20))];
    holds_for(secs(0.3), "both wait", || {
        closes.iter().all(|close| !close.is_finished())
    });
    gate.open();
    for close in closes {
        close.join().unwrap().unwrap();
    }
    assert_eq!(stage.outcomes(Q, "acked"), 1);
}

#[test]
fn second_close_and_cancel_succeed_after_a_failed_one() {
    let stage = Stage::new();
    let (consumer, _gate) = stage.held_delivery(Ack::accept);
    drain_timeout(stage.mq.close_within(Duration::ZERO));
    in_time(Duration::ZERO, || {
        stage.mq.close().unwrap();
        stage.mq.close_within(Duration::MAX).unwrap();
        stage.mq.wait().unwrap();
        consumer.cancel(secs(20)).unwrap_or_else(|error| {
            // Its handler still runs, and this is the first cancel.
            assert!(error.drain_timeout().is_some(), "{error}");
        });
        consumer.cancel(secs(20)).unwrap();
    });
    assert!(matches!(
        stage.mq.consume(Q, |_: Any| {}),
        Err(Error::Closed)
    ));
    assert!(stage.mq.publish("", Q, &1).is_err());
}

#[test]
fn two_threads_cancel_at_once() {
    let stage = Stage::new();
    let (consumer, gate) = stage.held_delivery(Ack::accept);
    let cancels = [
        cancelling(&consumer, secs(20)),
        cancelling(&consumer, secs(20)),
    ];
    gate.open();
    for cancel in cancels {
        cancel.join().unwrap().unwrap();
    }
    stage.wait_for_outcomes(Q, "acked", 1);
    assert!(stage.mq.is_running());
}

#[test]
fn a_shorter_deadline_given_later_shortens_the_drain_that_runs() {
    for longer in [secs(60), Duration::MAX] {
        let stage = Stage::new();
        let _held = stage.held_delivery(Ack::accept);
        let long = closing(&stage.mq, longer);
        let short = in_time(secs(0.5), || stage.mq.close_within(secs(0.5)));
        let both = [long.join().unwrap(), short];
        // One of the two is told what was left, by the deadline that counted.
        let timeouts: Vec<_> = both
            .into_iter()
            .filter(Result::is_err)
            .map(drain_timeout)
            .collect();
        assert_eq!(timeouts.len(), 1);
        assert_eq!(timeouts[0].timeout(), secs(0.5));
        stage.raw.wait_for_count(Q, 1, LIMIT);
    }
}

#[test]
fn a_longer_deadline_given_later_changes_nothing() {
    let stage = Stage::new();
    let _held = stage.held_delivery(Ack::accept);
    let short = closing(&stage.mq, secs(1));
    in_time(secs(1), || drop(stage.mq.close_within(secs(600))));
    drop(short.join().unwrap());
}

#[test]
fn a_close_shortens_a_cancel_that_runs() {
    let stage = Stage::new();
    let (consumer, _gate) = stage.held_delivery(Ack::accept);
    let cancelling = cancelling(&consumer, Duration::MAX);
    in_time(secs(0.5), || drop(stage.mq.close_within(secs(0.5))));
    let timeout = drain_timeout(cancelling.join().unwrap());
    assert_eq!(stranded(&timeout), [(Q, 1)]);
    assert_eq!(timeout.timeout(), secs(0.5));
    stage.raw.wait_for_count(Q, 1, LIMIT);
}

#[test]
fn handler_may_publish_until_the_deadline_and_not_after() {
    let stage = Stage::new();
    stage.raw.classic("out");
    let (before, after) = (Gate::new(), Gate::new());
    let (first, second) = (before.held(), after.held());
    let (mq, log) = (stage.mq.clone(), Log::default());
    let done = log.clone();
    let consumer = stage
        .mq
        .consumer(Q)
        .concurrency(2)
        .start(move |message: Any| {
            match message.id() {
                "before" => first.wait(),
                _ => second.wait(),
            }
            let result = mq.publish("", "out", message.id());
            done.add(match result {
                Ok(_) => "published",
                Err(error) if error.is_refused() => "refused",
                Err(_) => "unknown",
            });
        })
        .unwrap();
    stage.send(Q, "before", 1);
    stage.send(Q, "after", 1);
    wait_until(LIMIT, "both run", || consumer.in_flight() == 2);
    let closing = closing(&stage.mq, secs(3));
    before.open();
    stage.raw.wait_for_count("out", 1, LIMIT);
    let timeout = drain_timeout(closing.join().unwrap());
    assert_eq!(timeout.deliveries()[0].message_id, "after");
    assert_eq!(stranded(&timeout), [(Q, 1)]);
    after.open();
    log.wait_for(2);
    assert_eq!(log.lines(), ["published", "refused"]);
    stage.comes_back(Q, &[("after", 1)]);
    assert_eq!(stage.raw.count("out"), 1);
}
