//! Programs at random, from a seed.

use super::program::{EXCHANGES, LINKS, Program, QUEUES, Step};
use crate::message::delivery::Outgoing;
use crate::message::headers::{HeaderValue, Headers, Properties};
use crate::topology::declaration::{Declaration, ExchangeKind};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// Longer than any run, in milliseconds.
const LONG: i64 = 10_000_000;

/// Keys that bindings and messages have in common.
const KEYS: [&str; 6] = ["k", "a.k", "a.b.k", "q0", "", "a"];

const PATTERNS: [&str; 9] = ["#", "*.k", "#.k", "a.#", "*", "k", "q0", "", "a.*.k"];

/// The program of a seed.
pub(super) fn program(seed: u64) -> Program {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut random = Random {
        queues: rng.random_range(1..=QUEUES.len()),
        rng,
        declared: Vec::new(),
    };
    let mut steps = random.queues();
    if random.is_so(0.6) {
        steps.extend(random.exchanges());
    }
    let length = random.rng.random_range(4..28);
    let mut published = 0;
    for _ in 0..length {
        steps.push(random.step(&mut published));
    }
    Program(steps)
}

struct Random {
    rng: StdRng,
    /// How many queues there are to begin with.
    queues: usize,
    declared: Vec<Declaration>,
}

