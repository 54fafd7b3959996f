//! What a process costs, and what it leaves behind: memory, threads, channels, and its messages
//! when it is killed.

use std::process::Command;

use rungmq::{Ack, Connection, Message, Publish};

use crate::harness::observed::{Observed, SOON, fixed, unacknowledged};
use crate::harness::wait::{Stopwatch, wait_for_value};
use crate::harness::worker_process::{WorkerProcess, status};
use crate::harness::{Vhost, secs, wait_until};

#[test]
fn killed_process_keeps_the_attempt_of_its_message() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let service = Observed::on(&vhost);
    let options = ["--policy", "fixed:3:1s", "--threshold", "500ms"];
    let hangs = [
        &options[..],
        &["--declare", "--answer", "fail-first:1", "q"],
    ]
    .concat();
    let mut worker = WorkerProcess::start(&vhost.url(), &hangs);
    let id = service.mq.publish("", "q", &7).unwrap().id().to_owned();
    let first = worker.next("delivery");
    assert_eq!(
        (&first["attempt"], &first["redelivered"]),
        (&1.into(), &false.into())
    );
    // Attempt 2 is the one that is killed: its count must not start anew.
    wait_until(SOON, "it waits in its rung", || {
        raw.count("q.retry.1s") == 1 && unacknowledged(&vhost) == 0
    });
    worker.kill_9();
    let slow = [&options[..], &["--work", "60s", "q"]].concat();
    let mut worker = WorkerProcess::start(&vhost.url(), &slow);
    let killed = worker.next("delivery");
    assert_eq!(
        (&killed["attempt"], &killed["redelivered"]),
        (&2.into(), &false.into())
    );
    worker.kill_9();

    let quick = [&options[..], &["q"]].concat();
    let mut worker = WorkerProcess::start(&vhost.url(), &quick);
    let again = worker.next("delivery");
    assert_eq!(again["id"], id);
    assert_eq!(
        (&again["attempt"], &again["redelivered"]),
        (&2.into(), &true.into())
    );
    worker.next("handled");
    let closed = worker.terminate();
    assert_eq!(closed["error"], serde_json::Value::Null);
    assert_eq!(
        closed["metrics"]["acemq.consume.total{queue=q,outcome=acked}"],
        1
    );
    assert_eq!(
        raw.count("q") + raw.count("q.retry.1s") + raw.count("q.dlq"),
        0
    );
}

#[test]
fn memory_is_bounded_by_the_prefetch_and_not_by_the_queue() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let service = Observed::on(&vhost);
    // 160 MB in all, of which 50 messages are 400 kB.
    let body = "x".repeat(8_000);
    let message = Publish::json(&body).unwrap().routing_key("q");
    for result in service.mq.publish_all((0..20_000).map(|_| message.clone())) {
        result.unwrap();
    }
    let args = ["--prefetch", "50", "--concurrency", "4", "q"];
    let mut worker = WorkerProcess::start(&vhost.url(), &args);
    let mut largest = 0;
    wait_until(secs(120), "20 000 messages", || {
        largest = largest.max(worker.status("VmRSS"));
        let row = vhost.queue("q", &["messages"]).unwrap();
        row["messages"] == 0
    });
    let closed = worker.terminate();
    let handled = &closed["metrics"]["acemq.consume.total{queue=q,outcome=acked}"];
    assert_eq!(handled, 20_000);
    println!("{largest} kB");
    assert!(largest < 60_000, "{largest} kB");
}

/// Set for the run of this binary that is measured: the tests beside it would be counted too.
const ALONE: &str = "RUNGMQ_TEST_ALONE";

#[test]
fn three_hundred_consumers_leave_nothing_behind() {
    if let Ok(url) = std::env::var(ALONE) {
        return come_and_go(&url);
    }
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let channels = || vhost.list_channels(&["pid"]).len();
    let before = channels();
    let status = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "bounds::three_hundred_consumers_leave_nothing_behind",
        ])
        .arg("--nocapture")
        .env(ALONE, vhost.url())
        .status()
        .unwrap();
    assert!(status.success());
    wait_for_value(SOON, "the channels", &before, channels);
    wait_for_value(SOON, "the consumers", &0, || raw.consumers("q"));
}

/// In a process of its own: starts and cancels consumers, and counts its threads.
fn come_and_go(url: &str) {
    let service = Observed::with(Connection::builder(format!("{url}?channel_max=16")));
    let threads = || status("self", "Threads");
    let cycle = |payload: u64| {
        let consumer = service.mq.consumer("q").concurrency(2);
        let handle = |_: Message<u64>| Ack::retry("once more");
        let consumer = consumer.retry_policy(fixed(2, 0.0)).start(handle).unwrap();
        service.mq.publish("", "q", &payload).unwrap();
        service.wait_for_consumed("dead_lettered", payload + 1);
        consumer.cancel(secs(20)).unwrap();
        consumer.cancel(secs(20)).unwrap();
        assert!(!consumer.is_running());
    };
    cycle(0);
    // Threads that have reported their end may not have ended yet.
    let (mut settled, mut since) = (threads(), Stopwatch::start());
    wait_until(SOON, "the number of threads rests", || {
        let now = threads();
        if now != settled {
            (settled, since) = (now, Stopwatch::start());
        }
        since.elapsed() > secs(0.5)
    });
    for payload in 1..300 {
        cycle(payload);
    }
    let consumers: Vec<_> = (0..10)
        .map(|_| service.mq.consume("q", |_: Message<u64>| ()).unwrap())
        .collect();
    assert!(threads() > settled);
    for consumer in &consumers {
        consumer.cancel(secs(20)).unwrap();
    }
    wait_until(SOON, "the threads have ended", || threads() <= settled);
    let alone = settled;
    service.mq.close().unwrap();
    // A handle that is kept keeps the threads that only wait for its questions.
    drop(service);
    wait_until(SOON, "the connection's threads have ended", || {
        threads() < alone && !thread_names().iter().any(|name| name.starts_with("rungmq"))
    });
}

fn thread_names() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}
