//! Puts acknowledgements together: one frame for a run of deliveries. Pure.

use std::collections::BTreeSet;

/// One `basic.ack` to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckFrame {
    pub(crate) tag: u64,
    pub(crate) multiple: bool,
}

/// The deliveries of one channel that are unsettled, and those whose acknowledgement is ready to be written.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    unsettled: BTreeSet<u64>,
    ready: BTreeSet<u64>,
}

impl Acks {
    pub(crate) fn delivered(&mut self, tag: u64) {
        self.unsettled.insert(tag);
    }

    /// The delivery may be acknowledged.
    pub(crate) fn ack(&mut self, tag: u64) {
        if self.unsettled.remove(&tag) {
            self.ready.insert(tag);
        }
    }

    /// The delivery was settled by a frame of its own.
    pub(crate) fn settled(&mut self, tag: u64) {
        self.unsettled.remove(&tag);
    }

    /// The frames that acknowledge all that is ready.
    ///
    /// A frame with `multiple` settles every delivery below its tag, so its tag stands below the lowest unsettled one;
    /// and it must be a tag that is not settled yet, or the broker closes the channel.
    pub(crate) fn take(&mut self) -> Vec<AckFrame> {
        let above = match self.unsettled.first() {
            Some(lowest) => self.ready.split_off(lowest),
            None => BTreeSet::new(),
        };
        let below = std::mem::take(&mut self.ready);
        let run = below.last().map(|top| AckFrame {
            tag: *top,
            multiple: below.len() > 1,
        });
        run.into_iter()
            .chain(above.into_iter().map(|tag| AckFrame {
                tag,
                multiple: false,
            }))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_run_from_the_bottom_is_one_frame() {
        let mut acks = Acks::default();
        (1..=5).for_each(|tag| acks.delivered(tag));
        [2, 1, 3, 5].into_iter().for_each(|tag| acks.ack(tag));
        assert_eq!(
            acks.take(),
            [
                AckFrame {
                    tag: 3,
                    multiple: true
                },
                AckFrame {
                    tag: 5,
                    multiple: false
                }
            ]
        );
        assert_eq!(acks.take(), []);
        acks.ack(4);
        assert_eq!(
            acks.take(),
            [AckFrame {
                tag: 4,
                multiple: false
            }]
        );
    }

    #[derive(Clone, Debug)]
    enum Action {
        Deliver,
        Ack(usize),
        Settle(usize),
        Take,
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            3 => Just(Action::Deliver),
            3 => any::<usize>().prop_map(Action::Ack),
            1 => any::<usize>().prop_map(Action::Settle),
            1 => Just(Action::Take),
        ]
    }

    proptest! {
        /// A model of the broker: every frame names an unsettled tag, and settles nothing that was not allowed.
        #[test]
        fn the_broker_sees_each_delivery_settled_once(actions in prop::collection::vec(action(), 0..200)) {
            let mut acks = Acks::default();
            let (mut next, mut open, mut allowed) = (1_u64, BTreeSet::new(), BTreeSet::new());
            let pick = |open: &BTreeSet<u64>, n: usize| open.iter().nth(n % open.len().max(1)).copied();
            for action in actions.into_iter().chain([Action::Take]) {
                match action {
                    Action::Deliver => { acks.delivered(next); open.insert(next); next += 1; }
                    Action::Ack(n) => if let Some(tag) = pick(&open, n) { acks.ack(tag); allowed.insert(tag); },
                    Action::Settle(n) => if let Some(tag) = pick(&open, n).filter(|tag| !allowed.contains(tag)) {
                        acks.settled(tag);
                        open.remove(&tag);
                    },
                    Action::Take => {
                        for frame in acks.take() {
                            prop_assert!(open.contains(&frame.tag), "{frame:?} names a settled tag");
                            let settles: Vec<u64> = if frame.multiple {
                                open.range(..=frame.tag).copied().collect()
                            } else {
                                vec![frame.tag]
                            };
                            for tag in settles {
                                prop_assert!(allowed.contains(&tag), "{frame:?} settles {tag} too early");
                                open.remove(&tag);
                            }
                        }
                        prop_assert!(allowed.iter().all(|tag| !open.contains(tag)), "an acknowledgement was forgotten");
                    }
                }
            }
        }
    }
}
