//! Tests that losses leave no thread and no lock behind in the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rungmq::{Connection, Message};

use super::{Story, a_queue, take_down, told};
use crate::harness::observed::SOON;
use crate::harness::{secs, wait_until};
use crate::suite::shutdown::alone::{
    alone, full_name, library_threads, threads_left, through_a_proxy,
};
use crate::suite::steady;

#[test]
fn losing_the_connection_many_times_leaves_no_thread_behind() {
    alone(
        full_name!(losing_the_connection_many_times_leaves_no_thread_behind),
        a_queue,
        |argument| {
            let (proxy, url) = through_a_proxy(argument);
            let (service, story) = told(&url);
            service.mq.consume("q", |_: Message<u64>| ()).unwrap();
            let publish = || {
                wait_until(SOON, "publishing is possible", || {
                    service.mq.publish("", "q", &1).is_ok()
                });
            };
            publish();
            service.wait_for_consumed("acked", 1);
            let threads = steady("the threads", library_threads);
            let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
            let open = steady("the open files", files);
            for n in 1..=10 {
                take_down(&proxy);
                story.wait_for_losses(n);
                proxy.refuse(false);
                story.wait_for_subscriptions(n + 1);
                publish();
            }
            wait_until(SOON, "no thread is left behind", || {
                library_threads() == threads
            });
            // The kill switches of a few dead sockets are kept, however many there were.
            wait_until(SOON, "no socket is left behind", || files() <= open + 8);
            service.mq.close().unwrap();
            threads_left(&[]);
        },
    );
}

/// A handler that holds the last handle of its connection is dropped when the connection gives up,
/// and the handle with it.
#[test]
fn giving_up_with_the_last_handle_in_a_handler_ends_all() {
    alone(
        full_name!(giving_up_with_the_last_handle_in_a_handler_ends_all),
        a_queue,
        |argument| {
            let (proxy, url) = through_a_proxy(argument);
            for _ in 0..5 {
                let story = Story::default();
                let builder = Connection::builder(url.clone()).observer(story.clone());
                let mq = builder.recovery_attempts(0).open().unwrap();
                let dropped = Arc::new(AtomicBool::new(false));
                let held = (mq.clone(), OnDrop(dropped.clone()));
                let handle = move |_: Message<u64>| {
                    let _ = &held;
                };
                // Nothing but its running consumer, and so the connection, still knows of it.
                mq.consume("q", handle).unwrap();
                drop(mq);
                proxy.cut();
                story.wait_for_losses(1);
                threads_left(&[]);
                wait_until(secs(5), "the handler is dropped", || {
                    dropped.load(Ordering::SeqCst)
                });
            }
        },
    );
}

struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
