//! Time, deadlines and threads: the ground floor of the library.

pub(crate) mod clock;
pub(crate) mod deadline;
pub(crate) mod instant;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod test_clock;
pub(crate) mod threads;
