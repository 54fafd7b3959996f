//! What a test calls on the embedded broker.

pub(crate) mod actions;
pub(crate) mod faults;
pub(crate) mod inspect;
