//! Converts the error of a handler into the text of a reason.
//!
//! Error types are the user's code: their methods may panic, and their source chains may be cyclic.
//! Every loop here is bounded and every call is guarded.

use super::{BoxError, Marker};
use std::error::Error;
use std::fmt::{self, Write};
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};

const NONE: &str = "no reason given";
const UNSHOWN: &str = "reason could not be shown";

/// The number of links searched for a fatal error.
const MAX_DEPTH: usize = 1024;
/// The number of links shown in the text.
const MAX_SHOWN: usize = 32;
/// The limit of the text in bytes, more than a message header can hold. It stops a runaway
/// `Display`.
const MAX_BYTES: usize = 256 * 1024;

/// The reason for which a message was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    /// The text, never empty.
    pub(crate) text: String,
    /// Whether the source chain contains a fatal error.
    pub(crate) fatal: bool,
}

impl Reason {
    /// Describes `error` and drops it. Catches panics of its methods.
    pub(crate) fn of(error: BoxError) -> Self {
        let fatal = guarded(|| is_fatal(error.as_ref())).unwrap_or(false);
        let text = guarded(|| describe(error.as_ref()))
            .flatten()
            .unwrap_or_else(|| UNSHOWN.to_owned());
        // The error is dropped under the guard as well, since its `Drop` may panic.
        guarded(move || drop(error));
        Self { text, fatal }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_fatal(error: &(dyn Error + 'static)) -> bool {
    chain(error).take(MAX_DEPTH).any(|link| link.is::<Marker>())
}

/// `None` if the `Display` of the error fails.
fn describe(error: &(dyn Error + 'static)) -> Option<String> {
    let mut shown = String::new();
    let links = chain(error).filter(|link| !link.is::<Marker>());
    for link in links.take(MAX_SHOWN) {
        let text = display(link, MAX_BYTES.saturating_sub(shown.len()))?;
        // Checked by its source, because a box may hide the type of the outermost error.
        let fatal = link.source().is_some_and(|source| source.is::<Marker>());
        // A wrapper without a message of its own adds nothing to the text.
        if text.is_empty() && !fatal {
            continue;
        }
        if !shown.is_empty() {
            shown.push_str(": ");
        }
        if fatal {
            shown.push_str("FatalError: ");
        }
        shown.push_str(if text.is_empty() { NONE } else { &text });
    }
    if shown.is_empty() {
        shown.push_str(NONE);
    }
    Some(shown)
}

/// The message of one error, cut after `room` bytes.
fn display(error: &dyn Error, room: usize) -> Option<String> {
    let mut text = BoundedText {
        shown: String::new(),
        room,
        full: false,
    };
    let written = write!(text, "{error}");
    // Formatting also fails when the room is used up; that text is cut, not broken.
    (written.is_ok() || text.full).then_some(text.shown)
}

fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> + 'a {
    iter::successors(Some(error), |&link| link.source())
}

/// Collects text up to `room` bytes, then fails to make the formatter stop.
struct BoundedText {
    shown: String,
    room: usize,
    full: bool,
}

impl Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = self.room.saturating_sub(self.shown.len());
        if text.len() <= left {
            self.shown.push_str(text);
            return Ok(());
        }
        // The cut falls between characters, so the text stays UTF-8.
        let fits = |&(start, c): &(usize, char)| start + c.len_utf8() <= left;
        self.shown
            .extend(text.char_indices().take_while(fits).map(|(_, c)| c));
        self.full = true;
        Err(fmt::Error)
    }
}

fn guarded<T>(run: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => Some(value),
        Err(payload) => {
            // Dropping the payload could panic again. Leaking a few bytes does less harm.
            std::mem::forget(payload);
            None
        }
    }
}
