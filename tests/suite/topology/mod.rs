//! What is declared on the broker, by which names, and what happens when it cannot be.

mod conflicts;
mod contract;
mod names;
mod permissions;
mod topologies;
