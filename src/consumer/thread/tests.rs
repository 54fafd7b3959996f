//! Subscribing to a broker that does not answer.

use super::*;
use crate::consumer::ConsumerBuilder;
use crate::link::{Admin, Dialler, Link, Sockets};
use crate::message::Message;
use crate::metrics::Metrics;
use crate::publisher::{Publisher, PublisherSettings};
use crate::retry::RetryPolicy;
use crate::time::clock::SystemClock;
use crate::transport::fake::{Call, dialled};

const LIMIT: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(10);

struct Connected {
    services: Services,
    uplink: Uplink,
    consumers: Mutex<Vec<Consumer>>,
}

impl Registrar for Connected {
    fn services(&self) -> Result<(Services, Uplink), Error> {
        Ok((self.services.clone(), self.uplink.clone()))
    }

    fn register(&self, consumer: &Consumer) {
        self.consumers.lock().push(consumer.clone());
    }
}

/// Connected to a broker that is asked for a subscription when the receiver says so, and answers once the sender is gone.
fn connected() -> (Connected, Receiver<()>, Sender<()>) {
    let (ask, asked) = bounded(1);
    let (release, released) = bounded::<()>(0);
    let answer = move |call, _: &_| {
        if call == Call::Subscribe {
            let _ = ask.send(());
            let _ = released.recv();
        }
        Ok(())
    };
    let link = Link::start(dialled(answer), "test", &SystemClock, |_| {}).unwrap();
    let admin = Admin::start(link.clone(), PATIENCE, &SystemClock::shared()).unwrap();
    let (publisher, _) = Publisher::start(PublisherSettings {
        clock: SystemClock::shared(),
        dialler: Arc::new(Dialler::new(
            Vec::new(),
            LIMIT,
            Sockets::default(),
            SystemClock::shared(),
        )),
        metrics: Metrics::default(),
        confirm_timeout: LIMIT,
        connect_timeout: LIMIT,
        backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
        view: Arc::default(),
        writing: Arc::default(),
    })
    .unwrap();
    let services = Services {
        publisher,
        clock: SystemClock::shared(),
        metrics: Metrics::default(),
        call_timeout: LIMIT,
    };
    let connected = Connected {
        services,
        uplink: Uplink { link, admin },
        consumers: Mutex::default(),
    };
    (connected, asked, release)
}

#[test]
fn a_subscription_without_an_answer_is_an_error_in_time_and_shows_as_what_it_is() {
    let (connected, asked, release) = connected();
    let (policy, threshold) = (RetryPolicy::none(), Duration::ZERO);
    let consumer = ConsumerBuilder::new(&connected, "q".to_owned(), policy, threshold);
    let error = consumer.start(|_: Message<u64>| ()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    let consumer = connected.consumers.lock().remove(0);
    asked.recv_timeout(PATIENCE).unwrap();
    let trouble = consumer.trouble().unwrap();
    assert!(trouble.contains("has not answered"), "{trouble}");
    // It is stopped, and ends with the call.
    drop(release);
    assert!(consumer.join(Deadline::within(PATIENCE)));
    connected.services.publisher.stop(Duration::ZERO);
    connected.uplink.link.kill();
}
