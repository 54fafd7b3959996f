//! Explores every interleaving of worker reports, replies, drain and loss for two deliveries.
//!
//! The surroundings are as free as in production: workers take any delivery, handlers give any
//! answer, copies and requests end in every way, a report may be under way when a drain begins, and
//! at any moment a drain may begin, its deadline may pass, or the channel may die.

use super::*;
use crate::metrics::Outcome;
use std::collections::{HashMap, HashSet, VecDeque};

const RUNG: Duration = Duration::from_secs(40);
const DELIVERIES: usize = 2;

/// What a worker does with the delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Worker {
    /// No worker has taken the delivery yet.
    NotStarted,
    Running,
    Waiting,
    /// Its wait is over, and the report is under way.
    WaitReported,
    Done,
}

/// One delivery, inside the ledger and outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tracked {
    state: DeliveryState,
    worker: Worker,
    /// The copy that is with the publisher.
    copy: Option<Target>,
    /// The request that is with the admin threads.
    request: Option<AdminRequest>,
    settled: Option<Effect>,
    accepted: bool,
    confirmed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AdminRequest {
    Rung,
    Queue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Live,
    Draining,
    /// The deadline has passed, or the channel is dead.
    Over,
}

/// The state of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    deliveries: [Tracked; DELIVERIES],
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
struct Options {
    rung_known: bool,
    never_reject: bool,
}

impl World {
    fn new() -> Self {
        let tracked = Tracked {
            state: DeliveryState::Handed,
            worker: Worker::NotStarted,
            copy: None,
            request: None,
            settled: None,
            accepted: false,
            confirmed: false,
        };
        Self {
            deliveries: [tracked; DELIVERIES],
            phase: Phase::Live,
        }
    }

    fn has_ended(&self) -> bool {
        self.deliveries
            .iter()
            .all(|tracked| matches!(tracked.state, DeliveryState::Ended(_)))
    }

    /// All worlds that can follow this one.
    fn successors(&self, options: Options) -> Vec<World> {
        let mut next = Vec::new();
        for index in 0..DELIVERIES {
            next.extend(self.delivery_events(index, options));
        }
        if self.phase == Phase::Live {
            let mut drained = *self;
            drained.phase = Phase::Draining;
            for index in 0..DELIVERIES {
                let event = match drained.deliveries[index].worker {
                    Worker::NotStarted => Event::TakenBack,
                    _ => Event::DrainBegan,
                };
                drained.apply(index, &event, options);
                if drained.deliveries[index].worker == Worker::Waiting {
                    drained.deliveries[index].worker = Worker::Done;
                }
            }
            next.push(drained);
        }
        if self.phase == Phase::Draining {
            next.push(self.end_all(&Event::DeadlinePassed, options));
        }
        if self.phase != Phase::Over {
            next.push(self.end_all(&Event::Died, options));
        }
        next
    }

    /// Ends every delivery with `event`.
    fn end_all(&self, event: &Event<'_>, options: Options) -> World {
        let mut over = *self;
        over.phase = Phase::Over;
        for index in 0..DELIVERIES {
            over.apply(index, event, options);
        }
        assert!(over.has_ended(), "{over:?} is left after {event:?}");
        over
    }

    /// All events that can happen to one delivery now.
    fn delivery_events(&self, index: usize, options: Options) -> Vec<World> {
        let tracked = self.deliveries[index];
        let mut next = Vec::new();
        let mut after = |change: &dyn Fn(&mut Tracked), event: Option<Event<'_>>| {
            let mut world = *self;
            change(&mut world.deliveries[index]);
            if let Some(event) = event {
                world.apply(index, &event, options);
            }
            next.push(world);
        };
        match tracked.worker {
            Worker::NotStarted if self.phase == Phase::Live => {
                after(&|tracked| tracked.worker = Worker::Running, None);
            }
            Worker::Running => {
                for decision in decisions() {
                    let waits =
                        matches!(decision, Decision::Retry(Wait::Thread(d)) if !d.is_zero());
                    let worker = match (waits, self.phase) {
                        (true, Phase::Live) => Worker::Waiting,
                        _ => Worker::Done,
                    };
                    let accepted = decision == Decision::Ack;
                    after(
                        &|tracked| (tracked.worker, tracked.accepted) = (worker, accepted),
                        Some(Event::Decided(&decision)),
                    );
                }
            }
            Worker::Waiting if self.phase == Phase::Live => {
                after(&|tracked| tracked.worker = Worker::WaitReported, None);
                if matches!(
                    tracked.state,
                    DeliveryState::Waiting {
                        missing_rung: Some(_)
                    }
                ) {
                    after(
                        &|tracked| tracked.worker = Worker::Done,
                        Some(Event::RecheckRung),
                    );
                }
            }
            Worker::WaitReported => {
                after(
                    &|tracked| tracked.worker = Worker::Done,
                    Some(Event::WaitOver),
                );
            }
            _ => {}
        }
        if tracked.copy.is_some() {
            for result in copy_results() {
                let confirmed = result == PublishResult::Confirmed;
                after(
                    &|tracked| (tracked.copy, tracked.confirmed) = (None, confirmed),
                    Some(Event::Copied(&result)),
                );
            }
        }
        match tracked.request {
            Some(AdminRequest::Rung) => {
                for event in [Event::RungThere, Event::RungMissing] {
                    after(&|tracked| tracked.request = None, Some(event));
                }
            }
            Some(AdminRequest::Queue) => {
                for redeclared in REDECLARED {
                    after(
                        &|tracked| tracked.request = None,
                        Some(Event::Redeclared(redeclared)),
                    );
                }
            }
            None => {}
        }
        if matches!(tracked.state, DeliveryState::Held { .. }) {
            after(&|_| {}, Some(Event::PauseOver));
        }
        next
    }

    /// Applies an event as the consumer thread does, and asserts what must never happen.
    fn apply(&mut self, index: usize, event: &Event<'_>, options: Options) {
        let before = self.deliveries[index];
        let phase = self.phase;
        let step = before.state.step(
            event,
            Circumstances {
                draining: phase != Phase::Live,
                rung_known: options.rung_known,
                never_reject: options.never_reject,
            },
        );
        let tracked = &mut self.deliveries[index];
        tracked.state = step.next;
        if matches!(before.state, DeliveryState::Ended(_)) {
            assert_eq!(
                (step.next, step.effect),
                (before.state, Effect::Nothing),
                "an end is final"
            );
        }
        let dead = phase == Phase::Over;
        match step.effect {
            Effect::Nothing => {}
            Effect::Ack | Effect::Nack | Effect::Reject => {
                assert!(
                    !dead,
                    "{before:?} was settled after its channel died, by {event:?}"
                );
                assert_eq!(before.settled, None, "settled twice, by {event:?}");
                assert!(
                    matches!(step.next, DeliveryState::Ended(_)),
                    "settled, and goes on: {step:?}"
                );
                if step.effect == Effect::Ack {
                    assert!(
                        before.accepted || before.confirmed,
                        "{before:?} acknowledged by {event:?}"
                    );
                }
                if step.effect == Effect::Reject {
                    assert!(!options.never_reject, "rejected against the option");
                }
                tracked.settled = Some(step.effect);
            }
            Effect::Copy(target) => {
                assert!(
                    !dead && before.settled.is_none(),
                    "a stale copy of {before:?}, by {event:?}"
                );
                assert_eq!(before.copy, None, "two copies under way");
                tracked.copy = Some(target);
            }
            Effect::WaitForRung(_) | Effect::ResumeWait => {
                assert_eq!(
                    phase,
                    Phase::Live,
                    "a wait begins after the drain began, by {event:?}"
                );
                tracked.worker = Worker::Waiting;
            }
            Effect::Check(_) => tracked.request = Some(AdminRequest::Rung),
            Effect::Redeclare(_) => tracked.request = Some(AdminRequest::Queue),
            Effect::Pause(_) => assert_eq!(phase, Phase::Live, "held while draining, by {event:?}"),
        }
    }
}

