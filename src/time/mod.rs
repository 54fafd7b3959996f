//! Time, deadlines and threads, which every other module builds on.

pub(crate) mod clock;
#[cfg_attr(
    not(any(test, feature = "testing")),
    allow(dead_code, reason = "only a test clock has a crew")
)]
mod crew;
pub(crate) mod deadline;
pub(crate) mod instant;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod test_clock;
pub(crate) mod threads;
