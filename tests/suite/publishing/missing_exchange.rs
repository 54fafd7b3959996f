//! Test of a missing exchange, which closes a channel that other callers publish on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::harness::Vhost;
use crate::harness::observed::Observed;

#[test]
fn a_missing_exchange_disturbs_no_other_publish() {
    let vhost = Vhost::new();
    let raw = vhost.raw();
    raw.classic("q");
    let service = Observed::on(&vhost);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let others: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let publish = |n| service.mq.publish("", "q", &n).map(drop);
                    (0..500).try_for_each(publish)
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let error = service.mq.publish("missing", "key", &0).unwrap_err();
                assert!(error.is_refused(), "{error}");
            }
        });
        let results: Vec<_> = others
            .into_iter()
            .map(|other| other.join().unwrap())
            .collect();
        done.store(true, Ordering::SeqCst);
        for result in results {
            result.unwrap();
        }
    });
    assert_eq!(raw.count("q"), 2000);
}
