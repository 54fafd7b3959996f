//! A clock for tests, which stands still until the test moves it.

use super::clock::{Clock, Timer};
use super::crew::Crew;
use super::instant::{later, monotonic};
use super::threads::{self, Role, SpawnError};
use crossbeam_channel::{Sender, bounded};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long, in real time, the library's threads may work at one moment of the clock.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The limit on moments while the end is unknown. Beyond it, a wait repeats without end.
const MAX_MOMENTS_UNTIL_IDLE: usize = 10_000;
/// The limit on moments until a known end. A test does not wait for more.
const MAX_MOMENTS: usize = 100_000;
/// The longest move, a hundred years. Not every system represents later instants.
const MAX_ADVANCE: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// The start of every test clock, 2026-01-01T00:00:00Z.
const STARTS_AT_MILLIS: i64 = 1_767_225_600_000;

/// A clock that stands still until the test moves it.
///
/// An embedded broker that runs on one
/// ([`MemoryBroker::with_clock`](crate::testing::MemoryBroker::with_clock)), and every connection
/// to it, take the time of everything that waits from it: message TTLs and queue expiry, the waits
/// of retries and their jitter, the pauses before a message is requeued or a consumer or connection
/// tries again, and the age that [`give_up_after`](crate::RetryPolicy::give_up_after) compares.
///
/// The protections against a broker that does not answer stay on real time:
///
/// * heartbeats, and with them the detection of a silent broker;
/// * the timeouts of connecting, calls and confirms. A test of
///   [`freeze`](crate::testing::MemoryBroker::freeze), [`mute`](crate::testing::MemoryBroker::mute)
///   or [`lose_next_confirms`](crate::testing::MemoryBroker::lose_next_confirms) sets a short
///   [`connect_timeout`](crate::ConnectionBuilder::connect_timeout), which is that of calls too,
///   and a short [`confirm_timeout`](crate::ConnectionBuilder::confirm_timeout).
///   [`advance`](Self::advance) does not wait for them: it returns while a copy still waits for a
///   confirm that a fault withholds;
/// * the deadline of a close, and how long the deliveries that it leaves behind
///   [have run](crate::StrandedDelivery::running_for).
///
/// The latency of a [slow](crate::testing::MemoryBroker::set_latency) broker is real time, too. Of
/// the [metrics](crate::metrics::Observer), the duration of a publish is real time. The duration of
/// a handler, the pause before an attempt to connect, and how long a connection was down are on the
/// clock, where a handler takes no time at all.
///
/// The clock starts at 2026-01-01T00:00:00Z. Clones are the same clock.
///
/// [`advance`](Self::advance) and [`advance_until_idle`](Self::advance_until_idle) move from one
/// moment at which something is due to the next, and at each of them wait until no thread of the
/// library has work left. When they return, everything that was due has happened, handlers
/// included. So a handler must not wait for the thread that moves the clock, and cannot move the
/// clock itself.
///
/// ```
/// use rungmq::testing::{MemoryBroker, TestClock};
/// use rungmq::{Ack, Connection, Queue, RetryPolicy, Topology};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = TestClock::new();
/// let broker = MemoryBroker::with_clock(&clock);
/// let policy = RetryPolicy::fixed(3, Duration::from_secs(2 * 60 * 60))?;
/// let mq = Connection::builder(broker.url()).retry_policy(policy.clone()).open()?;
/// Topology::new().queue(Queue::new("orders").dead_letter().retry(&policy)).apply(&mq)?;
/// mq.consume("orders", |_: rungmq::Message<String>| Ack::retry("the warehouse is closed"))?;
///
/// mq.publish("", "orders", "an order")?;
/// let waited = clock.advance_until_idle();
/// assert_eq!(waited, Duration::from_secs(4 * 60 * 60));
/// assert_eq!(broker.messages("orders.dlq").len(), 1);
/// # mq.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TestClock(Arc<Inner>);

struct Inner {
    began: Instant,
    time: Mutex<Time>,
    crew: Arc<Crew>,
    /// Held for the whole of a move, so that two threads do not move the clock together. Locked
    /// before `time`.
    moving: Mutex<()>,
}

