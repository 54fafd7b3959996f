//! Tests of restarts. Waits that end while the broker is stopped are dead-lettered before any
//! quorum queue has a leader.

use crate::broker::{Broker, Profile};
use crate::message::headers::{HeaderValue, Headers, Properties};
use crate::time::clock::{Clock, Timer};
use crate::time::instant::monotonic;
use crate::time::test_clock::TestClock;
use crate::time::threads::{self, Role, SpawnError};
use crate::topology::declaration::ExchangeKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);

/// The queues `q` (quorum) and `c` (classic). Each has three rungs of 60 s with one message: a
/// classic rung by the default exchange, a classic one by a direct exchange, and a quorum rung.
struct Waiting {
    broker: Broker,
    clock: TestClock,
}

impl Waiting {
    fn new(profile: Profile) -> Self {
        let clock = TestClock::new();
        let broker = Broker::launch("restarted", profile, Arc::new(clock.clone())).unwrap();
        broker
            .declare_exchange("home", ExchangeKind::Direct, &Headers::new())
            .unwrap();
        let waiting = Self { broker, clock };
        for (home, kind) in [("q", "quorum"), ("c", "classic")] {
            waiting.declare(home, [("x-queue-type", kind.into())]);
            waiting
                .broker
                .bind(home, "home", home, &Headers::new())
                .unwrap();
            waiting.rung(&format!("{home}.default"), "classic", "", home);
            waiting.rung(&format!("{home}.direct"), "classic", "home", home);
            waiting.rung(&format!("{home}.quorum"), "quorum", "home", home);
        }
        waiting
    }

    fn declare<const N: usize>(&self, name: &str, arguments: [(&'static str, HeaderValue); N]) {
        let arguments = arguments.into_iter().collect();
        self.broker.declare_queue(name, &arguments).unwrap();
    }

    fn rung(&self, name: &str, kind: &str, exchange: &str, home: &str) {
        self.declare(
            name,
            [
                ("x-queue-type", kind.into()),
                ("x-message-ttl", 60_000_i64.into()),
                ("x-dead-letter-exchange", exchange.into()),
                ("x-dead-letter-routing-key", home.into()),
            ],
        );
        self.publish(name);
    }

    fn publish(&self, queue: &str) {
        let properties = Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        };
        self.broker
            .publish("", queue, properties, Headers::new(), queue)
            .unwrap();
    }

    fn home(&self, queue: &str) -> Vec<String> {
        let messages = self.broker.messages(queue);
        let mut bodies: Vec<_> = messages.iter().map(|m| m.text().into_owned()).collect();
        bodies.sort();
        bodies
    }
}

const PROFILES: [Profile; 2] = [Profile::V3_10, Profile::V4_0];

#[test]
fn waits_that_end_while_stopped_reach_classic_queues_only() {
    for profile in PROFILES {
        let waiting = Waiting::new(profile);
        waiting.broker.stop();
        waiting.clock.advance(MINUTE);
        assert_eq!(waiting.broker.queue("c.direct").unwrap().ready, 1);
        waiting.broker.start();
        assert_eq!(waiting.home("c"), ["c.default", "c.direct", "c.quorum"]);
        assert_eq!(waiting.home("q"), ["q.quorum"]);
        assert_eq!(waiting.broker.queue("q.direct").unwrap().ready, 0);
        // After the start the rungs work as before.
        waiting.publish("q.direct");
        waiting.clock.advance(MINUTE);
        assert_eq!(waiting.home("q"), ["q.direct", "q.quorum"]);
    }
}

#[test]
fn waits_that_outlast_the_downtime_end_normally() {
    for profile in PROFILES {
        let waiting = Waiting::new(profile);
        waiting.broker.restart();
        waiting.broker.stop();
        waiting.clock.advance(MINUTE - Duration::from_millis(1));
        waiting.broker.start();
        assert!(waiting.home("q").is_empty() && waiting.home("c").is_empty());
        waiting.clock.advance(Duration::from_millis(1));
        assert_eq!(waiting.home("q"), ["q.default", "q.direct", "q.quorum"]);
        assert_eq!(waiting.home("c"), ["c.default", "c.direct", "c.quorum"]);
    }
}

#[test]
fn dead_letter_chains_at_the_start_skip_quorum_queues() {
    let waiting = Waiting::new(Profile::V4_0);
    let no_wait = [
        ("x-message-ttl", 0_i64.into()),
        ("x-dead-letter-exchange", "home".into()),
        ("x-dead-letter-routing-key", "both".into()),
    ];
    waiting.declare("between", no_wait);
    for home in ["q", "c"] {
        waiting
            .broker
            .bind(home, "home", "both", &Headers::new())
            .unwrap();
    }
    waiting.rung("far", "classic", "", "between");
    waiting.broker.stop();
    waiting.clock.advance(MINUTE);
    waiting.broker.start();
    assert_eq!(
        waiting.home("c"),
        ["c.default", "c.direct", "c.quorum", "far"]
    );
    assert_eq!(waiting.home("q"), ["q.quorum"]);
}

#[test]
fn start_renews_x_expires_of_classic_queues_only() {
    let waiting = Waiting::new(Profile::V4_0);
    for kind in ["classic", "quorum"] {
        let arguments = [
            ("x-queue-type", kind.into()),
            ("x-expires", 60_000_i64.into()),
        ];
        waiting.declare(&format!("unused.{kind}"), arguments);
    }
    let exists = |kind: &str| waiting.broker.queue(&format!("unused.{kind}")).is_some();
    waiting.broker.stop();
    waiting.clock.advance(2 * MINUTE);
    assert!(exists("classic") && exists("quorum"));
    waiting.broker.start();
    assert!(!exists("quorum"));
    waiting.clock.advance(MINUTE - Duration::from_millis(1));
    assert!(exists("classic"));
    waiting.clock.advance(Duration::from_millis(1));
    assert!(!exists("classic"));
}

/// A clock that advances by a millisecond with each reading.
#[derive(Debug)]
struct SelfAdvancing {
    began: Instant,
    /// A counter without dependent data, so any ordering would do.
    readings: AtomicU32,
}

impl Clock for SelfAdvancing {
    fn now(&self) -> Instant {
        let readings = self.readings.fetch_add(1, Ordering::SeqCst);
        self.began + Duration::from_millis(readings.into())
    }

    fn epoch_millis(&self) -> i64 {
        0
    }

    fn at(&self, _due: Instant) -> Timer {
        Timer::never()
    }

    fn chance(&self) -> f64 {
        0.5
    }

    fn spawn(
        &self,
        role: Role,
        name: String,
        work: Box<dyn FnOnce() + Send>,
    ) -> Result<(), SpawnError> {
        threads::spawn(None, role, name, work)
    }
}

#[test]
fn no_wait_ends_during_a_restart() {
    let clock = SelfAdvancing {
        began: monotonic(),
        readings: AtomicU32::new(0),
    };
    let broker = Broker::launch("self-advancing", Profile::V4_0, Arc::new(clock)).unwrap();
    let clock = TestClock::new();
    let waiting = Waiting { broker, clock };
    waiting.declare("q", [("x-queue-type", "quorum".into())]);
    waiting.declare(
        "rung",
        [
            ("x-message-ttl", 4_i64.into()),
            ("x-dead-letter-exchange", "".into()),
            ("x-dead-letter-routing-key", "q".into()),
        ],
    );
    for sent in 1..=50 {
        waiting.publish("rung");
        for _ in 0..6 {
            waiting.broker.restart();
        }
        assert_eq!(waiting.home("q").len(), sent);
    }
}
