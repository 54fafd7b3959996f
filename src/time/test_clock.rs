//! A clock that stands still until the test moves it.

use super::clock::{Clock, Timer};
use super::instant::{later, monotonic};
use super::threads::{self, Crew, Role, SpawnError};
use crossbeam_channel::Sender;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long, in real time, the library's threads may take over what there is to do at one moment.
const PATIENCE: Duration = Duration::from_secs(60);
/// More moments than this, with no end in sight, are something that repeats for ever.
const MOST_MOMENTS: usize = 10_000;
/// More than this until a known end are more than a test waits for.
const MOST_MOMENTS_UNTIL: usize = 100_000;
/// How far the clock moves at once: a hundred years. Further than that is not every system's time.
const FURTHEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// 2026-01-01T00:00:00Z, when every test clock starts.
const STARTS_AT_MILLIS: i64 = 1_767_225_600_000;

/// A clock that stands still until the test moves it.
///
/// An embedded broker that runs on one ([`MemoryBroker::with_clock`](crate::testing::MemoryBroker::with_clock)), and every connection to
/// it, take the time of everything that waits from it: message TTLs and queue expiry, the waits of retries and their
/// jitter, the pauses before a message is handed back or a consumer or connection tries again, and the age that
/// [`give_up_after`](crate::RetryPolicy::give_up_after) compares.
///
/// What protects a service from a broker that does not answer stays on real time:
///
/// * heartbeats, and with them when a silent broker is given up;
/// * the limits on connecting, calls and confirms. A test of [`freeze`](crate::testing::MemoryBroker::freeze),
///   [`mute`](crate::testing::MemoryBroker::mute) or [`lose_next_confirms`](crate::testing::MemoryBroker::lose_next_confirms) sets
///   [`connect_timeout`](crate::ConnectionBuilder::connect_timeout), which is that of calls too, and
///   [`confirm_timeout`](crate::ConnectionBuilder::confirm_timeout) low. [`advance`](Self::advance) does not wait for them: it
///   returns while a copy still waits for a confirm that a fault has taken away;
/// * the deadline of a close, and how long the deliveries that it leaves behind
///   [have run](crate::StrandedDelivery::running_for).
///
/// So is the latency of a broker that is [slow](crate::testing::MemoryBroker::set_latency). Of what is
/// [observed](crate::metrics::Observer), how long a publish took is real time. How long a handler ran, the pause before an attempt
/// to connect and how long a connection was down are the clock's, on which a handler takes no time at all.
///
/// It starts at 2026-01-01T00:00:00Z. Clones are the same clock.
///
/// [`advance`](Self::advance) and [`advance_until_idle`](Self::advance_until_idle) go from one moment at which something is due
/// to the next, and at each wait until no thread of the library has anything left to do: when they return,
/// everything that was due has happened, handlers included. So a handler must not wait for the thread that moves the clock,
/// and cannot move it itself.
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
    /// Held by whoever moves the clock.
    moving: Mutex<()>,
}

struct Time {
    passed: Duration,
    chance: f64,
    /// By when they are due, and in the order in which they were set.
    timers: BTreeMap<(Instant, u64), Alarm>,
    set: u64,
}

struct Alarm {
    rings: Weak<Sender<Instant>>,
    /// Who has set it, and waits for it.
    set_by: Thread,
}

impl Time {
    fn next_due(&mut self) -> Option<Instant> {
        self.timers
            .retain(|_, alarm| alarm.rings.strong_count() > 0);
        self.timers.keys().next().map(|(due, _)| *due)
    }

    /// The names of the threads that wait, each once.
    fn waiting(&self) -> Vec<String> {
        let threads = self.timers.values().map(|alarm| &alarm.set_by);
        let names = threads.map(|thread| thread.name().unwrap_or("a thread without a name"));
        let names: BTreeSet<&str> = names.collect();
        names.into_iter().map(str::to_owned).collect()
    }
}

impl TestClock {
    /// A clock that stands at its start.
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

    /// Moves the clock on by `duration`. When this returns, everything due until then has happened.
    ///
    /// `Duration::ZERO` waits for what is due now, such as the delivery of what has just been published. What is due at last,
    /// however late that is, [`advance_until_idle`](Self::advance_until_idle) comes to.
    ///
    /// # Panics
    ///
    /// In a handler or an observer, which the clock would wait for; and when a thread of the library is busy for more than a
    /// minute of real time, such as in a handler that does not return. The text names the threads.
    ///
    /// When `duration` is more than 100 years, before anything has moved. And when something is due at more than 100 000
    /// moments until then, which takes one to three minutes of real time: something that is tried every second for two days,
    /// say. The text names the threads that wait for the clock.
    pub fn advance(&self, duration: Duration) {
        assert!(
            duration <= FURTHEST,
            "the clock moves 100 years at most, and was to move {duration:?}; advance_until_idle moves it for as long as \
             anything waits for it"
        );
        let _moving = self.begin_to_move();
        self.move_until(later(self.now(), duration), MOST_MOMENTS_UNTIL);
    }

    fn move_until(&self, until: Instant, most: usize) {
        let began = self.now();
        for _ in 0..most {
            if !self.step(until) {
                return self.settle();
            }
            self.settle();
        }
        panic!(
            "{:?} wait for the clock again and again: in {most} moments it came only {:?} of {:?} far",
            self.waiting(),
            self.now().saturating_duration_since(began),
            until.saturating_duration_since(began),
        );
    }

