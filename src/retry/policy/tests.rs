//! Tests of retry policies.

use super::*;
use proptest::prelude::*;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn invalid_policies_are_refused_with_a_reason() {
    let refused = |result: Result<RetryPolicy, PolicyError>| result.unwrap_err().to_string();
    let attempts = "0 attempts: the first delivery counts, so the minimum is 1";
    assert_eq!(refused(RetryPolicy::fixed(0, secs(1))), attempts);
    assert_eq!(
        refused(RetryPolicy::exponential(0, secs(1), secs(2))),
        attempts
    );
    assert_eq!(
        refused(RetryPolicy::exponential(2, Duration::ZERO, secs(2))),
        "initial delay 0: doubling leaves it 0 (a fixed policy may have a delay of 0)"
    );
    assert_eq!(
        refused(RetryPolicy::exponential(
            2,
            secs(2),
            Duration::from_millis(1999)
        )),
        "cap 1.999s: below the initial delay 2s"
    );
    for (jitter, shown) in [
        (1.1, "1.1"),
        (-0.1, "-0.1"),
        (f64::NAN, "NaN"),
        (f64::INFINITY, "inf"),
    ] {
        assert_eq!(
            refused(RetryPolicy::none().with_jitter(jitter)),
            format!("jitter {shown}: it must be between 0 and 1")
        );
    }
}

#[test]
fn boundary_values_are_accepted() {
    assert!(RetryPolicy::fixed(1, Duration::ZERO).is_ok());
    assert!(RetryPolicy::exponential(1, secs(1), secs(1)).is_ok());
    for jitter in [0.0, 1.0] {
        assert_eq!(
            RetryPolicy::none().with_jitter(jitter).unwrap().jitter(),
            jitter
        );
    }
}

#[test]
fn defaults() {
    let none = RetryPolicy::default();
    assert_eq!(none, RetryPolicy::none());
    assert_eq!(
        (none.attempts(), none.jitter(), none.limit()),
        (1, 0.0, None)
    );
    assert_eq!(none.schedule().count(), 0);
    assert_eq!(RetryPolicy::fixed(3, secs(1)).unwrap().jitter(), 0.0);
    assert_eq!(
        RetryPolicy::exponential(3, secs(1), secs(2))
            .unwrap()
            .jitter(),
        0.2
    );
    assert_eq!(none.clone().give_up_after(Duration::ZERO), none);
    assert_eq!(none.give_up_after(secs(5)).limit(), Some(secs(5)));
}

#[test]
fn display_is_one_line() {
    let fixed = RetryPolicy::fixed(4, secs(30)).unwrap();
    let exponential = RetryPolicy::exponential(5, secs(1), secs(60)).unwrap();
    assert_eq!(RetryPolicy::none().to_string(), "none");
    assert_eq!(fixed.to_string(), "fixed(4, 30s)");
    assert_eq!(
        fixed.with_jitter(0.5).unwrap().to_string(),
        "fixed(4, 30s, jitter 0.5)"
    );
    assert_eq!(
        exponential.clone().with_jitter(-0.0).unwrap().to_string(),
        "exponential(5, 1s, 1m, jitter 0)"
    );
    assert_eq!(
        exponential.give_up_after(secs(21_600)).to_string(),
        "exponential(5, 1s, 1m, jitter 0.2), give up after 6h"
    );
}

#[test]
fn delays_are_rounded_up_after_doubling() {
    let policy = RetryPolicy::exponential(5, Duration::from_micros(300), secs(1)).unwrap();
    let millis: Vec<_> = policy.schedule().map(|delay| delay.as_micros()).collect();
    assert_eq!(millis, [1000, 1000, 2000, 3000]);
}

#[test]
fn nothing_overflows() {
    let policy =
        RetryPolicy::exponential(1_000_000, Duration::from_nanos(1), Duration::MAX).unwrap();
    assert_eq!(policy.base(0), policy.base(1));
    assert_eq!(
        policy.base(94),
        rounded_up(Duration::from_nanos(1) * (1 << 31) * (1 << 31) * (1 << 31))
    );
    assert_eq!(policy.base(95), Duration::MAX);
    assert_eq!(policy.base(u32::MAX), Duration::MAX);
    assert_eq!(policy.schedule().len(), 999_999);
    assert_eq!(policy.schedule().next_back(), Some(Duration::MAX));
    let capped = RetryPolicy::exponential(100, secs(1), secs(60)).unwrap();
    assert_eq!(capped.schedule().next_back(), Some(secs(60)));
}

