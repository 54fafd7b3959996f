//! Asking a broker that does not always answer.

use super::*;
use crate::message::headers::Headers;
use crate::time::clock::SystemClock;
use crate::transport::fake::dialled;

const LIMIT: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(10);

/// A link whose checks of queues that begin with `hangs` are answered only once the sender is gone or sends.
fn link() -> (Arc<Link>, Sender<()>) {
    let (release, released) = bounded::<()>(0);
    let answer = move |_, declaration: &Declaration| {
        if matches!(declaration, Declaration::Queue { name, .. } if name.starts_with("hangs")) {
            let _ = released.recv();
        }
        Ok(())
    };
    let link = Link::start(dialled(answer), "test", &SystemClock, |_| {}).unwrap();
    (link, release)
}

fn queue(name: &str) -> Declaration {
    Declaration::durable_queue(name, Headers::new())
}

fn check(name: &str) -> Operation {
    Operation::Check(queue(name))
}

/// Waits until a queue that does not hang is answered for.
#[track_caller]
fn answers(admin: &Admin) {
    let limit = later(monotonic(), PATIENCE);
    while admin.call(check("q")).is_err() {
        assert!(monotonic() < limit, "nobody can ask any more");
        std::thread::yield_now();
    }
}

#[test]
fn however_many_calls_hang_a_link_that_answers_is_not_given_up() {
    let (link, release) = link();
    let admin = Admin::start(link.clone(), LIMIT, &SystemClock::shared()).unwrap();
    for n in 0..MOST_LEFT_BEHIND + 2 {
        assert_eq!(
            admin.call(check(&format!("hangs {n}"))),
            Err(Failure::TimedOut)
        );
    }
    // Nobody is left to ask.
    assert_eq!(admin.call(check("q")), Err(Failure::TimedOut));
    assert!(!link.is_gone());
    drop(release);
    answers(&admin);
    link.kill();
}

#[test]
fn one_queue_that_hangs_keeps_one_thread_however_often_it_is_asked_for() {
    let (link, _release) = link();
    let admin = Admin::start(link.clone(), LIMIT, &SystemClock::shared()).unwrap();
    for _ in 0..3 * MOST_LEFT_BEHIND {
        assert_eq!(admin.call(check("hangs")), Err(Failure::TimedOut));
    }
    answers(&admin);
    link.kill();
}

#[test]
fn a_call_that_is_answered_late_makes_room_again() {
    let (link, release) = link();
    let admin = Admin::start(link.clone(), LIMIT, &SystemClock::shared()).unwrap();
    for n in 0..3 * MOST_LEFT_BEHIND {
        let check = check(&format!("hangs {n}"));
        assert_eq!(admin.call(check), Err(Failure::TimedOut));
        release.send_timeout((), PATIENCE).unwrap();
    }
    answers(&admin);
    link.kill();
}

#[test]
fn a_thread_that_has_answered_just_when_it_is_left_behind_ends() {
    let (link, _release) = link();
    let performer = Performer::start(&link, &SystemClock).unwrap();
    performer.operations.send(check("q")).unwrap();
    while performer.results.is_empty() {
        std::thread::yield_now();
    }
    let ended = performer.ended.clone();
    drop(performer);
    assert!(ended.recv_timeout(PATIENCE).unwrap_err().is_disconnected());
    link.kill();
}
