//! A reason in words, whatever error it came as.

use super::{BoxError, Marker};
use std::error::Error;
use std::fmt::{self, Write};
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};

const NONE: &str = "no reason given";
const UNSHOWN: &str = "reason could not be shown";

/// How far a source chain is followed in search of a fatal error. Chains can be cyclic.
const MAX_DEPTH: usize = 1024;
/// How many links of a source chain are put into words.
const MAX_SHOWN: usize = 32;
/// More than any message header can hold; keeps a runaway `Display` from taking all memory.
const MAX_BYTES: usize = 256 * 1024;

/// Why a message was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    /// In words, never empty.
    pub(crate) text: String,
    /// Whether a fatal error stands in its source chain.
    pub(crate) fatal: bool,
}

impl Reason {
    /// Reads `error`, then drops it. Panics of its code are caught.
    pub(crate) fn of(error: BoxError) -> Self {
        let fatal = guarded(|| is_fatal(error.as_ref())).unwrap_or(false);
        let text = guarded(|| describe(error.as_ref()))
            .flatten()
            .unwrap_or_else(|| UNSHOWN.to_owned());
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

/// `None` when the error itself reports that it could not be formatted.
fn describe(error: &(dyn Error + 'static)) -> Option<String> {
    let mut shown = String::new();
    let links = chain(error).filter(|link| !link.is::<Marker>());
    for link in links.take(MAX_SHOWN) {
        let text = display(link, MAX_BYTES.saturating_sub(shown.len()))?;
        // Recognised by its source, because the type of the outermost error may be hidden.
        let fatal = link.source().is_some_and(|source| source.is::<Marker>());
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

/// The error's own message, cut after `room` bytes.
fn display(error: &dyn Error, room: usize) -> Option<String> {
    let mut text = Text {
        shown: String::new(),
        room,
        full: false,
    };
    let written = write!(text, "{error}");
    (written.is_ok() || text.full).then_some(text.shown)
}

fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> + 'a {
    iter::successors(Some(error), |&link| link.source())
}

/// Takes what there is room for, and then makes the formatting stop.
struct Text {
    shown: String,
    room: usize,
    full: bool,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = self.room.saturating_sub(self.shown.len());
        if text.len() <= left {
            self.shown.push_str(text);
            return Ok(());
        }
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
            // Dropping a payload can panic in its turn; a few leaked bytes are the smaller harm.
            std::mem::forget(payload);
            None
        }
    }
}