#[test]
fn delay_and_threshold_decide_where_to_wait() {
    assert!(in_broker(secs(30), secs(30)));
    assert!(!in_broker(secs(30) - Duration::from_nanos(1), secs(30)));
    assert!(!in_broker(secs(30), Duration::ZERO));
    assert!(!in_broker(Duration::ZERO, Duration::ZERO));
}

#[test]
fn jitter_spreads_in_both_directions() {
    let policy = RetryPolicy::fixed(2, secs(10))
        .unwrap()
        .with_jitter(0.5)
        .unwrap();
    assert_eq!(policy.jittered(secs(10), 0.0), secs(5));
    assert_eq!(policy.jittered(secs(10), 0.5), secs(10));
    assert_eq!(
        policy.jittered(secs(10), 0.75),
        Duration::from_millis(12_500)
    );
    let wide = policy.with_jitter(1.0).unwrap();
    assert_eq!(wide.jittered(secs(10), 0.0), SHORTEST_WAIT);
    assert_eq!(wide.jittered(Duration::ZERO, 0.9), Duration::ZERO);
    assert_eq!(
        RetryPolicy::none().jittered(Duration::from_nanos(1), 0.5),
        SHORTEST_WAIT
    );
    assert_eq!(wide.jittered(Duration::MAX, 0.9), Duration::MAX);
}

#[test]
fn age_limit_is_inclusive_and_attempts_come_first() {
    let policy = RetryPolicy::fixed(3, secs(1))
        .unwrap()
        .give_up_after(secs(5));
    let just_below = secs(5) - Duration::from_nanos(1);
    let next = |attempt, age| policy.next_step(attempt, age, secs(30));
    assert_eq!(next(2, Some(just_below)), NextStep::Thread(secs(1)));
    assert_eq!(next(2, Some(secs(5))), NextStep::TooOld);
    assert_eq!(next(2, None), NextStep::Thread(secs(1)));
    assert_eq!(next(3, Some(secs(5))), NextStep::OutOfAttempts);
    assert_eq!(next(4, None), NextStep::OutOfAttempts);
}

fn durations() -> impl Strategy<Value = Duration> {
    let any_duration = (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n));
    prop_oneof![
        any_duration,
        (0..100_000_u64).prop_map(Duration::from_millis),
        (0..10_000_000_u64).prop_map(Duration::from_nanos),
        Just(Duration::MAX),
    ]
}

proptest! {
    #[test]
    fn exponential_delays_rise_to_the_cap(
        attempts in 1..200_u32, a in durations(), b in durations(),
    ) {
        let shortest = Duration::from_nanos(1);
        let (initial, cap) = (a.min(b).max(shortest), a.max(b).max(shortest));
        let policy = RetryPolicy::exponential(attempts, initial, cap).unwrap();
        let delays: Vec<_> = policy.schedule().collect();
        prop_assert_eq!(delays.len(), attempts as usize - 1);
        prop_assert!(delays.is_sorted());
        prop_assert!(delays.iter().all(|&d| d >= initial && d <= rounded_up(cap)));
        prop_assert_eq!(policy.base(200), rounded_up(cap));
        // The definition: one doubling at a time.
        let mut plain = initial;
        for delay in delays {
            prop_assert_eq!(delay, rounded_up(plain));
            plain = plain.saturating_mul(2).min(cap);
        }
    }

    #[test]
    fn fixed_delays_are_constant(
        attempts in 1..1_000_001_u32, delay in durations(), attempt in any::<u32>(),
    ) {
        let policy = RetryPolicy::fixed(attempts, delay).unwrap();
        prop_assert_eq!(policy.base(attempt), rounded_up(delay));
        prop_assert_eq!(policy.schedule().len(), attempts as usize - 1);
    }

    #[test]
    fn jitter_stays_within_its_fraction(
        delay in durations(), jitter in 0.0..=1.0_f64, uniform in 0.0..1.0_f64,
    ) {
        let policy = RetryPolicy::none().with_jitter(jitter).unwrap();
        let wait = policy.jittered(delay, uniform);
        if delay.is_zero() {
            prop_assert_eq!(wait, Duration::ZERO);
            return Ok(());
        }
        let (nominal, got) = (delay.as_secs_f64(), wait.as_secs_f64());
        let rounding = nominal * 1e-9 + 1e-9;
        prop_assert!(wait >= SHORTEST_WAIT);
        prop_assert!(got >= nominal * (1.0 - jitter) - rounding);
        prop_assert!(got <= (nominal * (1.0 + jitter) + rounding).max(0.001));
    }
}
