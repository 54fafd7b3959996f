//! Tests of extremes: connections that flap, brokers that never answer, durations without end.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rungmq::metrics::{Observer, Recovered};
use rungmq::{Ack, Connection, HealthStatus, Message, Publish};

use crate::harness::observed::{Observed, SOON, fixed};
use crate::harness::only_on_rabbitmq;
use crate::harness::support::Calls;
use crate::harness::wait::{let_pass, timed};
use crate::harness::{Node, Proxy, Vhost, secs, wait_until};
use crate::suite::shutdown::alone::{alone, full_name, nothing};

/// Cuts every connection as soon as it is up again.
struct Cutter {
    proxy: Arc<Proxy>,
    recovered: Calls,
}

impl Observer for Cutter {
    fn recovered(&self, _: &Recovered) {
        self.recovered.add();
        self.proxy.cut();
    }
}

#[test]
fn recovery_of_a_flapping_connection_backs_off() {
    let vhost = Vhost::new();
    let proxy = Arc::new(Proxy::to(vhost.node()));
    let recovered = Calls::default();
    let cutter = Cutter {
        proxy: proxy.clone(),
        recovered: recovered.clone(),
    };
    let mq = Connection::builder(proxy.url_for(vhost.name()))
        .observer(cutter)
        .open()
        .unwrap();
    proxy.cut();
    wait_until(SOON, "it is up again", || recovered.count() > 0);
    let_pass(secs(4));
    // The first comes without a pause, the others after 0.5, 1 and 2 s.
    assert!(recovered.count() <= 5, "{} times", recovered.count());
    mq.close().unwrap();
}

#[test]
fn limits_without_end_are_no_limits() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let builder = Connection::builder(vhost.url())
        .confirm_timeout(Duration::MAX)
        .connect_timeout(Duration::MAX)
        .recovery_backoff(secs(0.1), Duration::MAX);
    let service = Observed::with(builder);
    service.declare(&fixed(2, 1.0));
    service.mq.publish("", "q", &1).unwrap();
    let calls = Calls::default();
    let counted = calls.clone();
    let consumer = service
        .mq
        .consumer("q")
        .retry_policy(fixed(2, 1.0))
        .longest_wait(Duration::MAX)
        .start(move |_: Message<u64>| {
            counted.add();
            Ack::retry("again")
        })
        .unwrap();
    raw.wait_for_count("q.dlq", 1, SOON);
    assert_eq!(calls.count(), 2);
    raw.delete_queue("q.retry.1s");
    service.mq.publish("", "q", &2).unwrap();
    raw.wait_for_count("q.dlq", 2, SOON);
    assert_eq!(calls.count(), 4);
    vhost.close_connections();
    let raw = vhost.raw();
    wait_until(SOON, "it consumes again", || {
        service.mq.health().status == HealthStatus::Up && service.mq.health().consumers_running == 1
    });
    // The loss may not have been noticed yet.
    wait_until(SOON, "publishing is possible", || {
        service.mq.publish("", "q", &3).is_ok()
    });
    raw.wait_for_count("q.dlq", 3, SOON);
    let (cancelled, took) = timed(|| consumer.cancel(Duration::MAX));
    cancelled.unwrap();
    service.mq.close_within(Duration::MAX).unwrap();
    assert!(took < secs(5), "{took:?}");
}

#[test]
fn waits_in_the_consumer_have_no_end_either() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let service = Observed::on(&vhost);
    let consumer = service
        .mq
        .consumer("q")
        .prefetch(2)
        .retry_threshold(Duration::ZERO)
        .retry_policy(rungmq::RetryPolicy::fixed(2, Duration::MAX).unwrap())
        .longest_wait(Duration::MAX)
        .start(move |message: Message<u64>| match *message.payload() {
            1 => Ack::retry("again"),
            _ => Ack::accept(),
        })
        .unwrap();
    service.mq.publish("", "q", &1).unwrap();
    service.mq.publish("", "q", &2).unwrap();
    service.wait_for_consumed("acked", 1);
    wait_until(SOON, "one waits", || consumer.in_flight() == 1);
    consumer.cancel(secs(20)).unwrap();
    raw.wait_for_count("q", 1, SOON);
}

