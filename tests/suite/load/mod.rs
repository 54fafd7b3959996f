//! Tests with many messages, consumers and connections, and with limits at their extremes.

mod extremes;
mod stress;
