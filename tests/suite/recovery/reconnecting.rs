//! Tests of reconnecting: soon, with growing pauses, and announced to observers.

use std::thread;

use amiquip::AmqpProperties;
use rungmq::{Connection, HealthStatus, Message, Queue};

use super::{Event, one_consumer, take_down, told, told_by, wait_until_down, wait_until_up};
use crate::harness::observed::{SOON, diary, fixed, now};
use crate::harness::only_on_rabbitmq;
use crate::harness::{Flow, Proxy, Vhost, Way, logs, secs, wait::let_pass, wait_until};

#[test]
fn consuming_resumes_within_a_second_of_a_loss() {
    let vhost = Vhost::new();
    let (service, story) = told_by(Connection::builder(vhost.url()));
    service.declare(&fixed(2, 1.0));
    let (diary, read) = diary();
    service.mq.consume("q", diary.noting()).unwrap();
    let mut quickest = secs(60);
    let pids = || {
        let rows = vhost.list_connections(&["pid"]);
        let pids = rows.iter().map(|row| row["pid"].to_string());
        pids.collect::<Vec<_>>()
    };
    for round in 1..=3 {
        service.mq.publish("", "q", &round).unwrap();
        assert_eq!(read.next().payload, round);
        // Also long enough for pauses to begin anew.
        one_consumer(&vhost, "q");
        let old = pids();
        let closed = now();
        assert_eq!(vhost.close_connections(), 2);
        let n = usize::try_from(round).unwrap() + 1;
        story.wait_for_subscriptions(n);
        quickest = quickest.min(story.subscriptions()[n - 1] - closed);
        // The loss of the one that publishes may be noticed last.
        wait_until(SOON, "both connections stand again", || {
            let new = pids();
            new.len() == 2 && new.iter().all(|pid| !old.contains(pid))
        });
        wait_until_up(&service.mq);
    }
    // The best of three: a busy machine may take its time, the library may not.
    assert!(quickest < secs(1), "{quickest:?}");
    one_consumer(&vhost, "q");
    assert_eq!(vhost.list_connections(&["pid"]).len(), 2);
    assert!(story.pauses().is_empty(), "{:?}", story.events());
    wait_until(SOON, "the recoveries are counted", || {
        service.counter("acemq.connection.recovered", &[]) == 3
    });
}

#[test]
fn losses_recoveries_and_subscriptions_are_told_in_order() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let proxy = Proxy::to(vhost.node());
    let (service, story) = told(&proxy.url_for(vhost.name()));
    service.mq.consume("q", |_: Message<u64>| ()).unwrap();
    take_down(&proxy);
    wait_until(SOON, "three pauses", || story.pauses().len() >= 3);
    proxy.refuse(false);
    story.wait_for_subscriptions(2);
    story.wait_for_recoveries(1);

    let q = || Event::Subscribed("q".to_owned());
    let events = story.events();
    assert_eq!(events[0], q());
    let Event::Lost(reason) = &events[1] else {
        panic!("{events:?}")
    };
    assert!(!reason.is_empty() && !reason.contains("guest"), "{reason}");
    let between = &events[2..events.len() - 2];
    for (event, attempt) in between.iter().zip(2..) {
        assert!(
            matches!(event, Event::Retrying(told, _) if *told == attempt),
            "{events:?}"
        );
    }
    // The consumer may be as quick as the announcement.
    let last = &events[events.len() - 2..];
    assert!(last.contains(&q()), "{events:?}");
    let downtime = last.iter().find_map(|event| match event {
        Event::Recovered(downtime) => Some(*downtime),
        _ => None,
    });
    assert!(downtime.unwrap() >= secs(0.4), "{events:?}");
    wait_until(SOON, "the recovery is counted", || {
        service.counter("acemq.connection.recovered", &[]) == 1
    });
}

