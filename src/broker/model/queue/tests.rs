//! Tests of what a queue accepts, requeues and drops.

use super::*;
use crate::message::headers::Properties;

struct Fixture {
    queue: Queue,
    now: Instant,
}

fn fixture(kind: QueueKind, settings: Settings, profile: Profile) -> Fixture {
    let now = crate::time::instant::monotonic();
    Fixture {
        queue: Queue::new(QueueId(1), "q", kind, settings, profile, now),
        now,
    }
}

fn message(body: &str, expiration: Option<&str>) -> Arc<Message> {
    Arc::new(Message {
        exchange: String::new(),
        routing_keys: vec!["q".to_owned()],
        blind_keys: Vec::new(),
        properties: Properties {
            expiration: expiration.map(str::to_owned),
            ..Properties::default()
        },
        headers: Headers::new(),
        body: Arc::new(body.as_bytes().to_vec()),
        deaths: Vec::new(),
        failed_deliveries: 0,
    })
}

impl Fixture {
    fn add(&mut self, body: &str) {
        let entry = self.queue.queued(message(body, None), self.now);
        self.queue.insert(entry);
    }

    fn hand_out(&mut self) -> QueuedMessage {
        self.queue.unacked += 1;
        self.queue.ready.pop().unwrap()
    }

    fn bodies(&self) -> Vec<String> {
        let body = |entry: &QueuedMessage| String::from_utf8(entry.message.body.to_vec()).unwrap();
        self.queue.ready.iter().map(body).collect()
    }
}

fn limited(overflow: Overflow, length: Option<u64>, bytes: Option<u64>) -> Settings {
    Settings {
        overflow,
        max_length: length,
        max_bytes: bytes,
        ..Settings::default()
    }
}

#[test]
fn classic_queue_rejects_messages_over_its_limit() {
    for (length, bytes, expected) in [
        (Some(1), None, Admission::Rejected),
        (Some(2), None, Admission::Accepted),
        (None, Some(4), Admission::Rejected),
        (None, Some(5), Admission::Accepted),
        (None, None, Admission::Accepted),
    ] {
        let settings = limited(Overflow::RejectPublish, length, bytes);
        let mut fixture = fixture(QueueKind::Classic, settings, Profile::V3_10);
        fixture.add("123");
        let admission = fixture.queue.admit(&message("45", None), None);
        assert_eq!(admission, expected, "{length:?} {bytes:?}");
    }
}

#[test]
fn reject_publish_dlx_dead_letters_rejected_messages() {
    let settings = limited(Overflow::RejectPublishDlx, Some(0), None);
    let mut fixture = fixture(QueueKind::Classic, settings, Profile::V3_10);
    let admission = fixture.queue.admit(&message("a", None), Some(ChannelId(1)));
    assert_eq!(admission, Admission::RejectedDeadLettered);
}

#[test]
fn quorum_queue_rejects_publishers_and_no_dead_letters() {
    let settings = limited(Overflow::RejectPublish, Some(1), None);
    let mut fixture = fixture(QueueKind::Quorum, settings, Profile::V3_10);
    let admit = |fixture: &mut Fixture, publisher| {
        let admission = fixture.queue.admit(&message("a", None), publisher);
        if admission == Admission::Accepted {
            fixture.add("a");
            fixture.queue.notify_publishers();
        }
        admission
    };
    let (one, other) = (Some(ChannelId(1)), Some(ChannelId(2)));
    for expected in [
        Admission::Accepted,
        Admission::Accepted,
        Admission::Rejected,
    ] {
        assert_eq!(admit(&mut fixture, one), expected);
    }
    assert_eq!(admit(&mut fixture, other), Admission::Rejected);
    assert_eq!(admit(&mut fixture, None), Admission::Accepted);
    for _ in 0..2 {
        fixture.hand_out();
        fixture.queue.notify_publishers();
    }
    assert_eq!(
        admit(&mut fixture, one),
        Admission::Rejected,
        "one message is left"
    );
    fixture.hand_out();
    fixture.queue.notify_publishers();
    assert_eq!(admit(&mut fixture, one), Admission::Accepted);
}

#[test]
fn classic_queue_requeues_to_the_old_place() {
    let mut fixture = fixture(QueueKind::Classic, Settings::default(), Profile::V3_10);
    for body in ["a", "b", "c"] {
        fixture.add(body);
    }
    let [first, second] = [(); 2].map(|()| fixture.hand_out());
    for entry in [second, first] {
        assert!(matches!(
            fixture.queue.put_back(entry, false),
            PutBack::Ready
        ));
    }
    assert_eq!(fixture.bodies(), ["a", "b", "c"]);
    assert_eq!(fixture.queue.unacked, 0);
    assert!(fixture.hand_out().redelivered);
}

#[test]
fn quorum_queue_requeues_first_or_without_limit_last() {
    for (limit, failed, expected) in [
        (Some(5), false, ["a", "b"]),
        (None, false, ["b", "a"]),
        (None, true, ["a", "b"]),
    ] {
        let settings = Settings {
            delivery_limit: limit,
            ..Settings::default()
        };
        let mut fixture = fixture(QueueKind::Quorum, settings, Profile::V3_10);
        fixture.add("a");
        fixture.add("b");
        let entry = fixture.hand_out();
        assert!(matches!(
            fixture.queue.put_back(entry, failed),
            PutBack::Ready
        ));
        assert_eq!(fixture.bodies(), expected, "{limit:?} {failed}");
    }
}

#[test]
fn requeue_beyond_the_delivery_limit_ends_the_message() {
    let settings = Settings {
        delivery_limit: Some(1),
        ..Settings::default()
    };
    let mut fixture = fixture(QueueKind::Quorum, settings, Profile::V4_0);
    fixture.add("a");
    let entry = fixture.hand_out();
    assert!(matches!(
        fixture.queue.put_back(entry, true),
        PutBack::Ready
    ));
    let entry = fixture.hand_out();
    match fixture.queue.put_back(entry, false) {
        PutBack::OverDeliveryLimit(entry) => assert_eq!((entry.returned, entry.failed), (2, 1)),
        PutBack::Ready => panic!("the message is ready again"),
    }
    assert!(fixture.queue.ready.is_empty());
}

#[test]
fn shorter_time_to_live_takes_effect() {
    for (queue, own, expected) in [
        (None, None, None),
        (Some(5), None, Some(5)),
        (None, Some("7"), Some(7)),
        (Some(5), Some("7"), Some(5)),
        (Some(7), Some("5"), Some(5)),
        (Some(0), None, Some(0)),
    ] {
        let settings = Settings {
            ttl: queue,
            ..Settings::default()
        };
        let mut fixture = fixture(QueueKind::Classic, settings, Profile::V3_10);
        let entry = fixture.queue.queued(message("a", own), fixture.now);
        let millis = entry.expires.map(|due| due - fixture.now);
        assert_eq!(millis, expected.map(Duration::from_millis));
    }
}

#[test]
fn queue_is_unused_only_without_consumers() {
    let settings = Settings {
        expires: Some(Duration::from_secs(1)),
        ..Settings::default()
    };
    let mut fixture = fixture(QueueKind::Classic, settings, Profile::V3_10);
    let due = fixture.now + Duration::from_secs(1);
    assert_eq!(fixture.queue.unused_until(), Some(due));
    assert_eq!(fixture.queue.due(), Some(due));
    fixture
        .queue
        .consumers
        .push_back((ChannelId(1), ConsumerId(1)));
    assert_eq!(fixture.queue.unused_until(), None);
    assert_eq!(fixture.queue.due(), None);
}
