#!/usr/bin/env bash
# All tests, against private brokers they start and end themselves and on the embedded broker, and all examples built.
#   tests/run.sh [OPTIONS] [ARGS…]                  ARGS go to cargo test; without any, every suite runs
#   tests/run.sh [OPTIONS] --differential [ARGS…]   only the differential test; ARGS go to its binary
# OPTIONS
#   --rabbitmq-4    on RabbitMQ 4 in a root of its own, see tests/rabbitmq-4.sh, instead of the installed RabbitMQ
#   --under-load    beside a busy loop on each core and a loop of synchronous writes
#   --help          prints this
# A red suite hides no other: at the end stands one line for each suite, and then the names of the tests that failed.
# Run it with plain cargo test, not nextest: the tests of a binary share a broker, and nextest would start one for each.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

server=/usr/lib/rabbitmq/bin/rabbitmq-server
cargo_test=(cargo test --locked --workspace --all-features)
# Tests wait more than they work, so more of them run at a time than there are cores. On the embedded broker each has a
# broker of its own; on RabbitMQ they share one, and the brokers that some start besides boot two at a time.
embedded_threads=12
rabbitmq_threads=8

die() { echo "tests/run.sh: $*" >&2; exit 1; }

scratch=$(mktemp -d) || die "no temporary folder"
policy=
background=()
cleanup() {
  local pid
  for pid in "${background[@]}"; do kill "$pid" && wait "$pid"; done 2>/dev/null
  [[ -z $policy ]] || rm -f "$policy"
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

install_rabbitmq() {
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    die "the tests need $server; install the package rabbitmq-server, or run this as root on Debian"
  fi
  apt-get update -qq || die "apt-get update failed"
  # Only the files: the tests start their own brokers, so the package must not start one.
  if [[ ! -e /usr/sbin/policy-rc.d ]]; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq rabbitmq-server || die "rabbitmq-server was not installed"
}

# Keeps every core busy, and the disk.
start_load() {
  local core
  for ((core = $(nproc); core > 0; core--)); do
    while :; do :; done &
    background+=($!)
  done
  while dd if=/dev/zero of="$scratch/load" bs=1M count=64 conv=fdatasync status=none; do :; done 2>/dev/null &
  background+=($!)
}

# suite NAME COMMAND…: runs a suite, shows its output, and leaves a line on it and the names of its failures in $scratch.
suite() {
  local name=$1 log=$scratch/$1.log start=$SECONDS result=ok
  shift
  printf '\n=== %s: %s\n' "$name" "$*"
  "$@" 2>&1 | tee "$log" || result=FAILED
  # Cargo prints one result for each binary, and the failures of a binary twice: with their output, and as a list.
  awk -v name="$name" -v result="$result" -v seconds="$((SECONDS - start))" -v failures="$scratch/$name.failures" '
    /^failures:$/ { listed = 1; n = 0; next }
    listed && /^    / { list[++n] = substr($0, 5); next }
    /^test result: / {
      passed += $4; failed += $6
      for (i = 1; i <= n; i++) print name ": " list[i] >failures
      listed = n = 0
    }
    END {
      if (result != "ok" && !failed) print name ": did not run to its end, see above" >failures
      printf "%-13s %-7s %5d passed %5d failed %6d s\n", name, result, passed, failed, seconds
    }' "$log" >"$scratch/$name.line"
  [[ $result == ok ]]
}

# The library's unit tests with the differential test among them.
differential_program=
build_differential() {
  differential_program=$(
    cargo rustc --locked -p rungmq --lib --profile test --all-features \
      --message-format=json-render-diagnostics -- --cfg differential |
      sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
  )
}
# That test, beside a broker. Its URLs come from a program that the build has left in the same target folder.
differential() {
  "${differential_program%/deps/*}/with_rabbitmq" "$differential_program" differential "$@"
}

suites=()
# Each suite's name is kept here, because one that runs beside another is a process of its own.
run_suite() {
  suites+=("$1")
  suite "$@"
}

# The same beside whatever comes next; `show_beside` waits for it and prints what it said.
beside=
run_beside() {
  suites+=("$1")
  suite "$@" >"$scratch/beside.out" 2>&1 &
  beside=$!
}
show_beside() {
  wait "$beside"
  cat "$scratch/beside.out"
}

summary() {
  local name
  echo
  for name in "${suites[@]}"; do
    cat "$scratch/$name.line" 2>/dev/null || echo "$name: did not report" | tee "$scratch/$name.failures"
  done
  for name in "${suites[@]}"; do cat "$scratch/$name.failures"; done >"$scratch/failures" 2>/dev/null
  [[ -s $scratch/failures ]] || return 0
  printf '\nfailures:\n'
  sed 's/^/    /' "$scratch/failures"
  return 1
}

under_load=
only_differential=
while (($#)); do
  case $1 in
    --rabbitmq-4) RUNGMQ_TEST_RABBITMQ=$(tests/rabbitmq-4.sh) || exit; export RUNGMQ_TEST_RABBITMQ ;;
    --under-load) under_load=1 ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' tests/run.sh; exit ;;
    --differential) only_differential=1; shift; break ;;
    *) break ;;
  esac
  shift
done
[[ -x $server || -n ${RUNGMQ_TEST_RABBITMQ:-} ]] || install_rabbitmq

# Everything is built before the clock of a suite starts, and before the load does.
cargo build --locked --workspace --all-features --examples --bins || exit
if [[ -n $only_differential ]]; then
  build_differential || exit
  [[ -z $under_load ]] || start_load
  differential "$@"
  exit
fi
if (($#)); then
  [[ -z $under_load ]] || start_load
  "${cargo_test[@]}" "$@"
  exit
fi
"${cargo_test[@]}" --no-run --lib --bins --examples --tests || exit
build_differential || exit
[[ -z $under_load ]] || start_load

run_suite unit "${cargo_test[@]}" --no-fail-fast --lib --bins --examples
run_suite embedded env RUST_TEST_THREADS=$embedded_threads "${cargo_test[@]}" --test embedded
run_suite differential differential
run_suite rabbitmq env RUST_TEST_THREADS=$rabbitmq_threads "${cargo_test[@]}" --test rabbitmq
# The disasters mostly wait; the clock suite computes.
run_beside clock "${cargo_test[@]}" --test clock
run_suite disasters "${cargo_test[@]}" --test disasters
show_beside
run_suite doc "${cargo_test[@]}" --doc
summary
