//! What the ledger has to find, and the little that it may excuse: stories of one message each.

use super::gremlin::{Event, What};
use super::ledger::{Ledger, Seen};
use super::losses::Lost;
use super::producer::{Published, Told};
use super::queues::{CLASSIC, QUORUM};
use crate::harness::work::{Line, Plan, Step};

/// The start of every story; all times are milliseconds.
const T: u64 = 1_000_000;

#[test]
fn a_confirmed_message_that_no_handler_saw_is_missing() {
    let ledger = story(CLASSIC, Plan::Accept).ledger();
    assert!(ledger.missing.contains(&1));
    assert_eq!(ledger.faults.len(), 1, "{:?}", ledger.faults);
}

#[test]
fn refused_or_unknown_message_is_not_missed() {
    for told in [Told::Refused, Told::Unknown] {
        let ledger = story(CLASSIC, Plan::Accept).told(told).ledger();
        assert!(ledger.faults.is_empty(), "{:?}", ledger.faults);
    }
}

#[test]
fn handled_message_that_was_refused_is_a_fault() {
    let accepted = || story(CLASSIC, Plan::Accept).accepted(1, 10);
    assert!(accepted().ledger().faults.is_empty());
    assert_eq!(accepted().told(Told::Refused).ledger().faults.len(), 1);
}

#[test]
fn an_attempt_beyond_the_policy_is_a_fault() {
    let ledger = story(CLASSIC, Plan::Fail(1))
        .ended(1, 10)
        .ended(2, 400)
        .accepted(3, 1_100)
        .ledger();
    assert!(
        ledger
            .faults
            .iter()
            .any(|fault| fault.contains("beyond its policy")),
        "{:?}",
        ledger.faults
    );
}

#[test]
fn an_attempt_without_the_one_before_is_a_fault() {
    let ledger = story(CLASSIC, Plan::Fail(1)).accepted(2, 400).ledger();
    assert!(
        ledger
            .faults
            .iter()
            .any(|fault| fault.contains("without the one before")),
        "{:?}",
        ledger.faults
    );
}

#[test]
fn a_second_delivery_needs_a_cause_that_concerns_it() {
    let twice = || {
        story(CLASSIC, Plan::Accept)
            .accepted(1, 10)
            .accepted(1, 1_500)
    };
    assert_eq!(twice().ledger().faults.len(), 1);
    for not_a_cause in [
        What::Alarm,
        What::ShortRungs,
        What::Deleted(vec!["classic.dlq".to_owned()]),
        What::CopiesRefused,
        What::QueuesHung,
        What::Killed(OTHER),
        What::Terminated(OTHER),
        What::Suspended(OTHER),
        What::StartFailed(OTHER),
    ] {
        let ledger = twice().event(not_a_cause.clone(), 100, 1_400).ledger();
        assert_eq!(ledger.faults.len(), 1, "{not_a_cause:?}");
    }
    for cause in [
        What::BrokerKilled,
        What::BrokerFrozen,
        What::ConnectionsClosed,
        What::Killed(PROCESS),
    ] {
        let ledger = twice().event(cause.clone(), 100, 1_400).ledger();
        assert!(ledger.faults.is_empty(), "{:?}", ledger.faults);
        assert_eq!(ledger.delivered_again[cause.name()], 1);
        // Long before, it explains nothing.
        let long_before = story(CLASSIC, Plan::Accept)
            .accepted(1, 10_000)
            .accepted(1, 11_000)
            .event(cause, 100, 1_400);
        assert_eq!(long_before.ledger().faults.len(), 1);
    }
}

#[test]
fn of_two_copies_either_may_be_delivered_again() {
    let ledger = story(CLASSIC, Plan::Fail(1))
        .ended(1, 10)
        .event(What::ConnectionsClosed, 20, 30)
        .ended(1, 40)
        .accepted_in(OTHER, 2, 400)
        .accepted(2, 500)
        .event(What::Terminated(OTHER), 600, 700)
        .accepted(2, 800)
        .ledger();
    assert!(ledger.faults.is_empty(), "{:?}", ledger.faults);
    let again: usize = ledger.delivered_again.values().sum();
    assert_eq!(again, 2);
}

