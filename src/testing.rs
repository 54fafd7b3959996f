//! For the tests of services: time.

mod clock;

pub use clock::TestClock;
