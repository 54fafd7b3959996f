//! Tags and prefetch.

use super::*;
use crate::broker::model::message::Message;
use crate::message::headers::{Headers, Properties};
use std::sync::Arc;

fn unacked(consumer: Option<u64>) -> Unacked {
    let message = Message {
        exchange: String::new(),
        routing_keys: Vec::new(),
        blind_keys: Vec::new(),
        properties: Properties::default(),
        headers: Headers::new(),
        body: Arc::default(),
        deaths: Vec::new(),
        failed_deliveries: 0,
    };
    Unacked {
        queue: QueueId(1),
        queue_name: "q".to_owned(),
        consumer: consumer.map(ConsumerId),
        entry: Entry {
            message: Arc::new(message),
            place: 0,
            expires: None,
            redelivered: false,
            returned: 0,
            failed: 0,
        },
    }
}

fn channel(prefetch: u16) -> Channel {
    let mut channel = Channel::new(LinkId(1));
    let consumer = Consumer {
        queue: "q".to_owned(),
        prefetch,
        unacked: 0,
    };
    channel.consumers.insert(ConsumerId(1), consumer);
    channel
}

#[test]
fn a_consumer_has_room_up_to_its_prefetch_and_fetching_does_not_count() {
    let mut channel = channel(2);
    channel.hand_out(unacked(None));
    for _ in 0..2 {
        assert!(channel.has_room(ConsumerId(1)));
        channel.hand_out(unacked(Some(1)));
    }
    assert!(!channel.has_room(ConsumerId(1)));
    channel.settle(1, false).unwrap();
    assert!(!channel.has_room(ConsumerId(1)), "that one was fetched");
    channel.settle(3, false).unwrap();
    assert!(channel.has_room(ConsumerId(1)));
}

#[test]
fn a_prefetch_of_zero_is_no_limit() {
    let mut channel = channel(0);
    for _ in 0..1000 {
        channel.hand_out(unacked(Some(1)));
    }
    assert!(channel.has_room(ConsumerId(1)));
}

#[test]
fn tags_are_settled_once_one_by_one_or_up_to_one() {
    let mut channel = channel(0);
    for tag in 1..=5 {
        assert_eq!(channel.hand_out(unacked(Some(1))), tag);
    }
    assert_eq!(channel.settle(2, false).unwrap().len(), 1);
    assert_eq!(channel.settle(4, true).unwrap().len(), 3);
    for settled in [2, 4, 9] {
        assert_eq!(channel.settle(settled, false).unwrap_err().code, 406);
        assert_eq!(channel.settle(settled, true).unwrap_err().code, 406);
    }
    assert_eq!(channel.settle(0, true).unwrap().len(), 1);
    assert!(channel.settle(0, true).unwrap().is_empty());
}

#[test]
fn publishes_are_numbered_from_the_moment_the_channel_confirms() {
    let mut channel = channel(0);
    assert_eq!(channel.next_publish(), None);
    channel.begin_to_confirm();
    assert_eq!(channel.next_publish(), Some(1));
    channel.begin_to_confirm();
    assert_eq!(channel.next_publish(), Some(2));
}
