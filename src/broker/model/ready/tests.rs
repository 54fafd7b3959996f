//! The order of a queue.

use super::*;
use crate::message::headers::{Headers, Properties};
use proptest::prelude::*;

fn entry(place: u64) -> Entry {
    let message = Message {
        exchange: String::new(),
        routing_keys: Vec::new(),
        blind_keys: Vec::new(),
        properties: Properties::default(),
        headers: Headers::new(),
        body: Arc::new(vec![0; usize::try_from(place).unwrap()]),
        deaths: Vec::new(),
        failed_deliveries: 0,
    };
    Entry {
        message: Arc::new(message),
        place,
        expires: None,
        redelivered: false,
        returned: 0,
        failed: 0,
    }
}

fn drain(ready: &mut Ready) -> Vec<u64> {
    std::iter::from_fn(|| {
        let first = ready.first().map(|entry| entry.place);
        let popped = ready.pop().map(|entry| entry.place);
        assert_eq!(first, popped);
        popped
    })
    .collect()
}

#[test]
fn a_classic_queue_goes_by_priority_and_then_by_place() {
    let mut ready = Ready::new(QueueKind::Classic);
    for (place, priority) in [(3, 0), (1, 0), (2, 5), (4, 5)] {
        ready.insert(entry(place), priority, true);
    }
    assert_eq!(drain(&mut ready), [2, 4, 1, 3]);
}

#[test]
fn a_quorum_queue_serves_the_oldest_every_third_time() {
    let mut ready = Ready::new(QueueKind::Quorum);
    for place in 1..=3 {
        ready.insert(entry(place), 0, false);
    }
    for place in 4..=8 {
        ready.insert(entry(place), 0, true);
    }
    assert_eq!(drain(&mut ready), [4, 5, 1, 6, 7, 2, 8, 3]);
}

#[test]
fn what_came_back_to_a_quorum_queue_goes_first_in_the_order_of_its_return() {
    let mut ready = Ready::new(QueueKind::Quorum);
    ready.insert(entry(3), 0, true);
    ready.put_back(entry(2));
    ready.put_back(entry(1));
    assert_eq!(drain(&mut ready), [2, 1, 3]);
}

#[test]
fn a_quorum_queue_that_was_cleared_counts_anew_to_the_oldest() {
    let mut ready = Ready::new(QueueKind::Quorum);
    for place in 1..=2 {
        ready.insert(entry(place), 0, false);
    }
    assert_eq!(drain(&mut ready), [1, 2]);
    ready.clear();
    ready.insert(entry(3), 0, false);
    ready.insert(entry(4), 0, true);
    assert_eq!(drain(&mut ready), [4, 3]);
}

#[test]
fn nothing_is_left_of_what_was_cleared() {
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let mut ready = Ready::new(kind);
        ready.insert(entry(1), 0, false);
        ready.clear();
        assert!(ready.is_empty());
        assert_eq!(ready.bytes(), 0);
    }
}

proptest! {
    #[test]
    fn bytes_and_length_are_those_of_what_is_there(
        places in prop::collection::btree_set(1_u64..50, 0..20),
        kind in prop::sample::select(vec![QueueKind::Classic, QueueKind::Quorum]),
        popped in 0_usize..10,
        kept in 1_u64..50,
    ) {
        let mut ready = Ready::new(kind);
        for place in &places {
            ready.insert(entry(*place), (place % 3) as u8, place % 2 == 0);
        }
        for _ in 0..popped {
            if let Some(entry) = ready.pop()
                && entry.place % 2 == 0
            {
                ready.put_back(entry);
            }
        }
        ready.retain(|entry| entry.place <= kept);
        let there: Vec<u64> = ready.iter().map(|entry| entry.place).collect();
        prop_assert!(there.iter().all(|place| *place <= kept));
        prop_assert_eq!(ready.bytes(), there.iter().sum::<u64>());
        prop_assert_eq!(ready.len(), there.len());
        prop_assert_eq!(ready.is_empty(), there.is_empty());
        prop_assert_eq!(drain(&mut ready).len(), there.len());
        prop_assert_eq!(ready.bytes(), 0);
    }
}
