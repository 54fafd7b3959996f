//! What has to become of a message, by its plan.

use super::{ATTEMPTS, Plan};

/// Where an answer takes a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goes {
    /// It is accepted.
    Away,
    /// Back to its queue, after a wait in the consumer.
    Back,
    /// Into a rung of so many milliseconds.
    IntoRung(u64),
    Dead,
    Parked,
}

impl Plan {
    /// Where the answer at `attempt` takes the message.
    pub fn goes(self, attempt: u32) -> Goes {
        match self {
            Self::Accept | Self::Slow => Goes::Away,
            Self::Fail(failures) | Self::Panic(failures) if attempt > failures => Goes::Away,
            Self::Fail(_) | Self::Panic(_) | Self::FailAlways => match attempt {
                1 => Goes::Back,
                2 => Goes::IntoRung(600),
                3 => Goes::IntoRung(1_200),
                _ => Goes::Dead,
            },
            Self::Fatal | Self::Reject => Goes::Dead,
            Self::Park | Self::Undecodable => Goes::Parked,
        }
    }

    /// How, at which attempt and with which reason the message ends.
    pub fn ending(self) -> (Goes, u32, &'static str) {
        match self {
            Self::Accept | Self::Slow => (Goes::Away, 1, ""),
            Self::Fail(failures) | Self::Panic(failures) => (Goes::Away, failures + 1, ""),
            Self::FailAlways => (Goes::Dead, ATTEMPTS, "gave up after 4 attempts: as planned"),
            Self::Fatal => (
                Goes::Dead,
                1,
                "retrying cannot help: FatalError: as planned",
            ),
            Self::Reject => (Goes::Dead, 1, "rejected by the handler: as planned"),
            Self::Park => (Goes::Parked, 1, "parked by the handler: as planned"),
            Self::Undecodable => (Goes::Parked, 1, "could not be decoded: "),
        }
    }
}
