//! Runs a program beside a private broker: `with_rabbitmq PROGRAM [ARGS…]`.
//!
//! The program finds in `RUNGMQ_DIFFERENTIAL_URLS` the URLs of four virtual hosts, separated by
//! spaces. The broker ends with the program, whose exit code is this one's.

use std::env;
use std::process::{Command, ExitCode};

use harness::rabbitmq::{Node, Vhost};

const URLS: &str = "RUNGMQ_DIFFERENTIAL_URLS";
const VIRTUAL_HOSTS: usize = 4;

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    let Some(program) = args.next() else {
        eprintln!("usage: with_rabbitmq PROGRAM [ARGS…]");
        return ExitCode::from(2);
    };
    let node = Node::start();
    let vhosts: Vec<_> = (0..VIRTUAL_HOSTS).map(|_| Vhost::on(&node)).collect();
    let urls: Vec<_> = vhosts.iter().map(Vhost::url).collect();
    let status = Command::new(&program)
        .args(args)
        .env(URLS, urls.join(" "))
        .status();
    // The node ends by its drop: returning from here, not `process::exit`, leaves no broker behind.
    match status {
        Ok(status) => match status.code().map(u8::try_from) {
            Some(Ok(code)) => ExitCode::from(code),
            _ => ExitCode::FAILURE,
        },
        Err(error) => {
            eprintln!("failed to run {}: {error}", program.display());
            ExitCode::from(127)
        }
    }
}