fn copy_results() -> [PublishResult; 7] {
    let text = String::new;
    [
        PublishResult::Confirmed,
        PublishResult::Unroutable(text()),
        PublishResult::Nacked,
        PublishResult::Unknown(UnknownCause::Timeout),
        PublishResult::Unknown(UnknownCause::Lost(text())),
        PublishResult::NotSent(text()),
        PublishResult::ChannelClosed(text()),
    ]
}

const REDECLARED: [Redeclared; 4] = [
    Redeclared::Done,
    Redeclared::Refused,
    Redeclared::NodeDown,
    Redeclared::NoAnswer,
];

fn decisions() -> [Decision; 7] {
    let reason = String::new;
    [
        Decision::Ack,
        Decision::Retry(Wait::Thread(Duration::ZERO)),
        Decision::Retry(Wait::Thread(Duration::from_secs(1))),
        Decision::Retry(Wait::Rung(RUNG)),
        Decision::DeadLetter {
            reason: reason(),
            outcome: Outcome::DeadLettered,
        },
        Decision::DeadLetter {
            reason: reason(),
            outcome: Outcome::Rejected,
        },
        Decision::Park { reason: reason() },
    ]
}

/// All reachable worlds, each with its successors.
fn explore(options: Options) -> HashMap<World, Vec<World>> {
    let mut worlds = HashMap::new();
    let mut open = VecDeque::from([World::new()]);
    while let Some(world) = open.pop_front() {
        if worlds.contains_key(&world) {
            continue;
        }
        let successors = world.successors(options);
        open.extend(successors.iter().copied());
        worlds.insert(world, successors);
    }
    worlds
}

/// Whether every path from `world` ends: no world follows itself.
fn always_ends(
    world: World,
    worlds: &HashMap<World, Vec<World>>,
    finished: &mut HashSet<World>,
    on_path: &mut HashSet<World>,
) -> bool {
    if finished.contains(&world) {
        return true;
    }
    if !on_path.insert(world) {
        return false;
    }
    let ends = worlds[&world]
        .iter()
        .all(|next| *next == world || always_ends(*next, worlds, finished, on_path));
    on_path.remove(&world);
    finished.insert(world);
    ends
}

#[test]
fn every_interleaving_settles_once_and_every_drain_ends() {
    for (rung_known, never_reject) in [(false, false), (true, false), (false, true)] {
        let worlds = explore(Options {
            rung_known,
            never_reject,
        });
        assert!(worlds.len() > 1_000, "only {} worlds", worlds.len());
        let mut finished = HashSet::new();
        for (world, successors) in &worlds {
            if world.phase == Phase::Draining {
                assert!(
                    always_ends(*world, &worlds, &mut finished, &mut HashSet::new()),
                    "a drain goes round from {world:?}"
                );
            }
            let stuck = successors.iter().all(|next| next == world);
            assert!(!stuck || world.has_ended(), "{world:?} can never end");
        }
    }
}

#[test]
fn every_end_is_reachable() {
    let options = Options {
        rung_known: false,
        never_reject: false,
    };
    let ends: HashSet<DeliveryEnd> = explore(options)
        .keys()
        .filter_map(|world| match world.deliveries[0].state {
            DeliveryState::Ended(end) => Some(end),
            _ => None,
        })
        .collect();
    assert_eq!(ends.len(), 6, "{ends:?}");
}