struct Time {
    passed: Duration,
    chance: f64,
    /// By due time, then in the order in which they were set.
    timers: BTreeMap<(Instant, u64), Alarm>,
    /// The number of timers set so far.
    set: u64,
}

struct Alarm {
    /// Makes the timer ready. It cannot be upgraded after the timer was dropped.
    sender: Weak<Sender<Instant>>,
    /// The thread that set the timer, and waits for it.
    set_by: Thread,
}

impl Time {
    /// When the next timer is due, without those that were dropped.
    fn next_due(&mut self) -> Option<Instant> {
        self.timers
            .retain(|_, alarm| alarm.sender.strong_count() > 0);
        self.timers.keys().next().map(|(due, _)| *due)
    }

    /// The names of the threads that wait, without duplicates.
    fn waiting(&self) -> Vec<String> {
        let threads = self.timers.values().map(|alarm| &alarm.set_by);
        let names = threads.map(|thread| thread.name().unwrap_or("an unnamed thread"));
        let names: BTreeSet<&str> = names.collect();
        names.into_iter().map(str::to_owned).collect()
    }
}

impl TestClock {
    /// Makes a clock that stands at its start.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            began: monotonic(),
            time: Mutex::new(Time {
                passed: Duration::ZERO,
                chance: 0.5,
                timers: BTreeMap::new(),
                set: 0,
            }),
            crew: Arc::default(),
            moving: Mutex::new(()),
        }))
    }

    /// Moves the clock by `duration`. When this returns, everything due by then has happened.
    ///
    /// `Duration::ZERO` completes what is due now, such as the delivery of what was just published.
    /// [`advance_until_idle`](Self::advance_until_idle) moves to the last wait, however far that
    /// is.
    ///
    /// # Panics
    ///
    /// * In a handler or an observer, for which the clock would wait.
    /// * When a thread of the library works for more than a minute of real time, such as in a
    ///   handler that does not return. The message names the threads.
    /// * When `duration` is more than 100 years, before anything moves.
    /// * When something is due at more than 100 000 moments on the way, which take one to three
    ///   minutes of real time: a retry every second for two days, for example. The message names
    ///   the threads that wait for the clock.
    pub fn advance(&self, duration: Duration) {
        assert!(
            duration <= MAX_ADVANCE,
            "the clock moves at most 100 years, not {duration:?}; to move it for as long as \
             anything waits for it, use `advance_until_idle`"
        );
        let _moving = self.begin_to_move();
        self.run(Some(later(self.now(), duration)), MAX_MOMENTS);
    }

    /// Moves the clock for as long as anything waits for it, and returns how far it moved.
    ///
    /// # Panics
    ///
    /// As [`advance`](Self::advance), and when there is no end after 10 000 moments, which take
    /// some seconds of real time. The message names the threads that still wait for the clock.
    ///
    /// Some waits repeat without end: those of a consumer whose queue is gone, of a connection to a
    /// broker that is stopped or refuses connections, and of a message that is requeued because the
    /// broker takes no copy of it. Use [`advance`](Self::advance) there.
    pub fn advance_until_idle(&self) -> Duration {
        let _moving = self.begin_to_move();
        let began = self.now();
        self.run(None, MAX_MOMENTS_UNTIL_IDLE);
        self.now().saturating_duration_since(began)
    }

    /// Moves from moment to moment, until `until`, or until no timer is set if there is none.
    fn run(&self, until: Option<Instant>, max_moments: usize) {
        let began = self.now();
        for _ in 0..max_moments {
            let Some(limit) = until.or_else(|| self.next_due()) else {
                return;
            };
            let fired = self.step(limit);
            self.wait_until_idle();
            if until.is_some() && !fired {
                return;
            }
        }
        let waiting = self.waiting();
        let passed = self.now().saturating_duration_since(began);
        match until {
            Some(until) => panic!(
                "{waiting:?} wait for the clock again and again: \
                 in {max_moments} moments it moved only {passed:?} of {:?}",
                until.saturating_duration_since(began),
            ),
            None => panic!(
                "{waiting:?} wait for the clock again and again: \
                 after {passed:?} in {max_moments} moments it is not idle. Waits without end, \
                 such as for a queue that is gone or a stopped broker, need `advance`"
            ),
        }
    }

    /// How far the clock has moved since it was made.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.time.lock().passed
    }

    /// Sets where in their range jittered waits fall from now on: 0 is the shortest, 1 the longest.
    /// Defaults to 0.5, the wait without jitter.
    ///
    /// # Panics
    ///
    /// When `place` is not a number from 0 to 1.
    pub fn set_jitter(&self, place: f64) {
        assert!(
            (0.0..=1.0).contains(&place),
            "the jitter must be a number from 0 to 1, not {place}"
        );
        self.0.time.lock().chance = place;
    }

    /// Takes the right to move the clock, after everything due now has happened.
    fn begin_to_move(&self) -> MutexGuard<'_, ()> {
        assert!(
            !self.0.crew.contains_this_thread(),
            "a handler or an observer cannot move the clock, which waits for it"
        );
        let moving = self.0.moving.lock();
        self.wait_until_idle();
        moving
    }

    fn waiting(&self) -> Vec<String> {
        self.0.time.lock().waiting()
    }

    /// When the next timer is due.
    fn next_due(&self) -> Option<Instant> {
        self.0.time.lock().next_due()
    }

    /// Moves to the first timer due by `until` and fires it; without one, moves to `until` and
    /// returns false.
    ///
    /// It fires no second timer of the same moment, so that all consequences of one come before the
    /// next.
    fn step(&self, until: Instant) -> bool {
        let mut time = self.0.time.lock();
        let due = time.next_due().filter(|due| *due <= until);
        let now = due.unwrap_or(until);
        time.passed = now.saturating_duration_since(self.0.began);
        let fired = due.and_then(|_| time.timers.pop_first());
        // The thread that the timer wakes reads the time.
        drop(time);
        if let Some(alarm) = fired.and_then(|(_, alarm)| alarm.sender.upgrade()) {
            let _ = alarm.send(now);
        }
        due.is_some()
    }

    /// Waits until no thread of the library has work left at this moment.
    fn wait_until_idle(&self) {
        let limit = later(monotonic(), IDLE_TIMEOUT);
        if let Err(working) = self.0.crew.wait_until_idle(limit) {
            panic!("the clock cannot move: {working:?} have worked for more than {IDLE_TIMEOUT:?}");
        }
    }
}

