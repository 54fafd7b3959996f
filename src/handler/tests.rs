//! Tests of answers and reasons.

use super::*;
use proptest::prelude::*;
use std::cell::Cell;
use std::io;

fn retried<A: Answer>(answer: A) -> Reason {
    match answer.into_ack().into_verdict() {
        Verdict::Retry { reason, fatal } => Reason {
            text: reason,
            fatal,
        },
        other => panic!("expected a retry, got {other:?}"),
    }
}

fn reason(reason: impl Into<BoxError>) -> Reason {
    Reason::of(reason.into())
}

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the warehouse is closed")]
    Closed,
    #[error("the order cannot be booked")]
    Named(#[source] FatalError),
    #[error(transparent)]
    Through(#[from] FatalError),
    #[error("the disk failed")]
    Disk(#[from] io::Error),
}

mod inference {
    use super::*;

    fn accepts<A: Answer>(f: impl Fn(u8) -> A) -> Ack {
        f(1).into_ack()
    }

    fn io(fails: bool) -> io::Result<u8> {
        if fails {
            return Err(io::Error::other("no disk"));
        }
        Ok(1)
    }

    #[test]
    fn plain_answers() {
        assert_eq!(accepts(|_| ()).into_verdict(), Verdict::Accept);
        assert_eq!(accepts(|_| {}).into_verdict(), Verdict::Accept);
        assert_eq!(accepts(|_| Ack::accept()).into_verdict(), Verdict::Accept);
        let parked = accepts(|n| Ack::park(format!("number {n}")));
        let expected = Verdict::Park {
            reason: "number 1".to_owned(),
        };
        assert_eq!(parked.into_verdict(), expected);
    }

    #[test]
    fn closure_that_only_panics_compiles() {
        let panics = std::panic::catch_unwind(|| accepts(|_| -> () { panic!("on purpose") }));
        assert!(panics.is_err());
    }

    #[test]
    fn question_mark_with_anyhow() {
        let unit = accepts(|_| {
            io(true)?;
            anyhow::Ok(())
        });
        assert_eq!(retried(unit).text, "no disk");
        let ack = accepts(|_| -> anyhow::Result<Ack> {
            io(false)?;
            Ok(Ack::reject("sold out"))
        });
        let expected = Verdict::Reject {
            reason: "sold out".to_owned(),
        };
        assert_eq!(ack.into_verdict(), expected);
    }

    #[test]
    fn question_mark_with_thiserror_io_and_boxes() {
        let error = accepts(|_| {
            io(true)?;
            Ok::<_, Refusal>(Ack::accept())
        });
        assert_eq!(retried(error).text, "the disk failed: no disk");
        let error = accepts(|_| {
            io(true)?;
            Ok::<_, io::Error>(())
        });
        assert_eq!(retried(error).text, "no disk");
        let error = accepts(|_| {
            io(true)?;
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        });
        assert_eq!(retried(error).text, "no disk");
        let error = accepts(|_| Err::<(), _>("a string will do"));
        assert_eq!(retried(error).text, "a string will do");
    }
}

#[test]
fn reason_text() {
    assert_eq!(reason("as it: is ").text, "as it: is ");
    assert_eq!(reason("").text, "no reason given");

    let contexts = anyhow::anyhow!("inner").context("middle").context("outer");
    assert_eq!(reason(contexts).text, "outer: middle: inner");
    assert_eq!(reason(Refusal::Closed).text, "the warehouse is closed");
    assert_eq!(
        reason(FatalError::new("no such sku")).text,
        "FatalError: no such sku"
    );
    let caused = FatalError::caused_by("no such sku", io::Error::other("404"));
    assert_eq!(reason(caused).text, "FatalError: no such sku: 404");
    assert_eq!(
        reason(FatalError::new("")).text,
        "FatalError: no reason given"
    );
}

#[test]
fn fatal_error_is_found_anywhere_in_the_chain() {
    let fatal = || FatalError::new("no such sku");
    let boxed: Box<dyn Error + Send + Sync> = Box::new(fatal());
    let twice: Box<dyn Error + Send + Sync> = Box::new(Refusal::Through(fatal()));
    let cases: Vec<(BoxError, &str)> = vec![
        (fatal().into(), "FatalError: no such sku"),
        (boxed, "FatalError: no such sku"),
        (twice, "FatalError: no such sku"),
        (
            anyhow::Error::new(fatal()).into(),
            "FatalError: no such sku",
        ),
        (
            anyhow::Error::new(fatal()).context("booking").into(),
            "booking: FatalError: no such sku",
        ),
        (
            anyhow::Error::new(fatal())
                .context("booking")
                .context("order 7")
                .into(),
            "order 7: booking: FatalError: no such sku",
        ),
        (
            Refusal::Named(fatal()).into(),
            "the order cannot be booked: FatalError: no such sku",
        ),
        (
            anyhow::Error::new(Refusal::Named(fatal())).into(),
            "the order cannot be booked: FatalError: no such sku",
        ),
        (
            FatalError::caused_by("outer", fatal()).into(),
            "FatalError: outer: FatalError: no such sku",
        ),
    ];
    for (error, text) in cases {
        let reason = reason(error);
        assert!(reason.fatal, "{text}");
        assert_eq!(reason.text, text);
    }
    for harmless in ["FatalError: in words only", "x"] {
        assert!(!reason(harmless).fatal);
    }
    assert!(!reason(anyhow::anyhow!("a").context("b")).fatal);
}

#[test]
fn fatal_error_is_found_in_every_kind_of_retry() {
    let text = "FatalError: x";
    let said = [
        Err::<(), _>(FatalError::new("x")).into_ack(),
        Ok::<_, FatalError>(Ack::retry(FatalError::new("x"))).into_ack(),
        Ack::retry(FatalError::new("x")),
    ];
    for ack in said {
        let reason = retried(ack);
        assert!(reason.fatal);
        assert_eq!(reason.text, text);
    }
}

/// An error with methods that misbehave on request.
#[derive(Debug, Default)]
struct Hostile {
    display: Misbehaviour,
    source: Misbehaviour,
    drop: Misbehaviour,
    fatal: Option<FatalError>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Misbehaviour {
    #[default]
    None,
    Panic,
    PanicWithBomb,
    Endless,
}

/// A panic payload that panics on drop.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the payload's drop");
    }
}

impl Misbehaviour {
    fn act(self) {
        match self {
            Self::Panic => panic!("on purpose"),
            Self::PanicWithBomb => std::panic::panic_any(Bomb),
            Self::None | Self::Endless => {}
        }
    }
}

impl fmt::Display for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.display.act();
        if self.display == Misbehaviour::Endless {
            loop {
                f.write_str("on and on ünd ")?;
            }
        }
        f.write_str("hostile")
    }
}

