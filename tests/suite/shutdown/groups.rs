//! Tests of consumer groups, which start together and stop by one deadline.

use rungmq::{ConsumerGroup, Error};

use super::*;
use crate::harness::wait::timed;

#[test]
fn a_group_starts_every_member_and_shares_the_work() {
    let stage = Stage::new();
    let (gate, started) = (Gate::new(), Log::default());
    let (held, log) = (gate.held(), started.clone());
    let group = ConsumerGroup::new(&stage.mq, Q, 3)
        .members(|member| member.prefetch(1))
        .start(move |message: Any| {
            log.add(message.id());
            held.wait();
        })
        .unwrap();
    assert_eq!(group.members().len(), 3);
    assert!(group.is_running());
    assert_eq!(stage.raw.consumers(Q), 3);
    for id in ["1", "2", "3"] {
        stage.send(Q, id, 1);
    }
    started.wait_for(3);
    assert_eq!(group.in_flight(), 3);
    let members = group.members().iter();
    assert!(members.clone().all(|member| member.in_flight() == 1));
    assert!(members.clone().all(|member| member.queue() == Q));
    let channels = stage.vhost.list_channels(&["consumer_count"]);
    let consuming = channels.iter().filter(|row| row["consumer_count"] == 1);
    assert_eq!(consuming.count(), 3, "each has a channel of its own");
    gate.open();
    stage.wait_for_outcomes(Q, "acked", 3);
    group.cancel(secs(20)).unwrap();
    assert!(!group.is_running());
    assert_eq!(stage.raw.consumers(Q), 0);
    assert!(stage.mq.is_running());
}

#[test]
fn an_empty_group_is_refused() {
    let stage = Stage::new();
    let refused = ConsumerGroup::new(&stage.mq, Q, 0).start(|_: Any| {});
    assert!(
        matches!(refused, Err(Error::Configuration(_))),
        "{refused:?}"
    );
}

#[test]
fn a_group_ends_by_one_deadline_and_sums_what_it_left() {
    let stage = Stage::new();
    let gate = Gate::new();
    let held = gate.held();
    let group = ConsumerGroup::new(&stage.mq, Q, 4)
        .members(|member| member.prefetch(1))
        .start(move |_: Any| held.wait())
        .unwrap();
    for id in ["1", "2", "3", "4", "5"] {
        stage.send(Q, id, 2);
    }
    wait_until(LIMIT, "all run", || group.in_flight() == 4);
    let (result, took) = timed(|| group.cancel(secs(1)));
    assert!(took >= secs(1) && took < secs(1) + GRACE, "{took:?}");
    assert_eq!(stranded(&drain_timeout(result)), [(Q, 4)]);
    group.cancel(secs(20)).unwrap();
    assert!(stage.mq.is_running());
    stage.raw.wait_for_count(Q, 5, LIMIT);
    gate.open();
    stage.wait_for_outcomes(Q, "discarded", 4);
    let ids = ["1", "2", "3", "4", "5"].map(|id| (id, 2));
    stage.comes_back(Q, &ids);
}

#[test]
fn a_close_ends_a_group_like_any_consumer() {
    let stage = Stage::new();
    let gate = Gate::new();
    let held = gate.held();
    let group = ConsumerGroup::new(&stage.mq, Q, 2)
        .members(|member| member.prefetch(1))
        .start(move |_: Any| held.wait())
        .unwrap();
    stage.send(Q, "1", 1);
    stage.send(Q, "2", 1);
    wait_until(LIMIT, "both run", || group.in_flight() == 2);
    let timeout = drain_timeout(in_time(secs(0.5), || stage.mq.close_within(secs(0.5))));
    assert_eq!(stranded(&timeout), [(Q, 2)]);
    assert!(!group.is_running());
}

/// There are channels for three members, with the one that declarations use.
#[test]
fn a_later_member_that_cannot_start_stops_the_earlier_ones() {
    let vhost = Vhost::new();
    let url = format!("{}?channel_max=4", vhost.url());
    let stage = Stage::over(vhost, &url);
    let started = Log::default();
    let log = started.clone();
    let refused = ConsumerGroup::new(&stage.mq, Q, 6).start(move |_: Any| log.add(""));
    assert!(refused.is_err(), "{refused:?}");
    stage.raw.wait_for_consumers(Q, 0, LIMIT);
    stage.send(Q, "1", 2);
    assert_eq!(stage.raw.count(Q), 1);
    assert_eq!(started.len(), 0);
    // Their channels are free again, and the connection is none the worse.
    wait_until(LIMIT, "a smaller group starts", || {
        ConsumerGroup::new(&stage.mq, Q, 2)
            .start(|_: Any| {})
            .is_ok()
    });
    stage.wait_for_outcomes(Q, "acked", 1);
    stage.mq.close().unwrap();
    assert_eq!(stage.raw.count(Q), 0);
}

/// An exclusive consumer has the queue, so the broker refuses the first member already.
#[test]
fn a_refused_member_is_named_with_the_brokers_words() {
    let stage = Stage::new();
    stage.raw.occupy(Q);
    let refused = ConsumerGroup::new(&stage.mq, Q, 2)
        .start(|_: Any| {})
        .unwrap_err();
    assert!(refused.is_access_refused(), "{refused}");
    assert!(refused.to_string().contains(Q), "{refused}");
    assert!(stage.mq.is_running());
    assert_eq!(stage.raw.consumers(Q), 1);
}