#[test]
fn recovery_pauses_double_up_to_the_longest() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let builder = Connection::builder(proxy.url_for(vhost.name()));
    let (service, story) = told_by(builder.recovery_backoff(secs(0.2), secs(0.8)));
    assert_eq!(proxy.accepted(), 1);
    let began = now();
    take_down(&proxy);
    wait_until(SOON, "six pauses", || story.pauses().len() >= 6);
    let pauses = story.pauses();
    // The first dial comes without a pause, the others after each pause that is over.
    let dials = proxy.accepted() - 1;
    let later = story.pauses().len();
    assert!((pauses.len()..=later + 1).contains(&dials), "{dials}");
    for (n, (_, attempt, pause)) in pauses.iter().enumerate().take(6) {
        assert_eq!(*attempt as usize, n + 2);
        let nominal = secs([0.2, 0.4, 0.8, 0.8, 0.8, 0.8][n]);
        assert!(
            *pause >= nominal.mul_f64(0.799) && *pause <= nominal.mul_f64(1.201),
            "{pauses:?}"
        );
    }
    assert!(pauses.iter().any(|(_, _, pause)| *pause != secs(0.8)));
    for pair in pauses.windows(2) {
        assert!(pair[1].0 - pair[0].0 >= pair[0].2, "{pauses:?}");
    }
    assert!(pauses[0].0 - began < secs(10), "the first try came late");
    proxy.refuse(false);
    wait_until_up(&service.mq);
}

#[test]
fn short_lived_connections_are_followed_by_pauses() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let builder = Connection::builder(proxy.url_for(vhost.name()));
    let (service, story) = told_by(builder.recovery_backoff(secs(0.5), secs(0.5)));
    let began = now();
    for n in 1..=4 {
        proxy.cut();
        story.wait_for_recoveries(n);
    }
    // The first is not preceded by a pause, the second and later ones are: none of them lived for
    // long.
    let took = now() - began;
    assert!(took >= secs(3.0 * 0.4), "{took:?}");
    assert_eq!(story.losses().len(), 4);
    drop(service);
}

#[test]
fn recovery_redeclares_before_consuming_resumes() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let (service, story) = told(&proxy.url_for(vhost.name()));
    let policy = fixed(3, 1.0);
    service.declare_queue(Queue::new("q").classic(), &policy);
    let consumer = service.mq.consumer("q").retry_policy(policy);
    let (diary, read) = diary();
    consumer.start(diary.failing_once()).unwrap();
    take_down(&proxy);
    wait_until_down(&service.mq);
    let raw = vhost.raw();
    for queue in ["q.retry.1s", "q.dlq", "q.parked"] {
        raw.delete_queue(queue);
    }
    raw.unbind("q", "acemq.retry", "q");
    raw.delete_exchange("acemq.dlx");
    proxy.refuse(false);
    story.wait_for_subscriptions(2);
    for queue in ["q.retry.1s", "q.dlq", "q.parked"] {
        assert!(raw.exists(queue), "{queue}");
    }
    assert!(raw.exchange_exists("acemq.dlx"));
    raw.send("q", "7", AmqpProperties::default());
    read.wait_for(7, 2);
    let again = &read.of(7)[1];
    assert_eq!((again.attempt, again.exchange.as_str()), (2, "acemq.retry"));
}

