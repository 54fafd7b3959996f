//! Recovery over links that are made here, to die when it hurts.

use super::*;
use crate::publisher::PublisherSettings;
use crate::time::clock::SystemClock;
use crate::transport::{
    Activity, Channel, Dialled, Failure, Gone, KillSwitch, Link, LinkEvent, Transport,
};
use crossbeam_channel::{after, bounded, unbounded};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Every second of its links is dead before anybody has seen it.
#[derive(Debug, Default)]
struct Dying {
    dials: AtomicUsize,
}

#[derive(Debug)]
struct FakeLink(Receiver<()>);

impl Transport for Dying {
    fn dial(&self, _limit: Instant, armed: &dyn Fn(KillSwitch)) -> Result<Dialled, String> {
        let (alive, life) = bounded::<()>(0);
        let alive = Arc::new(parking_lot::Mutex::new(Some(alive)));
        let kill = KillSwitch::new(move || drop(alive.lock().take()));
        if self.dials.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
            kill.throw();
        }
        armed(kill.clone());
        Ok(Dialled {
            link: Box::new(FakeLink(life)),
            kill,
            frame_max: 4096,
            activity: Activity::new(Duration::ZERO),
        })
    }

    fn address(&self) -> String {
        "nowhere".to_owned()
    }
}

impl Link for FakeLink {
    fn open_channel(&mut self) -> Result<Box<dyn Channel>, Failure> {
        Err(Failure::NoChannelLeft)
    }

    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize {
        select.recv(&self.0)
    }

    fn next_event(&self) -> Result<Option<LinkEvent>, Gone> {
        match self.0.try_recv() {
            Err(error) if error.is_disconnected() => Err(Gone),
            _ => Ok(None),
        }
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        Err("it was cut".to_owned())
    }
}

#[test]
fn links_that_die_before_they_are_taken_in_count_as_failed_attempts() {
    const ROUNDS: usize = 60;
    let limit = Duration::from_secs(10);
    let transport = Arc::new(Dying::default());
    let sockets = Sockets::default();
    let dialler = Dialler::new(
        vec![transport.clone()],
        limit,
        sockets.clone(),
        SystemClock::shared(),
    );
    let dialler = Arc::new(dialler);
    let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(10));
    let (publisher, publisher_ended) = Publisher::start(PublisherSettings {
        clock: SystemClock::shared(),
        dialler: dialler.clone(),
        metrics: Metrics::default(),
        confirm_timeout: limit,
        connect_timeout: limit,
        backoff,
        view: Arc::default(),
        writing: Arc::default(),
    })
    .unwrap();
    let commands = unbounded();
    let uplink = open_uplink(&dialler, limit, 0, &commands.0).unwrap();
    let status = Status::new(commands.0.clone(), uplink.clone(), SystemClock::shared());
    let supervisor = Supervisor {
        commands,
        status: status.clone(),
        dialler,
        sockets,
        publisher,
        publisher_ended,
        clock: SystemClock::shared(),
        metrics: Metrics::default(),
        call_timeout: limit,
        backoff,
        attempts: None,
    };
    supervisor.start(uplink).unwrap();
    let too_late = after(limit);
    for round in 0..ROUNDS {
        let living = loop {
            let known = status.uplink().ok();
            match known.filter(|uplink| !uplink.link.is_gone()) {
                Some(uplink) if transport.dials.load(Ordering::SeqCst) == 2 * round + 1 => {
                    break uplink;
                }
                _ => {}
            }
            crossbeam_channel::select! {
                recv(too_late) -> _ => panic!("round {round}: {:?}, {transport:?}", status.phase()),
                recv(after(Duration::from_millis(2))) -> _ => {}
            }
        };
        if round + 1 < ROUNDS {
            living.link.kill();
        }
    }
    assert_eq!(status.phase(), Phase::Up);
    status
        .close(Deadline::within(limit))
        .expect("nothing is left behind");
}
