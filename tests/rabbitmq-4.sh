#!/usr/bin/env bash
# RabbitMQ 4 for the tests, beside the distribution's own version: Debian trixie's package in a root folder of its own.
#   tests/rabbitmq-4.sh      makes the root if it is missing and prints where it is; as root, 700 MB, some minutes once
# The root is $RABBITMQ4_ROOT, by default /opt/rabbitmq-4. /tmp is the host's, where the tests keep a broker's data.
set -euo pipefail

root=${RABBITMQ4_ROOT:-/opt/rabbitmq-4}
server=usr/lib/rabbitmq/bin/rabbitmq-server

die() { echo "rabbitmq-4.sh: $*" >&2; exit 1; }

# The mirror this machine already installs from.
mirror() {
  local found
  found=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -n 1 || true)
  echo "${found:-http://deb.debian.org/debian}"
}

mount_once() {
  local target=${*: -1}
  mountpoint -q "$target" || mount "$@"
}

[[ $(id -u) == 0 ]] || die "needs root, for debootstrap, mount and chroot"
if [[ ! -x $root/$server ]]; then
  if ! command -v debootstrap >/dev/null; then
    apt-get update -qq >&2
    apt-get install -y -qq debootstrap >&2
  fi
  # Built beside its place, so that an interrupted run leaves no half root behind under the final name.
  rm -rf "$root.part"
  debootstrap --variant=minbase --include=rabbitmq-server trixie "$root.part" "$(mirror)" >&2
  mv "$root.part" "$root"
fi
mount_once -t proc proc "$root/proc"
mount_once --bind /dev "$root/dev"
mount_once --bind /tmp "$root/tmp"
# erl_call looks this machine's own name up; left to DNS that now and then takes 5 s.
grep -qw -- "$(hostname)" "$root/etc/hosts" || echo "127.0.1.1 $(hostname)" >>"$root/etc/hosts"
echo "$root"
