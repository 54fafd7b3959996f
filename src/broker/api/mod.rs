//! The methods of [`Broker`](super::Broker) for tests: inspection, other clients, and faults.

pub(crate) mod actions;
pub(crate) mod faults;
pub(crate) mod inspect;