#[test]
fn endless_recovery_pause_does_not_hold_up_a_close() {
    let vhost = Vhost::new();
    let mq = Connection::builder(vhost.url())
        .recovery_backoff(Duration::MAX, Duration::MAX)
        .open()
        .unwrap();
    // The first attempt comes without a pause, and its connection is closed as well.
    wait_until(SOON, "it is lost twice in a row", || {
        vhost.close_connections();
        mq.health().status == HealthStatus::Down
    });
    let_pass(secs(0.5));
    let (reply, answer) = crossbeam_channel::bounded(1);
    let closing = mq.clone();
    thread::spawn(move || drop(reply.send(closing.close_within(secs(1)))));
    drop(answer.recv_timeout(secs(10)).expect("an end of the close"));
}

/// A handler whose end looks at the connection.
struct LooksAtTheEnd(Connection);

impl Drop for LooksAtTheEnd {
    fn drop(&mut self) {
        let _ = self.0.health();
    }
}

#[test]
fn a_handler_may_use_its_connection_when_it_is_dropped() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let mq = Connection::open(vhost.url()).unwrap();
    let end = LooksAtTheEnd(mq.clone());
    let consumer = mq
        .consume("q", move |_: Message<u64>| {
            let _ = &end;
        })
        .unwrap();
    consumer.cancel(secs(5)).unwrap();
    drop(consumer);
    let_pass(secs(0.5));
    let (reply, answer) = crossbeam_channel::bounded(1);
    let again = mq.clone();
    thread::spawn(move || drop(reply.send(again.consume("q", |_: Message<u64>| ()))));
    answer
        .recv_timeout(secs(10))
        .expect("an end of the call")
        .unwrap();
    let (reply, answer) = crossbeam_channel::bounded(1);
    thread::spawn(move || drop(reply.send(mq.close())));
    answer
        .recv_timeout(secs(10))
        .expect("an end of the close")
        .unwrap();
}

only_on_rabbitmq! { "a broker without heartbeats";
#[test]
fn a_broker_without_heartbeats_gets_copies_after_long_silences() {
    let node = Node::start();
    node.eval("application:set_env(rabbit, heartbeat, 0)");
    let vhost = Vhost::on(&node);
    let service = Observed::with(Connection::builder(format!("{}?heartbeat=2", vhost.url())));
    service.declare(&fixed(1, 0.0));
    service
        .mq
        .consume("q", |_: Message<u64>| {
            let_pass(secs(4));
            Ack::reject("wrong")
        })
        .unwrap();
    service.mq.publish("", "q", &1).unwrap();
    vhost.raw().wait_for_count("q.dlq", 1, SOON);
}
}

only_on_rabbitmq! { "a queue that hangs";
/// Suspends or resumes the process of a classic queue.
fn queue_process(vhost: &Vhost<'_>, queue: &str, what: &str) {
    let erlang = format!(
        "begin {{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"{}\">>, queue, <<\"{queue}\">>)), sys:{what}(amqqueue:get_pid(Q)) end",
        vhost.name()
    );
    assert_eq!(vhost.node().eval(&erlang), "ok");
}
}

only_on_rabbitmq! { "a queue that hangs";
#[test]
fn large_copies_without_an_answer_do_not_hold_up_other_copies() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    let builder = Connection::builder(vhost.url()).confirm_timeout(secs(2));
    let service = Observed::with(builder);
    service.declare(&fixed(1, 0.0));
    raw.classic("other");
    raw.classic("other.dlq.x");
    service
        .mq
        .consumer("q")
        .codec(rungmq::Bytes)
        .start(|_: Message<Vec<u8>>| Ack::reject("wrong"))
        .unwrap();
    service
        .mq
        .consume("other", |_: Message<u64>| Ack::reject("wrong"))
        .unwrap();
    service.mq.publish("", "other", &1).unwrap();
    raw.wait_for_count("other.dlq", 1, SOON);
    queue_process(&vhost, "q.dlq", "suspend");
    let large = Publish::bytes(vec![0; 9 << 20]).routing_key("q");
    for result in service.mq.publish_all(vec![large; 4]) {
        result.unwrap();
    }
    // The publishing connection stays alive: others publish.
    let mut n = 0;
    wait_until(SOON, "other copies land", || {
        service.mq.publish("", "other", &n).unwrap();
        let_pass(secs(0.5));
        n += 1;
        n > 11 && raw.count("other.dlq") > 11
    });
    queue_process(&vhost, "q.dlq", "resume");
}
}