#[test]
fn a_kill_just_after_a_wait_in_a_rung_may_bring_it_home_twice() {
    let twice = |queue, kill| {
        story(queue, Plan::Fail(2))
            .ended(1, 10)
            // In the rung of 600 ms from 500 on.
            .ended(2, 500)
            .event(What::BrokerKilled, kill, kill + 3_000)
            .accepted(3, kill + 5_000)
            .accepted(3, kill + 5_010)
    };
    for queue in [CLASSIC, QUORUM] {
        for kill in [1_000, 1_200, 3_000] {
            let ledger = twice(queue, kill).ledger();
            assert!(ledger.faults.is_empty(), "{:?}", ledger.faults);
            assert_eq!(ledger.delivered_again.values().sum::<usize>(), 1);
        }
        for kill in [600, 5_000] {
            assert_eq!(twice(queue, kill).ledger().faults.len(), 1, "{kill}");
        }
        let thrice = twice(queue, 1_200).accepted(3, 6_300).ledger();
        assert_eq!(thrice.faults.len(), 1);
        let before_the_kill = story(queue, Plan::Fail(2))
            .ended(1, 10)
            .ended(2, 500)
            .accepted(3, 1_110)
            .accepted(3, 1_150)
            .event(What::BrokerKilled, 1_200, 4_200);
        assert_eq!(before_the_kill.ledger().faults.len(), 1);
    }
    let waited_in_the_consumer = story(CLASSIC, Plan::Fail(1))
        .ended(1, 10)
        .event(What::BrokerKilled, 400, 3_000)
        .accepted(2, 5_000)
        .accepted(2, 5_010);
    assert_eq!(waited_in_the_consumer.ledger().faults.len(), 1);
}

#[test]
fn refused_copies_are_a_cause_for_who_was_to_be_copied() {
    let ledger = story(CLASSIC, Plan::Fatal)
        .ended(1, 10)
        .ended(1, 1_500)
        .event(What::CopiesRefused, 0, 1_000)
        .told(Told::Unknown)
        .ledger();
    assert!(ledger.faults.is_empty(), "{:?}", ledger.faults);
}

#[test]
fn rung_expiry_without_leader_is_excused_once_per_log_line() {
    // In the rung of 600 ms from 500 on.
    let away = |queue| {
        story(queue, Plan::FailAlways)
            .ended(1, 10)
            .ended(2, 500)
            .event(What::BrokerKilled, 700, 4_000)
    };
    let excused = away(QUORUM).dropped([1]).ledger();
    assert!(excused.faults.is_empty(), "{:?}", excused.faults);
    assert_eq!(excused.lost_to(Lost::WithoutLeader), 1);
    assert_eq!(away(QUORUM).dropped([0]).ledger().missing.len(), 1);
    assert_eq!(away(CLASSIC).dropped([1]).ledger().missing.len(), 1);
}

#[test]
fn a_kill_while_nothing_comes_home_excuses_nothing() {
    for queue in [CLASSIC, QUORUM] {
        // The copy goes back to the source queue: it is confirmed.
        let first = story(queue, Plan::FailAlways).ended(1, 500);
        // It is on its way to the dead-letter queue.
        let last = story(queue, Plan::Reject).ended(1, 500);
        let parked = story(queue, Plan::Undecodable).ended(1, 500);
        // Never handled.
        let waits = story(queue, Plan::FailAlways);
        for one in [first, last, parked, waits] {
            let killed = one.event(What::BrokerKilled, 600, 4_000).dropped([1]);
            assert_eq!(killed.ledger().missing.len(), 1);
        }
        // It was home long before, and not yet delivered; or comes home long after.
        for (from, to) in [(7_000, 9_000), (100, 400)] {
            let killed = story(queue, Plan::FailAlways)
                .ended(1, 10)
                .ended(2, 500)
                .event(What::BrokerKilled, from, to)
                .dropped([1]);
            assert_eq!(killed.ledger().missing.len(), 1, "{queue} {from}..{to}");
        }
    }
}

