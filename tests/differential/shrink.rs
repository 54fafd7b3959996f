//! Makes a program that fails smaller, for as long as it fails.

use super::program::{Program, Step};
use crate::message::delivery::Outgoing;
use crate::message::headers::{Headers, Properties};
use crate::topology::declaration::Declaration;

/// The smallest program found that still `fails`.
pub(super) fn shrunk(program: Program, fails: &mut dyn FnMut(&Program) -> bool) -> Program {
    let mut program = program;
    let mut part = program.0.len() / 2;
    while part > 0 {
        program = without(program, part, fails);
        part /= 2;
    }
    loop {
        let before = program.to_string();
        program = simplified(program, fails);
        program = without(program, 1, fails);
        if program.to_string() == before {
            return program;
        }
    }
}

/// Leaves out so many steps in a row, wherever that goes.
fn without(program: Program, part: usize, fails: &mut dyn FnMut(&Program) -> bool) -> Program {
    let mut program = program;
    let mut from = program.0.len();
    while from > 0 {
        from = from.saturating_sub(part);
        let mut steps = program.0.clone();
        steps.drain(from..(from + part).min(steps.len()));
        let smaller = Program(steps);
        if fails(&smaller) {
            program = smaller;
        }
    }
    program
}

/// Takes from the steps what they do not need.
fn simplified(program: Program, fails: &mut dyn FnMut(&Program) -> bool) -> Program {
    let mut program = program;
    for at in 0..program.0.len() {
        let mut next = 0;
        while let Some(step) = simpler(&program.0[at]).into_iter().nth(next) {
            let mut steps = program.0.clone();
            steps[at] = step;
            let simpler = Program(steps);
            if fails(&simpler) {
                program = simpler;
            } else {
                next += 1;
            }
        }
    }
    program
}

/// The step with one thing less, in every way.
fn simpler(step: &Step) -> Vec<Step> {
    match step {
        Step::Declare {
            link,
            declaration:
                Declaration::Queue {
                    name,
                    durable,
                    exclusive,
                    auto_delete,
                    arguments,
                },
        } => fewer(arguments)
            .into_iter()
            .map(|arguments| Step::Declare {
                link: *link,
                declaration: Declaration::Queue {
                    name: name.clone(),
                    durable: *durable,
                    exclusive: *exclusive,
                    auto_delete: *auto_delete,
                    arguments,
                },
            })
            .collect(),
        Step::Publish { channel, message } => {
            let mut simpler: Vec<Outgoing> = fewer(&message.headers)
                .into_iter()
                .map(|headers| Outgoing {
                    headers,
                    ..message.clone()
                })
                .collect();
            let fields: [fn(&mut Outgoing); 4] = [
                |message| message.mandatory = false,
                |message| message.properties.expiration = None,
                |message| message.properties.priority = None,
                |message| {
                    message.properties = Properties {
                        expiration: message.properties.expiration.take(),
                        priority: message.properties.priority,
                        ..Properties::default()
                    };
                },
            ];
            for simplify in fields {
                let mut changed = message.clone();
                simplify(&mut changed);
                let is_new = changed.mandatory != message.mandatory
                    || changed.properties != message.properties;
                simpler.extend(is_new.then_some(changed));
            }
            simpler
                .into_iter()
                .map(|message| Step::Publish {
                    channel: *channel,
                    message,
                })
                .collect()
        }
        _ => Vec::new(),
    }
}

fn fewer(headers: &Headers) -> Vec<Headers> {
    headers
        .iter()
        .map(|(name, _)| {
            let mut fewer = headers.clone();
            fewer.remove(name);
            fewer
        })
        .collect()
}
