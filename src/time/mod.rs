//! Time, deadlines and threads, which every other module builds on.

pub(crate) mod clock;
mod crew;
pub(crate) mod deadline;
pub(crate) mod instant;
pub(crate) mod test_clock;
pub(crate) mod threads;
