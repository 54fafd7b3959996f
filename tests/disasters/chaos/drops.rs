//! Which loss belongs to which start of the broker.

/// The messages that the broker's log says it has dropped, at one start after the other.
///
/// A lost message may have come home at more than one of them. A claim is good if all of them can
/// be met together, so an earlier one makes room where it can.
pub(crate) struct Drops {
    /// How many messages were dropped at each start.
    dropped: Vec<usize>,
    /// For each good claim: the starts at which its message may have been dropped.
    claims: Vec<Vec<usize>>,
    /// For each start: the claims that it meets.
    met: Vec<Vec<usize>>,
}

impl Drops {
    pub(crate) fn new(dropped: Vec<usize>) -> Self {
        Self {
            met: vec![Vec::new(); dropped.len()],
            dropped,
            claims: Vec::new(),
        }
    }

    /// Whether a message may have been dropped at one of `starts`, with all those before it.
    pub(crate) fn claim(&mut self, mut starts: Vec<usize>) -> bool {
        // A start that the log does not know of is a fault of its own.
        starts.retain(|start| *start < self.dropped.len());
        let claim = self.claims.len();
        self.claims.push(starts);
        let is_met = self.meet(claim, &mut vec![false; self.dropped.len()]);
        if !is_met {
            self.claims.pop();
        }
        is_met
    }

    fn meet(&mut self, claim: usize, tried: &mut [bool]) -> bool {
        for start in self.claims[claim].clone() {
            if std::mem::replace(&mut tried[start], true) {
                continue;
            }
            if self.met[start].len() < self.dropped[start] {
                self.met[start].push(claim);
                return true;
            }
            for place in 0..self.met[start].len() {
                if self.meet(self.met[start][place], tried) {
                    self.met[start][place] = claim;
                    return true;
                }
            }
        }
        false
    }
}

#[test]
fn a_claim_makes_room_for_one_that_has_less_choice() {
    let mut drops = Drops::new(vec![1, 0, 2]);
    assert!(drops.claim(vec![0, 2]));
    assert!(drops.claim(vec![0, 1]), "the first moves to the last start");
    assert!(drops.claim(vec![0, 2]));
    assert!(!drops.claim(vec![0, 1, 2]), "three were dropped");
    assert!(!drops.claim(vec![]));
}

#[test]
fn a_start_that_dropped_nothing_meets_no_claim() {
    let mut drops = Drops::new(vec![0, 1]);
    assert!(!drops.claim(vec![0]));
    assert!(drops.claim(vec![0, 1]));
}