impl Default for TestClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TestClock").field(&self.elapsed()).finish()
    }
}

impl Clock for TestClock {
    fn now(&self) -> Instant {
        later(self.0.began, self.elapsed())
    }

    fn epoch_millis(&self) -> i64 {
        let passed = i64::try_from(self.elapsed().as_millis()).unwrap_or(i64::MAX);
        STARTS_AT_MILLIS.saturating_add(passed)
    }

    fn at(&self, due: Instant) -> Timer {
        let (timer, alarm) = new_timer();
        // The lock spans the comparison and the insertion: a move in between would pass over the
        // timer.
        let mut time = self.0.time.lock();
        if due <= later(self.0.began, time.passed) {
            let _ = alarm.upgrade().map(|alarm| alarm.send(due));
        } else {
            time.set += 1;
            let key = (due, time.set);
            let alarm = Alarm {
                sender: alarm,
                set_by: thread::current(),
            };
            time.timers.insert(key, alarm);
        }
        timer
    }

    fn chance(&self) -> f64 {
        self.0.time.lock().chance
    }

    fn spawn(
        &self,
        role: Role,
        name: String,
        work: Box<dyn FnOnce() + Send>,
    ) -> Result<(), SpawnError> {
        threads::spawn(Some(&self.0.crew), role, name, work)
    }
}

