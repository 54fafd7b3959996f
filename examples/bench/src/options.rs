//! The command line.

use crate::CONTENDERS;
use anyhow::{Context, Result, bail};

pub(crate) struct Options {
    pub(crate) url: String,
    pub(crate) messages: usize,
    pub(crate) rounds: usize,
    /// The one scenario to run; all of them without it.
    pub(crate) only: Option<String>,
    pub(crate) sides: Vec<String>,
    /// The file for the JSON, which goes to stdout without one.
    pub(crate) json: Option<String>,
}

impl Options {
    /// `None` after `--help`.
    pub(crate) fn from_args(args: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut options = Self {
            url: std::env::var("AMQP_URL")
                .unwrap_or_else(|_| "amqp://guest:guest@localhost:5672".into()),
            messages: 20_000,
            rounds: 5,
            only: None,
            sides: ["ours", "raw", "lapin"].map(String::from).into(),
            json: None,
        };
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--url" => options.url = value()?,
                "--messages" => options.messages = number(&arg, &value()?)?,
                "--rounds" => options.rounds = number(&arg, &value()?)?,
                "--only" => {
                    let only = value()?;
                    if !CONTENDERS.iter().any(|c| c.scenario == only) {
                        bail!("--only is consume, retry or publish, not {only}");
                    }
                    options.only = Some(only);
                }
                "--sides" => {
                    options.sides = value()?.split(',').map(String::from).collect();
                    if let Some(side) = options
                        .sides
                        .iter()
                        .find(|s| !CONTENDERS.iter().any(|c| c.side == **s))
                    {
                        bail!("--sides is a list of ours, raw and lapin, not {side}");
                    }
                }
                "--json" => {
                    options.json = args
                        .next_if(|next| !next.starts_with("--"))
                        .filter(|file| file != "-")
                }
                "--help" | "-h" => {
                    println!(
                        "bench [--url URL] [--messages N] [--rounds N] [--only consume|retry|publish]\n      \
                         [--sides ours,raw,lapin] [--json [FILE]]"
                    );
                    return Ok(None);
                }
                _ => bail!("unknown argument {arg}; --help lists them"),
            }
        }
        Ok(Some(options))
    }
}

fn number(option: &str, text: &str) -> Result<usize> {
    match text.parse() {
        Ok(0) | Err(_) => bail!("{option} needs a whole number of at least 1, not {text}"),
        Ok(number) => Ok(number),
    }
}
