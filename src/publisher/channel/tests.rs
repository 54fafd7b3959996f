//! A lane over a channel that is made here.

use super::*;
use crate::link::Generation;
use crate::message::headers::{Headers, Properties};
use crate::publisher::CopyAnswer;
use crate::transport::fake::{FakeChannel, FakeConfirms};
use crate::transport::{Activity, Confirm};
use crossbeam_channel::{Sender, unbounded};
use std::sync::Arc;

struct Stage {
    lane: Lane,
    confirms: Sender<Confirm>,
    generation: Arc<Generation>,
    answers: Sender<CopyAnswer>,
}

impl Stage {
    fn new(confirm_timeout: Duration) -> Self {
        let mut stage = Self {
            lane: Lane::new(confirm_timeout),
            confirms: unbounded().0,
            generation: Arc::new(Generation::new(Activity::new(Duration::ZERO))),
            answers: unbounded().0,
        };
        stage.open();
        stage
    }

    fn open(&mut self) {
        let (confirms, inbox) = unbounded();
        self.confirms = confirms;
        self.lane.open = Some(ConfirmChannel {
            channel: Box::new(FakeChannel::new()),
            confirms: Box::new(FakeConfirms(inbox)),
        });
    }

    fn push(&mut self, tag: u64) {
        self.lane.push(Job {
            message: Outgoing {
                exchange: String::new(),
                routing_key: "q".to_owned(),
                mandatory: true,
                properties: Properties::default(),
                headers: Headers::new(),
                body: Arc::default(),
            },
            since: monotonic(),
            waiter: Waiter::Consumer {
                tag,
                generation: self.generation.clone(),
                answers: self.answers.clone(),
            },
        });
    }

    fn write(&mut self, tag: u64) {
        self.push(tag);
        self.lane.write().expect("a fake channel takes everything");
    }

    fn answer(&mut self, tag: u64, ack: bool) {
        let confirm = Confirm {
            tag,
            multiple: false,
            ack,
        };
        self.confirms.send(confirm).expect("the channel is open");
        self.lane.receive(&mut |_, _, _, _| {});
    }
}

#[test]
fn a_single_message_is_to_blame_for_the_end_of_its_channel_and_several_are_tried_alone() {
    let mut stage = Stage::new(Duration::from_secs(10));
    stage.write(1);
    let ended = stage.lane.channel_closed("403");
    assert!(matches!(
        &ended[..],
        [(_, _, PublishResult::ChannelClosed(_))]
    ));
    stage.open();
    stage.write(1);
    stage.write(2);
    assert_eq!(stage.lane.channel_closed("403").len(), 0);
    stage.open();
    stage.lane.write().expect("a fake channel takes everything");
    assert_eq!(stage.lane.waiting(), 1);
    assert_eq!(stage.lane.channel_closed("403").len(), 1);
}

#[test]
fn a_message_beside_a_ghost_is_not_to_blame() {
    let mut stage = Stage::new(Duration::ZERO);
    stage.write(1);
    assert_eq!(stage.lane.expire().len(), 1);
    stage.write(2);
    assert_eq!(stage.lane.channel_closed("403").len(), 0);
    assert_eq!(stage.lane.waiting(), 1);
}

#[test]
fn a_channel_that_has_refused_is_spent_once_nothing_is_outstanding_and_not_again_at_once() {
    let mut stage = Stage::new(Duration::from_secs(10));
    stage.write(1);
    stage.write(2);
    stage.answer(1, false);
    stage.push(3);
    assert!(!stage.lane.is_spent(), "one is outstanding");
    stage.answer(2, true);
    assert!(stage.lane.is_spent());
    stage.lane.renew();
    stage.open();
    stage.lane.write().expect("a fake channel takes everything");
    stage.answer(1, false);
    stage.push(4);
    assert!(!stage.lane.is_spent(), "it has just been replaced");
    stage.lane.renewed = monotonic().checked_sub(RENEW_AFTER);
    assert!(stage.lane.is_spent());
}
