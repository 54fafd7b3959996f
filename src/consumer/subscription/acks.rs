//! Combines acknowledgements: one frame settles a run of deliveries. Pure.

use std::collections::BTreeSet;

/// A `basic.ack` to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckFrame {
    pub(crate) tag: u64,
    pub(crate) multiple: bool,
}

/// The unsettled deliveries of one channel, and those whose acknowledgement is ready to be written.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    /// Includes the deliveries that wait, which a `multiple` frame must not settle.
    unsettled: BTreeSet<u64>,
    ready: BTreeSet<u64>,
}

impl Acks {
    /// Adds a delivery.
    pub(crate) fn delivered(&mut self, tag: u64) {
        self.unsettled.insert(tag);
    }

    /// Marks a delivery as ready to be acknowledged.
    pub(crate) fn ack(&mut self, tag: u64) {
        if self.unsettled.remove(&tag) {
            self.ready.insert(tag);
        }
    }

    /// Removes a delivery that was settled by a frame of its own.
    pub(crate) fn settled(&mut self, tag: u64) {
        self.unsettled.remove(&tag);
    }

    /// Returns the frames that acknowledge everything that is ready.
    ///
    /// Rule 9: a frame with `multiple` settles every delivery up to its tag, so it stays below the
    /// lowest unsettled one. Its own tag must not be settled yet, or the broker closes the channel.
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
    fn run_from_lowest_tag_is_one_frame() {
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
        /// A model of the broker: every frame names an unsettled tag and settles only what may be
        /// settled.
        #[test]
        fn each_delivery_is_settled_once(
            actions in prop::collection::vec(action(), 0..200)
        ) {
            let mut acks = Acks::default();
            let (mut next, mut open, mut allowed) = (1_u64, BTreeSet::new(), BTreeSet::new());
            let pick = |open: &BTreeSet<u64>, n: usize| {
                open.iter().nth(n % open.len().max(1)).copied()
            };
            for action in actions.into_iter().chain([Action::Take]) {
                match action {
                    Action::Deliver => {
                        acks.delivered(next);
                        open.insert(next);
                        next += 1;
                    }
                    Action::Ack(n) => {
                        if let Some(tag) = pick(&open, n) {
                            acks.ack(tag);
                            allowed.insert(tag);
                        }
                    }
                    Action::Settle(n) => {
                        if let Some(tag) = pick(&open, n).filter(|tag| !allowed.contains(tag)) {
                            acks.settled(tag);
                            open.remove(&tag);
                        }
                    }
                    Action::Take => {
                        for frame in acks.take() {
                            prop_assert!(open.contains(&frame.tag), "{frame:?} is settled");
                            let settles: Vec<u64> = if frame.multiple {
                                open.range(..=frame.tag).copied().collect()
                            } else {
                                vec![frame.tag]
                            };
                            for tag in settles {
                                prop_assert!(allowed.contains(&tag), "{frame:?}: {tag} too early");
                                open.remove(&tag);
                            }
                        }
                        let missed = allowed.iter().find(|tag| open.contains(tag));
                        prop_assert!(missed.is_none(), "{missed:?} is not acknowledged");
                    }
                }
            }
        }
    }
}