impl Error for Hostile {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.act();
        if self.source == Misbehaviour::Endless {
            return Some(self);
        }
        self.fatal.as_ref().map(|fatal| fatal as _)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.drop.act();
    }
}

fn misbehaviour() -> impl Strategy<Value = Misbehaviour> {
    prop::sample::select(vec![
        Misbehaviour::None,
        Misbehaviour::Panic,
        Misbehaviour::PanicWithBomb,
        Misbehaviour::Endless,
    ])
}

fn quietly<T>(run: impl FnOnce() -> T) -> T {
    thread_local!(static QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    let value = run();
    QUIET.set(false);
    value
}

proptest! {
    #[test]
    fn reason_never_panics_and_always_ends(
        display in misbehaviour(),
        source in misbehaviour(),
        drop in misbehaviour(),
        fatal in any::<bool>(),
    ) {
        let fatal = fatal.then(|| FatalError::new("deep"));
        let expect_fatal = fatal.is_some() && source == Misbehaviour::None;
        let hostile = Hostile { display, source, drop, fatal };
        let reason = quietly(|| reason(hostile));
        prop_assert!(!reason.text.is_empty());
        prop_assert!(reason.text.len() < 300 * 1024);
        prop_assert_eq!(reason.fatal, expect_fatal);
        if matches!(display, Misbehaviour::Panic | Misbehaviour::PanicWithBomb) {
            prop_assert_eq!(reason.text, "reason could not be shown");
        }
    }

    #[test]
    fn string_reason_is_unchanged(text in ".{1,80}") {
        let reason = reason(text.clone());
        prop_assert_eq!(reason.text, text);
    }
}

#[test]
fn error_that_fails_to_format() {
    #[derive(Debug)]
    struct Unformattable;
    impl fmt::Display for Unformattable {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            Err(fmt::Error)
        }
    }
    impl Error for Unformattable {}
    assert_eq!(reason(Unformattable).text, "reason could not be shown");
}

#[test]
fn long_chain_is_cut_but_fatal_error_is_found() {
    let mut error = anyhow::Error::new(FatalError::new("deep"));
    for n in 0..200 {
        error = error.context(format!("level {n}"));
    }
    let reason = reason(error);
    assert!(reason.fatal);
    assert!(reason.text.starts_with("level 199: level 198: "));
    assert!(!reason.text.contains("level 150"));
}
