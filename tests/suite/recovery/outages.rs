//! Tests of publishing in a loop while the broker comes and goes: every publish has a result, and
//! it is true.

use std::collections::HashMap;
use std::thread;

use rungmq::{Publish, PublishError};

use super::{a_queue, take_down, told, wait_until_up};
use crate::harness::observed::{SOON, now};
use crate::harness::wait::{let_pass, wait_for_value};
use crate::harness::worker_process::status;
use crate::harness::{Vhost, secs, wait_until};
use crate::suite::shutdown::alone::{alone, full_name, library_threads, through_a_proxy};
use crate::suite::steady;

/// What an answer says of whether the broker has the message.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Has,
    HasNot,
    Unknown,
}

fn answer(result: Result<rungmq::Envelope, PublishError>) -> Answer {
    match result {
        Ok(_) => Answer::Has,
        Err(error) if error.is_refused() => Answer::HasNot,
        Err(error) => {
            assert!(error.is_unknown(), "{error}");
            Answer::Unknown
        }
    }
}

#[test]
fn publish_results_are_true_while_connections_are_closed() {
    let vhost = Vhost::new();
    vhost.raw().classic("q");
    let (service, story) = told(&vhost.url());
    let answers = thread::scope(|scope| {
        let publishers: Vec<_> = (0..4)
            .map(|publisher| {
                let (mq, story) = (&service.mq, &story);
                scope.spawn(move || {
                    let mut answers = HashMap::new();
                    for n in 0..100_000 {
                        if story.recoveries().len() >= 5 && n > 100 {
                            break;
                        }
                        let id = format!("{publisher}-{n}");
                        let message = Publish::text("x").routing_key("q").id(&id);
                        let answer = answer(mq.publish_with(message.mandatory(true)));
                        if answer != Answer::Has {
                            let_pass(secs(0.01));
                        }
                        answers.insert(id, answer);
                    }
                    answers
                })
            })
            .collect();
        for n in 1..=5 {
            let before = service.published("", "confirmed");
            wait_until(SOON, "publishing goes on", || {
                service.published("", "confirmed") > before + 50
            });
            vhost.close_connections();
            story.wait_for_recoveries(n);
        }
        publishers
            .into_iter()
            .flat_map(|publisher| publisher.join().unwrap())
            .collect::<HashMap<_, _>>()
    });
    let mut stands: HashMap<String, usize> = HashMap::new();
    for got in vhost.raw().drain("q") {
        *stands
            .entry(got.message_id().unwrap().to_owned())
            .or_default() += 1;
    }
    for (id, answer) in &answers {
        let copies = stands.remove(id).unwrap_or(0);
        let truth = match answer {
            Answer::Has => copies == 1,
            Answer::HasNot => copies == 0,
            Answer::Unknown => copies <= 1,
        };
        assert!(truth, "{id}: {answer:?}, and {copies} in the queue");
    }
    assert!(stands.is_empty(), "{stands:?}");
    let count = |of| answers.values().filter(|answer| **answer == of).count() as u64;
    assert!(count(Answer::HasNot) > 0, "nothing was refused");
    assert_eq!(service.published("", "confirmed"), count(Answer::Has));
    assert_eq!(service.published("", "refused"), count(Answer::HasNot));
    assert_eq!(service.published("", "failed"), count(Answer::Unknown));
}

#[test]
fn publish_loop_during_outage_is_bounded() {
    alone(
        full_name!(publish_loop_during_outage_is_bounded),
        a_queue,
        |argument| {
            let (proxy, url) = through_a_proxy(argument);
            let (service, _story) = told(&url);
            let mq = &service.mq;
            let body = "x".repeat(10_000);
            let publish = || mq.publish_with(Publish::text(&*body).routing_key("q"));
            publish().unwrap();
            let threads = steady("the threads", library_threads);
            take_down(&proxy);
            let down = now();
            let mut refused = 0_u64;
            let mut slowest = secs(0);
            let mut at_first = 0;
            while refused < 50_000 || now() - down < secs(5) {
                let asked = now();
                match answer(publish()) {
                    Answer::Has => panic!("a broker that is down has confirmed it"),
                    Answer::HasNot => refused += 1,
                    Answer::Unknown => assert!(refused == 0, "it was known to be down"),
                }
                slowest = slowest.max(now() - asked);
                if refused == 1_000 {
                    at_first = status("self", "VmRSS");
                }
                if refused.is_multiple_of(100) {
                    let_pass(secs(0.001));
                }
            }
            let grown = status("self", "VmRSS").saturating_sub(at_first);
            assert!(at_first > 0, "{refused} publishes");
            assert!(grown < 20_000, "{grown} kB more after {refused} publishes");
            assert!(slowest < secs(5), "{slowest:?}, half of the timeout");
            proxy.refuse(false);
            wait_until_up(mq);
            publish().unwrap();
            wait_for_value(SOON, "the threads", &threads, library_threads);
        },
    );
}
