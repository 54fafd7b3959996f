//! Many messages, consumers and connections, and limits at their extremes.

mod extremes;
mod stress;