#[test]
fn a_classic_queue_may_lose_what_came_home_just_before_a_kill() {
    let home = |kill| {
        story(CLASSIC, Plan::FailAlways)
            .ended(1, 10)
            .ended(2, 500)
            .event(What::BrokerKilled, kill, kill + 3_000)
            .dropped([0])
    };
    let delivered = |kill| home(kill).started(3, 1_200);
    for excused in [home(1_200), home(3_000), delivered(1_300), delivered(3_000)] {
        let ledger = excused.ledger();
        assert!(ledger.faults.is_empty(), "{:?}", ledger.faults);
        assert_eq!(ledger.lost_to(Lost::Unwritten), 1);
    }
    let written = story(QUORUM, Plan::FailAlways)
        .ended(1, 10)
        .ended(2, 500)
        .started(3, 1_200)
        .event(What::BrokerKilled, 1_300, 4_000)
        .dropped([1]);
    for missing in [home(600), home(5_000), delivered(4_000), written] {
        assert_eq!(missing.ledger().missing.len(), 1);
    }
}

#[test]
fn what_comes_home_at_a_start_may_be_lost_by_the_next_kill() {
    let killed_again = |at| {
        story(CLASSIC, Plan::FailAlways)
            .ended(1, 10)
            .ended(2, 500)
            .event(What::BrokerKilled, 700, 4_000)
            .event(What::BrokerKilled, at, at + 3_000)
            .dropped([0, 0])
            .ledger()
    };
    assert_eq!(killed_again(4_500).lost_to(Lost::Unwritten), 1);
    assert_eq!(killed_again(6_500).missing.len(), 1);
}

#[test]
fn only_deletion_of_the_copys_own_target_is_an_excuse() {
    let deleted = |queue: &str, from, to| {
        story(CLASSIC, Plan::Reject)
            .ended(1, 500)
            .event(What::Deleted(vec![queue.to_owned()]), from, to)
            .ledger()
    };
    let excused = deleted("classic.dlq", 490, 550);
    assert!(excused.faults.is_empty(), "{:?}", excused.faults);
    assert_eq!(excused.lost_to(Lost::WithQueue), 1);
    assert_eq!(deleted("classic.parked", 490, 550).missing.len(), 1);
    assert_eq!(deleted("quorum.dlq", 490, 550).missing.len(), 1);
    assert_eq!(deleted("classic.dlq", 100, 400).missing.len(), 1);
    assert_eq!(deleted("classic.dlq", 2_000, 2_100).missing.len(), 1);
}

const PROCESS: u32 = 7;
const OTHER: u32 = 8;

/// One message, and what happened beside it; times are from [`T`] on.
struct Story {
    published: Published,
    diary: Vec<Line>,
    events: Vec<Event>,
    dropped: Vec<usize>,
}

fn story(queue: &'static str, plan: Plan) -> Story {
    Story {
        published: Published {
            n: 1,
            plan,
            queue,
            told: Told::Confirmed,
            at: T,
            said: String::new(),
        },
        diary: Vec::new(),
        events: Vec::new(),
        dropped: Vec::new(),
    }
}

impl Story {
    fn told(mut self, told: Told) -> Self {
        self.published.told = told;
        self
    }

    fn line(mut self, process: u32, attempt: u32, at: u64, step: Step) -> Self {
        self.diary.push(Line {
            at: T + at,
            process,
            n: 1,
            attempt,
            redelivered: false,
            step,
        });
        self
    }

    fn started(self, attempt: u32, at: u64) -> Self {
        self.line(PROCESS, attempt, at, Step::Started)
    }

    fn ended(self, attempt: u32, at: u64) -> Self {
        self.started(attempt, at)
            .line(PROCESS, attempt, at, Step::Ended)
    }

    fn accepted(self, attempt: u32, at: u64) -> Self {
        self.accepted_in(PROCESS, attempt, at)
    }

    fn accepted_in(self, process: u32, attempt: u32, at: u64) -> Self {
        self.line(process, attempt, at, Step::Started)
            .line(process, attempt, at, Step::Accepted)
    }

    fn event(mut self, what: What, from: u64, to: u64) -> Self {
        let (from, to) = (T + from, T + to);
        self.events.push(Event { what, from, to });
        self
    }

    fn dropped<const N: usize>(mut self, dropped: [usize; N]) -> Self {
        self.dropped = dropped.to_vec();
        self
    }

    fn ledger(self) -> Ledger {
        Ledger::new(Seen {
            published: vec![self.published],
            diary: self.diary,
            dead: &[],
            parked: &[],
            events: &self.events,
            dropped: self.dropped,
        })
    }
}