/// A timer, and the sender that makes it ready, which cannot be upgraded after the timer's
/// drop.
fn new_timer() -> (Timer, Weak<Sender<Instant>>) {
    let (sender, due) = bounded(1);
    let sender = Arc::new(sender);
    let weak = Arc::downgrade(&sender);
    let timer = Timer {
        due,
        _sender: Some(sender),
    };
    (timer, weak)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn timers_fire_in_order_and_not_before_they_are_due() {
        let clock = TestClock::new();
        let start = clock.now();
        let late = clock.at(start + 2 * SECOND);
        let soon = clock.at(start + SECOND);
        assert!(clock.at(start).is_due());
        clock.advance(SECOND / 2);
        assert!(!soon.is_due());
        clock.advance(SECOND / 2);
        assert!(soon.is_due() && !soon.is_due() && !late.is_due());
        assert_eq!(clock.elapsed(), SECOND);
        assert_eq!(clock.advance_until_idle(), SECOND);
        assert!(late.is_due());
    }

    #[test]
    fn dropped_timer_does_not_move_clock() {
        let clock = TestClock::new();
        drop(clock.at(clock.now() + SECOND));
        assert_eq!(clock.advance_until_idle(), Duration::ZERO);
    }

    #[test]
    fn follow_up_waits_fall_within_same_advance() {
        let clock = TestClock::new();
        let (done, count) = crossbeam_channel::unbounded();
        let inner = clock.clone();
        let work = move || {
            for round in 0..5 {
                let timer = inner.at(inner.now() + SECOND);
                let mut select = crossbeam_channel::Select::new();
                select.recv(&timer);
                threads::ready(select, None);
                done.send((round, inner.elapsed())).unwrap();
            }
        };
        clock
            .spawn(Role::Owner, "waiter".to_owned(), Box::new(work))
            .unwrap();
        clock.advance(3 * SECOND);
        let rounds: Vec<_> = count.try_iter().collect();
        assert_eq!(rounds, [(0, SECOND), (1, 2 * SECOND), (2, 3 * SECOND)]);
        assert_eq!(clock.advance_until_idle(), 2 * SECOND);
    }

    #[test]
    fn timer_set_during_move_does_not_turn_clock_back() {
        let clock = TestClock::new();
        let start = clock.now();
        let late = clock.at(start + 3 * SECOND);
        assert_eq!(clock.next_due(), Some(start + 3 * SECOND));
        // A thread outside the crew may set timers between the look and the step.
        let (first, second) = (clock.at(start + SECOND), clock.at(start + 2 * SECOND));
        let mut times = Vec::new();
        while clock.step(start + 3 * SECOND) {
            times.push(clock.elapsed());
        }
        assert_eq!(times, [SECOND, 2 * SECOND, 3 * SECOND]);
        assert!(first.is_due() && second.is_due() && late.is_due());
    }

    /// A clock with a thread that waits for a second repeatedly.
    fn ticking() -> TestClock {
        let clock = TestClock::new();
        let inner = clock.clone();
        let work = move || {
            loop {
                let timer = inner.at(inner.now() + SECOND);
                let mut select = crossbeam_channel::Select::new();
                select.recv(&timer);
                threads::ready(select, None);
            }
        };
        clock
            .spawn(Role::Owner, "ticker".to_owned(), Box::new(work))
            .unwrap();
        clock
    }

    #[test]
    #[should_panic(
        expected = "[\"ticker\"] wait for the clock again and again: after 10000s in 10000 moments"
    )]
    fn endless_wait_is_named() {
        ticking().advance_until_idle();
    }

    #[test]
    #[should_panic(
        expected = "[\"ticker\"] wait for the clock again and again: in 10 moments it moved only"
    )]
    fn too_many_moments_on_the_way_panic() {
        let clock = ticking();
        clock.advance(Duration::ZERO);
        clock.run(Some(clock.now() + 3600 * SECOND), 10);
    }

    #[test]
    fn exactly_the_allowed_moments_pass() {
        let clock = ticking();
        clock.advance(Duration::ZERO);
        clock.run(Some(clock.now() + 9 * SECOND), 10);
        assert_eq!(clock.elapsed(), 9 * SECOND);
    }

    #[test]
    fn too_long_advance_panics_before_it_moves() {
        let clock = TestClock::new();
        clock.advance(MAX_ADVANCE);
        let further = std::panic::AssertUnwindSafe(|| clock.advance(Duration::MAX));
        assert!(std::panic::catch_unwind(further).is_err());
        assert_eq!(clock.elapsed(), MAX_ADVANCE);
    }

    #[test]
    fn epoch_millis_follow_the_clock() {
        let clock = TestClock::new();
        clock.advance(Duration::from_millis(1500));
        assert_eq!(clock.epoch_millis(), STARTS_AT_MILLIS + 1500);
    }
}
