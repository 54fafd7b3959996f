//! Retries that wait on the broker, and messages that are set aside when no retry is left.

mod ladders;
mod rungs;
mod setting_aside;
