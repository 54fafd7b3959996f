//! Tests of how each publish ends, in any state of the broker.

mod large;
mod missing_exchange;
mod outcomes;
mod trouble;