only_on_rabbitmq! { "a queue that hangs";
#[test]
fn unanswered_first_publish_holds_up_no_other_exchange() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("stuck");
    raw.classic("fine");
    for queue in ["stuck", "fine"] {
        raw.exchange(&format!("to-{queue}"), amiquip::ExchangeType::Fanout);
        raw.bind(queue, &format!("to-{queue}"), "");
    }
    queue_process(&vhost, "stuck", "suspend");
    // With heartbeats so frequent the connection is not silent.
    let builder = Connection::builder(format!("{}?heartbeat=1", vhost.url()))
        .confirm_timeout(secs(2))
        .connect_timeout(secs(2));
    let service = Observed::with(builder);
    let results: Vec<_> = thread::scope(|scope| {
        let mq = &service.mq;
        let stuck: Vec<_> = (0..8)
            .map(|n| scope.spawn(move || mq.publish("to-stuck", "", &n)))
            .collect();
        let_pass(secs(0.3));
        let fine = service.mq.publish("to-fine", "", &1);
        drop(stuck);
        vec![fine]
    });
    queue_process(&vhost, "stuck", "resume");
    for result in results {
        result.unwrap();
    }
}
}

#[test]
fn a_queue_name_with_a_nul_is_no_panic() {
    let vhost = Vhost::new();
    let mq = Connection::open(vhost.url()).unwrap();
    mq.consume("a\0b", |_: Message<u64>| ()).unwrap_err();
    vhost.raw().classic("a\0b");
    mq.consume("a\0b", |_: Message<u64>| ()).unwrap();
}

/// The time that this process has computed so far.
fn computed() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

#[test]
fn copies_without_an_answer_under_an_alarm_cost_no_time() {
    let name = full_name!(copies_without_an_answer_under_an_alarm_cost_no_time);
    alone(name, nothing, |_| {
        let node = Node::start();
        let vhost = Vhost::on(&node);
        let builder = Connection::builder(vhost.url()).confirm_timeout(secs(1));
        let service = Observed::with(builder);
        service.declare(&fixed(1, 0.0));
        let raw = vhost.raw();
        service.mq.publish("", "q", &0).unwrap();
        let large = Publish::bytes(vec![0; 200_000]).routing_key("q");
        for result in service.mq.publish_all(vec![large; 99]) {
            result.unwrap();
        }
        node.memory_alarm(true);
        service
            .mq
            .consumer("q")
            .prefetch(100)
            .concurrency(50)
            .codec(rungmq::Bytes)
            .start(|_: Message<Vec<u8>>| Ack::reject("wrong"))
            .unwrap();
        wait_until(SOON, "it is blocked", || service.mq.health().blocked);
        let_pass(secs(3));
        let before = computed();
        let_pass(secs(2));
        let took = computed() - before;
        node.memory_alarm(false);
        raw.wait_for_count("q.dlq", 100, SOON);
        assert!(took < secs(0.5), "{took:?} in 2 s");
    });
}

#[test]
fn a_handler_that_has_cancelled_another_consumer_is_waited_for() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("a");
    raw.classic("b");
    let mq = Connection::open(vhost.url()).unwrap();
    let other = mq.consume("b", |_: Message<u64>| ()).unwrap();
    let (began, ended) = (Calls::default(), Calls::default());
    let (b, e) = (began.clone(), ended.clone());
    mq.consume("a", move |_: Message<u64>| {
        other.cancel(secs(5)).unwrap();
        b.add();
        let_pass(secs(1));
        e.add();
    })
    .unwrap();
    mq.publish("", "a", &1).unwrap();
    wait_until(SOON, "began", || began.count() == 1);
    mq.close_within(secs(10)).unwrap();
    assert_eq!(ended.count(), 1);
}
