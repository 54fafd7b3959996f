//! Starts that fail, and the help.

use std::process::Command;

use super::{LIMIT, Q, Worker};
use crate::harness::worker_process::example;
use crate::harness::{Vhost, wait_until};

#[test]
fn invalid_command_line_is_an_error_before_connecting() {
    let lines: [(&[&str], &str); 14] = [
        (&[], "no queue"),
        (&["--frobnicate", Q], "--frobnicate"),
        (&["--answer", "maybe", Q], "--answer"),
        (&["--answer", "fail-first:x", Q], "--answer"),
        (&["--policy", "fixed:0:1s", Q], "--policy"),
        (&["--policy", "sometimes", Q], "--policy"),
        (&["--policy", "exponential:3:2s:1s", Q], "--policy"),
        (&["--policy", "fixed:2:1s", "--jitter", "2", Q], "--jitter"),
        (&["--threshold", "5", Q], "--threshold"),
        (&["--work", "-1s", Q], "--work"),
        (&["--count", "0", Q], "--count"),
        (&["--reason", "a", "--reason-bytes", "1", Q], "--reason"),
        (&["--concurrency", "many", Q], "--concurrency"),
        (&[Q, "--url"], "--url"),
    ];
    for (args, named) in lines {
        let ended = Worker::start_with(args).end();
        assert_eq!(ended.code, Some(2), "{args:?}: {ended:?}");
        assert!(ended.lines.is_empty(), "{args:?}: {ended:?}");
        assert!(ended.stderr.contains(named), "{args:?}: {}", ended.stderr);
    }
}

#[test]
fn a_start_that_fails_says_why_and_exits_with_2() {
    let vhost = Vhost::new();
    vhost.raw().quorum(Q);
    let url = vhost.url();
    let wrong_password = vhost
        .node()
        .url_for_user("guest", "s3cret-wrong", vhost.name());
    let broken: [(&str, String, &str); 5] = [
        ("a missing queue", format!("{Q} nowhere"), "nowhere"),
        (
            "an impossible prefetch",
            format!("--prefetch 1 --concurrency 2 {Q}"),
            "prefetch",
        ),
        (
            "a rung beyond the broker's limit",
            format!("--policy fixed:2:90000h {Q}"),
            "90000h",
        ),
        ("a queue that stands otherwise", format!("--declare {Q}"), Q),
        ("a name too long", "x".repeat(256), "255"),
    ];
    for (what, args, named) in broken {
        let ended = Worker::start(&url, &args).end();
        assert_eq!(ended.code, Some(2), "{what}: {ended:?}");
        assert!(ended.stderr.contains(named), "{what}: {}", ended.stderr);
        assert_eq!(ended.count("closed"), 0, "{what}");
    }
    for url in [
        wrong_password.as_str(),
        "amqp://guest:s3cret-wrong@127.0.0.1:1/",
        "http://guest:s3cret-wrong@127.0.0.1/",
        "amqp://guest:s3cret-wrong@127.0.0.1/?colour=red",
    ] {
        let ended = Worker::start(url, Q).end();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.lines.is_empty(), "{ended:?}");
        assert!(!ended.stderr.is_empty());
        assert!(!ended.stderr.contains("s3cret"), "{}", ended.stderr);
    }
    wait_until(LIMIT, "no consumer is left", || {
        vhost.list_consumers().is_empty()
    });
}

#[test]
fn help_is_no_error() {
    let child = Command::new(example("worker"))
        .arg("--help")
        .output()
        .unwrap();
    assert_eq!(child.status.code(), Some(0));
    let text = String::from_utf8(child.stdout).unwrap();
    assert!(text.contains("--close-timeout"), "{text}");
}

#[test]
fn the_embedded_broker_is_a_url_like_any_other() {
    let ended = Worker::start("memory://worker", &format!("--declare --for 100ms {Q}")).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.lines[0]["event"], "consuming");
    assert_eq!(ended.lines[0]["queue"], Q);
    let undeclared = Worker::start("memory://worker", Q).end();
    assert_eq!(undeclared.code, Some(2), "{undeclared:?}");
    assert!(undeclared.stderr.contains(Q), "{}", undeclared.stderr);
}