    /// Moves the clock on for as long as anything waits for it, and returns how far that was.
    ///
    /// # Panics
    ///
    /// As [`advance`](Self::advance), and when there is no end to it after 10 000 moments, some seconds of real time. The text
    /// names the threads that still wait for the clock. A consumer whose queue is gone keeps trying for ever, and so does a
    /// connection to a broker that is stopped or takes none, and a message that is handed back because the broker takes no copy of it:
    /// use [`advance`](Self::advance) there.
    pub fn advance_until_idle(&self) -> Duration {
        let _moving = self.begin_to_move();
        let began = self.now();
        for _ in 0..MOST_MOMENTS {
            let Some(due) = self.next_due() else {
                return self.now().saturating_duration_since(began);
            };
            self.step(due);
            self.settle();
        }
        panic!(
            "{:?} wait for the clock again and again: after {:?} in {MOST_MOMENTS} moments it is not idle. What tries for ever, \
             such as a consumer whose queue is gone or a connection to a stopped broker, has no end: use advance",
            self.waiting(),
            self.now().saturating_duration_since(began)
        );
    }

    /// How far the clock has been moved since it was made.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.time.lock().passed
    }

    /// Where in their range jittered waits fall from now on: 0 is the shortest, 1 the longest. Defaults to 0.5, the wait
    /// without jitter.
    ///
    /// # Panics
    ///
    /// When it is not a number from 0 to 1.
    pub fn set_jitter(&self, place: f64) {
        assert!(
            (0.0..=1.0).contains(&place),
            "the place is a number from 0 to 1"
        );
        self.0.time.lock().chance = place;
    }

    fn begin_to_move(&self) -> MutexGuard<'_, ()> {
        assert!(
            !self.0.crew.is_own(),
            "a handler or an observer cannot move the clock, which waits for it"
        );
        let moving = self.0.moving.lock();
        self.settle();
        moving
    }

    fn waiting(&self) -> Vec<String> {
        self.0.time.lock().waiting()
    }

    /// When the next timer is due that somebody still waits for.
    fn next_due(&self) -> Option<Instant> {
        self.0.time.lock().next_due()
    }

    /// Fires the first timer that is due until `until`, and only that, so that what follows from each has happened before the
    /// next. When there is none it is `until` now, and the answer false.
    fn step(&self, until: Instant) -> bool {
        let mut time = self.0.time.lock();
        let due = time.next_due().filter(|due| *due <= until);
        let now = due.unwrap_or(until);
        time.passed = now.saturating_duration_since(self.0.began);
        let fired = due.and_then(|_| time.timers.pop_first());
        drop(time);
        if let Some(alarm) = fired.and_then(|(_, alarm)| alarm.rings.upgrade()) {
            let _ = alarm.send(now);
        }
        due.is_some()
    }

    fn settle(&self) {
        if let Err(at_work) = self.0.crew.settle(later(monotonic(), PATIENCE)) {
            panic!(
                "the clock waits for threads that are busy for more than {PATIENCE:?}: {at_work:?}"
            );
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
        let (timer, alarm) = Timer::new();
        let mut time = self.0.time.lock();
        if due <= later(self.0.began, time.passed) {
            let _ = alarm.upgrade().map(|alarm| alarm.send(due));
        } else {
            time.set += 1;
            let key = (due, time.set);
            let alarm = Alarm {
                rings: alarm,
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn timers_fire_in_order_and_only_when_their_time_has_come() {
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
    fn a_timer_that_nobody_waits_for_moves_nothing() {
        let clock = TestClock::new();
        drop(clock.at(clock.now() + SECOND));
        assert_eq!(clock.advance_until_idle(), Duration::ZERO);
    }

    #[test]
    fn a_wait_that_follows_from_another_is_within_the_same_advance() {
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
    fn a_timer_that_is_set_while_the_clock_moves_never_takes_it_back() {
        let clock = TestClock::new();
        let start = clock.now();
        let late = clock.at(start + 3 * SECOND);
        assert_eq!(clock.next_due(), Some(start + 3 * SECOND));
        // Somebody outside, between the look and the step.
        let (first, second) = (clock.at(start + SECOND), clock.at(start + 2 * SECOND));
        let mut times = Vec::new();
        while clock.step(start + 3 * SECOND) {
            times.push(clock.elapsed());
        }
        assert_eq!(times, [SECOND, 2 * SECOND, 3 * SECOND]);
        assert!(first.is_due() && second.is_due() && late.is_due());
    }

    /// A clock with something that waits for a second again and again.
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
        expected = "[\"ticker\"] wait for the clock again and again: after 10000s in 10000 moments it is not idle"
    )]
    fn what_waits_again_and_again_is_no_endless_loop_and_is_named() {
        ticking().advance_until_idle();
    }

    #[test]
    #[should_panic(
        expected = "[\"ticker\"] wait for the clock again and again: in 10 moments it came only 10s of 3600s far"
    )]
    fn too_many_moments_on_the_way_are_not_waited_for() {
        let clock = ticking();
        clock.advance(Duration::ZERO);
        clock.move_until(clock.now() + 3600 * SECOND, 10);
    }

    #[test]
    fn as_many_moments_as_there_may_be_are_not_too_many() {
        let clock = ticking();
        clock.advance(Duration::ZERO);
        clock.move_until(clock.now() + 9 * SECOND, 10);
        assert_eq!(clock.elapsed(), 9 * SECOND);
    }

    #[test]
    fn further_than_a_clock_can_go_is_refused_before_it_moves() {
        let clock = TestClock::new();
        clock.advance(FURTHEST);
        let further = std::panic::AssertUnwindSafe(|| clock.advance(Duration::MAX));
        assert!(std::panic::catch_unwind(further).is_err());
        assert_eq!(clock.elapsed(), FURTHEST);
    }

    #[test]
    fn the_epoch_moves_with_it() {
        let clock = TestClock::new();
        clock.advance(Duration::from_millis(1500));
        assert_eq!(clock.epoch_millis(), STARTS_AT_MILLIS + 1500);
    }
}
