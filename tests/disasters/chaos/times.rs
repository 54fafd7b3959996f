//! When the copy of a message was where, as far as can be seen from outside.

use super::gremlin::{Event, What};
use crate::harness::work::Line;

/// A copy lands within milliseconds, and within so long on a busy machine.
pub(crate) const LANDS: u64 = 1_000;
/// An event is noted when it begins; a signal sent has arrived by then.
pub(crate) const SIGNAL: u64 = 200;
/// How long before a kill a classic queue may have taken a message in or let it go, and not written
/// it down.
pub(crate) const UNWRITTEN: u64 = 2_000;
/// What a policy of the gremlin cuts the waits in rungs to.
const SHORTEST_WAIT: u64 = 100;

/// What the gremlin did.
#[derive(Clone, Copy)]
pub(crate) struct Times<'a>(pub(crate) &'a [Event]);

impl<'a> Times<'a> {
    pub(crate) fn kills(self) -> impl Iterator<Item = &'a Event> {
        self.0
            .iter()
            .filter(|event| event.what == What::BrokerKilled)
    }

    /// The kills at which a wait in a rung, to which `line` took the message, had ended at most
    /// `unwritten` before.
    pub(crate) fn kills_just_after_wait(
        self,
        line: &Line,
        wait: u64,
        unwritten: u64,
    ) -> impl Iterator<Item = &'a Event> {
        let (due, due_at_last) = self.due(line, wait, LANDS);
        self.kills()
            .filter(move |kill| due <= kill.from + SIGNAL && due_at_last + unwritten >= kill.from)
    }

    /// When it may have come home from the rung: a broker that is down then sends it at its next
    /// start.
    pub(crate) fn due(self, line: &Line, wait: u64, lands: u64) -> (u64, u64) {
        let (landed, last) = self.landing(line, lands);
        let cut_short = self.0.iter().any(|event| {
            event.what == What::ShortRungs && event.from <= last + wait && event.to >= landed
        });
        let due = landed + if cut_short { SHORTEST_WAIT } else { wait };
        let home_at_last = self.kills().fold(last + wait, |home, kill| {
            let down = kill.from <= home && kill.to >= due;
            if down { home.max(kill.to) } else { home }
        });
        (due, home_at_last)
    }

    /// When its copy may have reached its queue: held up while the broker or the consumer stood.
    pub(crate) fn landing(self, line: &Line, lands: u64) -> (u64, u64) {
        let mut last = line.at + lands;
        for event in self.0 {
            let holds_up = match event.what {
                What::Alarm | What::BrokerFrozen | What::QueuesHung => true,
                What::Suspended(process) => process == line.process,
                _ => false,
            };
            if holds_up && event.from <= last && event.to >= line.at {
                last = last.max(event.to + lands);
            }
        }
        (line.at, last)
    }
}
