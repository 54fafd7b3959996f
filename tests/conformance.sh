#!/usr/bin/env bash
# Which test runs on which broker: one line each, then how many.
#   tests/conformance.sh            all tests
#   tests/conformance.sh | grep -vE '^yes +yes '    those of one broker only; why stands at `only_on_rabbitmq!` and in tests/embedded/main.rs
set -euo pipefail
cd "$(dirname "$0")/.."

names() {
  cargo test --quiet --locked --workspace --all-features --test "$1" -- --list 2>/dev/null | sed -n 's/: test$//p' | sort
}

join -a 1 -a 2 -e no -o 0,1.2,2.2 <(names rabbitmq | sed 's/$/ yes/') <(names embedded | sed 's/$/ yes/') |
  awk '
    { printf "%-10s %-10s %s\n", $2, $3, $1; rabbitmq += $2 == "yes"; embedded += $3 == "yes"; both += $2 == $3 }
    BEGIN { printf "%-10s %-10s %s\n", "rabbitmq", "embedded", "test" }
    END { printf "%d on RabbitMQ, %d on the embedded broker, %d on both\n", rabbitmq, embedded, both }'
