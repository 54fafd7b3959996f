#!/usr/bin/env bash
# All tests, against private brokers they start and end themselves and on the embedded broker, and all examples built.
#   tests/run.sh [ARGS…]                  on the installed RabbitMQ; ARGS go to cargo test
#   tests/run.sh --rabbitmq-4 [ARGS…]     on RabbitMQ 4 in a root of its own, see tests/rabbitmq-4.sh
# Run it with plain cargo test, not nextest: the tests of a binary share a broker, and nextest would start one for each.
set -euo pipefail
cd "$(dirname "$0")/.."

server=/usr/lib/rabbitmq/bin/rabbitmq-server

if [[ ${1:-} == --rabbitmq-4 ]]; then
  shift
  RUNGMQ_TEST_RABBITMQ=$(tests/rabbitmq-4.sh)
  export RUNGMQ_TEST_RABBITMQ
elif [[ ! -x $server && -z ${RUNGMQ_TEST_RABBITMQ:-} ]]; then
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "tests/run.sh: the tests need $server; install the package rabbitmq-server, or run this as root on Debian" >&2
    exit 1
  fi
  apt-get update -qq
  # Only the files: the tests start their own brokers, so the package must not start one.
  policy=/usr/sbin/policy-rc.d
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq rabbitmq-server
fi

cargo build --locked --workspace --all-features --examples
if (($#)); then
  exec cargo test --locked --workspace --all-features "$@"
fi
# On the embedded broker tests wait more than they work, and disturb nobody else's: many at a time.
RUST_TEST_THREADS=12 cargo test --locked --workspace --all-features --test embedded
# A red test of one suite says nothing about the others.
cargo test --locked --workspace --all-features --no-fail-fast \
  --lib --bins --examples --test clock --test disasters --test rabbitmq
cargo test --locked --workspace --all-features --doc