only_on_rabbitmq! { "logins";
#[test]
fn recovery_shows_credentials_in_no_log_and_no_health() {
    logs::capture();
    let vhost = Vhost::new();
    let node = vhost.node();
    let secret = "hunter2-is-recovered";
    node.add_user("recovers-in-secret", secret);
    node.set_permissions("recovers-in-secret", vhost.name(), ".*", ".*", ".*");
    vhost.raw().classic("q");
    let proxy = Proxy::to(node);
    let url = node
        .url_for_user("recovers-in-secret", secret, vhost.name())
        .replace(&format!(":{}", node.port()), &format!(":{}", proxy.port()));
    let (service, story) = told_by(
        Connection::builder(url)
            .hosts([format!("127.0.0.1:{}", proxy.port())])
            .recovery_backoff(secs(0.1), secs(0.1)),
    );
    service.mq.consume("q", |_: Message<u64>| ()).unwrap();
    service.mq.publish("", "q", &1).unwrap();
    take_down(&proxy);
    wait_until(SOON, "pauses", || story.pauses().len() >= 2);
    let health = service.mq.health();
    let texts = [
        format!("{:?}", story.events()),
        format!("{health:?} {health} {}", health.to_json()),
        format!("{:?}", service.mq.publish("", "q", &2).unwrap_err()),
        format!("{:?}", service.mq.pull("q").unwrap_err()),
    ];
    for text in texts {
        assert!(!text.contains(secret), "{text}");
    }
    // And logins that are refused while it recovers.
    let change = |password: &str| {
        let user = "<<\"recovers-in-secret\">>";
        node.eval(&format!(
            "rabbit_auth_backend_internal:change_password({user}, <<\"{password}\">>, <<\"test\">>)"
        ));
    };
    change("another");
    proxy.refuse(false);
    let refused = |detail: &str| detail.contains("recovers-in-secret");
    wait_until(SOON, "a login is refused", || {
        service
            .mq
            .health()
            .detail
            .is_some_and(|detail| refused(&detail))
    });
    assert!(!service.mq.health().to_string().contains(secret));
    change(secret);
    story.wait_for_subscriptions(2);
    let lines = logs::captured_with(log::Level::Trace, secret);
    assert!(lines.is_empty(), "{lines:#?}");
}
}

#[test]
fn unanswered_dial_ends_at_the_connect_timeout() {
    let vhost = Vhost::new();
    let proxy = Proxy::to(vhost.node());
    let builder = Connection::builder(proxy.url_for(vhost.name())).connect_timeout(secs(1));
    let (service, story) = told_by(builder.recovery_backoff(secs(0.1), secs(0.1)));
    proxy.set(Way::ToClient, Flow::Swallow);
    proxy.cut();
    wait_until(SOON, "two dials have failed", || story.pauses().len() >= 2);
    let pauses = story.pauses();
    assert!(pauses[1].0 - pauses[0].0 >= secs(1), "{pauses:?}");
    proxy.set(Way::ToClient, Flow::Pass);
    wait_until_up(&service.mq);
}

#[test]
fn publishing_is_back_as_soon_as_the_connection_is() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let proxy = Proxy::to(vhost.node());
    let (service, story) = told_by(Connection::builder(proxy.url_for(vhost.name())));
    service.mq.publish("", "q", &1).unwrap();
    // The socket that publishes is lost first; by now its pause is four seconds long.
    proxy.refuse(true);
    proxy.cut_nth(1);
    let_pass(secs(4.5));
    proxy.cut_nth(0);
    wait_until(SOON, "a pause", || !story.pauses().is_empty());
    proxy.refuse(false);
    wait_until(SOON, "the connection is up", || service.mq.is_running());
    let up = now();
    let mq = service.mq.clone();
    let publisher = thread::spawn(move || {
        wait_until(SOON, "publishing is possible", || {
            mq.publish("", "q", &2).is_ok()
        });
        now()
    });
    let took = publisher.join().unwrap() - up;
    // At least 2.4 s of the pause of four are left.
    assert!(took < secs(2), "{took:?}");
    assert_eq!(service.mq.health().status, HealthStatus::Up);
}

#[test]
fn connection_cut_at_any_moment_of_opening_recovers() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let proxy = Proxy::to(vhost.node());
    let builder = Connection::builder(proxy.url_for(vhost.name()));
    let (service, story) = told_by(builder.recovery_backoff(secs(0.01), secs(0.01)));
    let (diary, read) = diary();
    service.mq.consume("q", diary.noting()).unwrap();
    wait_until(SOON, "it was cut in forty tries", || {
        proxy.cut();
        let_pass(secs(rand::random_range(0.0..0.04)));
        story.losses().len() + story.pauses().len() >= 40
    });
    wait_until_up(&service.mq);
    vhost.raw().send("q", "7", AmqpProperties::default());
    assert_eq!(read.next().payload, 7);
    one_consumer(&vhost, "q");
    assert_eq!(service.mq.health().status, HealthStatus::Up);
    wait_until(SOON, "no other connection is left", || {
        vhost.list_connections(&["pid"]).len() == 1
    });
}
