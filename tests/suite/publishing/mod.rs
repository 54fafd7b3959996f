//! Publishing: how each call ends, whatever the broker does.

mod large;
mod missing_exchange;
mod outcomes;
mod trouble;