impl Random {
    fn is_so(&mut self, chance: f64) -> bool {
        self.rng.random_bool(chance)
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.rng.random_range(0..all.len())].clone()
    }

    fn channel(&mut self) -> usize {
        self.one_of(&[0, 0, 0, 1, 2, 2])
    }

    /// One that is there most of the time; the first ones are used most, so that something meets there.
    fn queue(&mut self) -> &'static str {
        let count = match self.is_so(0.95) {
            true => self.queues,
            false => QUEUES.len(),
        };
        let (one, other) = (
            self.rng.random_range(0..count),
            self.rng.random_range(0..count),
        );
        QUEUES[one.min(other)]
    }

    fn exchange(&mut self) -> &'static str {
        self.one_of(&["x0", "x0", "x1", "x2"])
    }

    fn queues(&mut self) -> Vec<Step> {
        self.declared = QUEUES[..self.queues]
            .iter()
            .map(|name| self.declaration(name))
            .collect();
        let declared = self.declared.iter().cloned();
        let declare = |declaration| Step::Declare {
            link: 0,
            declaration,
        };
        declared.map(declare).collect()
    }

    fn declaration(&mut self, name: &str) -> Declaration {
        let is_quorum = self.is_so(0.45);
        let is_special = !is_quorum && self.is_so(0.15);
        Declaration::Queue {
            name: name.to_owned(),
            durable: is_quorum || self.is_so(0.8),
            exclusive: is_special && self.is_so(0.5),
            auto_delete: is_special && self.is_so(0.6),
            arguments: self.arguments(is_quorum),
        }
    }

    fn arguments(&mut self, is_quorum: bool) -> Headers {
        let mut arguments = Headers::new();
        if is_quorum {
            arguments.insert("x-queue-type", "quorum");
        } else if self.is_so(0.05) {
            arguments.insert("x-queue-type", "classic");
        }
        if self.is_so(0.6) {
            let exchange = self.one_of(&["", "", "", "x0", "x1", "missing"]);
            arguments.insert("x-dead-letter-exchange", exchange);
            if self.is_so(0.75) {
                let key = match exchange {
                    "" => self.queue(),
                    _ => self.one_of(&KEYS),
                };
                arguments.insert("x-dead-letter-routing-key", key);
            }
        }
        if self.is_so(0.2) {
            arguments.insert("x-message-ttl", self.one_of(&[0, 1, 1, LONG]));
        }
        if self.is_so(0.25) {
            arguments.insert("x-max-length", self.one_of(&[0_i64, 1, 1, 2, 3]));
        }
        if self.is_so(0.08) {
            arguments.insert("x-max-length-bytes", self.one_of(&[0_i64, 3, 6, 9]));
        }
        if self.is_so(0.25) {
            let overflow = self.one_of(&["drop-head", "reject-publish", "reject-publish-dlx"]);
            arguments.insert("x-overflow", overflow);
        }
        if is_quorum && self.is_so(0.3) {
            arguments.insert("x-delivery-limit", self.one_of(&[0_i64, 1, 1, 2, 3]));
        }
        if !is_quorum && self.is_so(0.2) {
            arguments.insert("x-max-priority", self.one_of(&[1_i64, 5, 10]));
        }
        if self.is_so(0.1) {
            arguments.insert("x-single-active-consumer", true);
        }
        if self.is_so(0.05) {
            arguments.insert("x-expires", LONG);
        }
        arguments
    }

    fn exchanges(&mut self) -> Vec<Step> {
        let count = self.rng.random_range(1..=EXCHANGES.len());
        let mut steps: Vec<Step> = (0..count).map(|at| self.declare_exchange(at)).collect();
        for _ in 0..self.rng.random_range(1..6) {
            steps.push(self.bind());
        }
        steps
    }

    fn declare_exchange(&mut self, at: usize) -> Step {
        let mut arguments = Headers::new();
        if self.is_so(0.3) {
            let alternate = self.one_of(&["x0", "x1", "x2", "", "missing"]);
            arguments.insert("alternate-exchange", alternate);
        }
        Step::Exchange {
            name: EXCHANGES[at],
            kind: self.kind(),
            arguments,
        }
    }

    fn kind(&mut self) -> ExchangeKind {
        self.one_of(&[
            ExchangeKind::Direct,
            ExchangeKind::Topic,
            ExchangeKind::Topic,
            ExchangeKind::Fanout,
            ExchangeKind::Headers,
        ])
    }

    fn bind(&mut self) -> Step {
        Step::Bind {
            queue: self.queue(),
            exchange: self.exchange(),
            routing_key: self.one_of(&PATTERNS).to_owned(),
            arguments: self.binding_arguments(),
        }
    }

    fn binding_arguments(&mut self) -> Headers {
        let mut arguments = Headers::new();
        if self.is_so(0.6) {
            return arguments;
        }
        if self.is_so(0.7) {
            let kind = self.one_of(&["all", "any", "all-with-x", "any-with-x", "none"]);
            arguments.insert("x-match", kind);
        }
        for name in ["h", "i", "x-h"] {
            if self.is_so(0.5) {
                arguments.insert(name, self.header());
            }
        }
        arguments
    }

    fn header(&mut self) -> HeaderValue {
        self.one_of(&[
            HeaderValue::Text("v".to_owned()),
            HeaderValue::Text("w".to_owned()),
            HeaderValue::I64(1),
            HeaderValue::I32(1),
            HeaderValue::Bool(true),
            HeaderValue::Void,
        ])
    }

    fn step(&mut self, published: &mut usize) -> Step {
        let channel = self.channel();
        let which = self.rng.random_range(0..6);
        match self.rng.random_range(0..100) {
            0..=33 => {
                *published += 1;
                self.publish(*published)
            }
            34..=47 => Step::Pull {
                channel,
                queue: self.queue(),
            },
            48..=53 => Step::Ack {
                channel,
                which,
                multiple: self.is_so(0.4),
            },
            54..=64 => Step::Nack { channel, which },
            65..=72 => Step::Reject { channel, which },
            73..=80 => Step::Subscribe {
                channel,
                queue: self.queue(),
                prefetch: self.one_of(&[0, 1, 1, 2, 3]),
            },
            81..=83 => Step::Cancel { channel, which },
            84..=86 => Step::Close(channel),
            87 => Step::Kill(self.rng.random_range(0..LINKS)),
            88 => Step::Purge(self.queue()),
            89 => Step::DeleteQueue(self.queue()),
            90 => Step::DeleteExchange(self.exchange()),
            91 => Step::AckTwice(self.queue()),
            92 => self.bind(),
            93 => Step::Unbind {
                queue: self.queue(),
                exchange: self.exchange(),
                routing_key: self.one_of(&PATTERNS).to_owned(),
                arguments: self.binding_arguments(),
            },
            94 => {
                let at = self.rng.random_range(0..EXCHANGES.len());
                self.declare_exchange(at)
            }
            95..=97 => Step::Declare {
                link: self.rng.random_range(0..LINKS),
                declaration: self.any_declaration(),
            },
            _ => Step::Check {
                link: self.rng.random_range(0..LINKS),
                declaration: self.any_declaration(),
            },
        }
    }

    fn any_declaration(&mut self) -> Declaration {
        match self.rng.random_range(0..5) {
            0 => Declaration::Exchange {
                name: self
                    .one_of(&["x0", "x1", "", "amq.topic", "amq.own"])
                    .to_owned(),
                kind: self.kind(),
                durable: self.is_so(0.8),
            },
            1 => Declaration::Binding {
                queue: self.queue().to_owned(),
                exchange: self.exchange().to_owned(),
                routing_key: self.one_of(&PATTERNS).to_owned(),
            },
            2 => {
                let queue = self.queue();
                self.declaration(queue)
            }
            _ => {
                // As it was, or nearly.
                let declared = self.declared.clone();
                let mut again = self.one_of(&declared);
                if let Declaration::Queue { arguments, .. } = &mut again
                    && self.is_so(0.3)
                {
                    arguments.insert("x-max-length", self.one_of(&[1_i64, 2]));
                }
                again
            }
        }
    }

    fn publish(&mut self, number: usize) -> Step {
        let (exchange, routing_key) = if self.is_so(0.7) {
            ("", self.queue())
        } else {
            let exchange =
                self.one_of(&["x0", "x0", "x1", "x2", "amq.topic", "amq.rabbitmq.trace"]);
            (exchange, self.one_of(&KEYS))
        };
        let expiration = self.is_so(0.15).then(|| {
            let all = ["0", "1", "1", "10000000", "+10000000", "soon"];
            self.one_of(&all).to_owned()
        });
        let message = Outgoing {
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            mandatory: self.is_so(0.5),
            properties: Properties {
                delivery_mode: self.one_of(&[None, Some(1), Some(2), Some(2)]),
                priority: self.is_so(0.25).then(|| self.rng.random_range(0..9)),
                expiration,
                message_id: Some(format!("id-{number}")),
                ..Properties::default()
            },
            headers: self.headers(),
            body: Arc::new(format!("m{number}").into_bytes()),
        };
        Step::Publish {
            channel: self.channel(),
            message,
        }
    }

    fn headers(&mut self) -> Headers {
        let mut headers = Headers::new();
        if self.is_so(0.2) {
            headers.insert("h", self.header());
        }
        if self.is_so(0.1) {
            headers.insert("x-h", self.header());
        }
        for copies in ["CC", "BCC"] {
            if self.is_so(0.08) {
                let key = self.queue();
                let value = match self.is_so(0.9) {
                    true => HeaderValue::Array(vec![HeaderValue::Text(key.to_owned())]),
                    false => HeaderValue::Text(key.to_owned()),
                };
                headers.insert(copies, value);
            }
        }
        if self.is_so(0.05) {
            headers.insert("x-delivery-count", self.one_of(&[1_i64, 7]));
        }
        if self.is_so(0.08) {
            headers.insert("x-death", self.deaths());
        }
        headers
    }

    /// What a client may write into `x-death`.
    fn deaths(&mut self) -> HeaderValue {
        if self.is_so(0.1) {
            return "none".into();
        }
        let mut deaths = Vec::new();
        for _ in 0..self.rng.random_range(1..4) {
            let mut death = Headers::new();
            death.insert("queue", self.queue());
            death.insert("reason", self.one_of(&["rejected", "expired", "maxlen"]));
            if self.is_so(0.7) {
                death.insert("count", 2_i64);
            }
            deaths.push(HeaderValue::Table(death));
        }
        HeaderValue::Array(deaths)
    }
}
