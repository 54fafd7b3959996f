//! Runs the user's code for one delivery: decodes the body, calls the handler, catches panics.

use super::{Answer, Reason};
use crate::message::codec::Decode;
use crate::message::{Message, Opened};
use crate::retry::Verdict;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A handler with its payload type erased and its codec included.
pub(crate) type Handler = Arc<dyn Fn(&Arc<Opened>) -> Verdict + Send + Sync>;

pub(crate) fn handler<T, R, F>(codec: impl Decode<T>, handle: F) -> Handler
where
    T: 'static,
    R: Answer,
    F: Fn(Message<T>) -> R + Send + Sync + 'static,
{
    Arc::new(move |opened| match decode(&codec, opened) {
        Ok(payload) => call(&handle, Message::new(payload, opened.clone())),
        Err(undecodable) => undecodable,
    })
}

fn decode<T>(codec: &impl Decode<T>, opened: &Opened) -> Result<T, Verdict> {
    let content_type = opened.delivery.properties.content_type.as_deref();
    match catch_unwind(AssertUnwindSafe(|| {
        codec.decode(&opened.delivery.body, content_type)
    })) {
        Ok(Ok(payload)) => Ok(payload),
        // The reason is taken from the error and its sources, as for a handler.
        Ok(Err(error)) => Err(Verdict::Undecodable {
            message: Reason::of(error.into()).text,
        }),
        Err(panic) => Err(Verdict::Undecodable {
            message: panicked(panic),
        }),
    }
}

/// Calls the handler and converts its answer. The conversion runs inside `catch_unwind` too, since
/// `Answer` and the `Display` of the reason are the user's code as well.
fn call<T, R: Answer>(handle: &impl Fn(Message<T>) -> R, message: Message<T>) -> Verdict {
    catch_unwind(AssertUnwindSafe(|| {
        handle(message).into_ack().into_verdict()
    }))
    .unwrap_or_else(|panic| Verdict::Retry {
        reason: panicked(panic),
        fatal: false,
    })
}

/// Describes the payload of a panic.
pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> String {
    // `panic!` with a literal has a `&str` payload, with arguments a `String`.
    let text = if let Some(text) = panic.downcast_ref::<&str>() {
        format!("panicked: {text}")
    } else if let Some(text) = panic.downcast_ref::<String>() {
        format!("panicked: {text}")
    } else {
        "panicked: with a non-string payload".to_owned()
    };
    // The payload's own `Drop` may panic.
    let _ = catch_unwind(AssertUnwindSafe(move || drop(panic)));
    text
}
