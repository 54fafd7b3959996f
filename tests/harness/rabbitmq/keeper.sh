# Keeps one broker for a test process, and ends it when that process ends, however it ends: the orders come through a
# pipe, and a pipe closes with the last process that held it.
#   sh keeper.sh FOLDER EPMD-COMMAND SERVER-COMMAND      one order a line on stdin, each answered with "ok"
# Both commands are words for the shell. Neither may start a daemon: what is killed here is the process itself. Without an
# epmd command another keeper's epmd is used.
folder=$1 epmd_command=$2 server_command=$3
server= epmd=

finish() {
  trap '' EXIT HUP INT TERM
  [ -z "$server" ] || kill -KILL "$server"
  [ -z "$epmd" ] || kill -KILL "$epmd"
  wait
  rm -rf "$folder"
} 2>/dev/null
trap finish EXIT
trap 'exit 1' HUP INT TERM

if [ -n "$epmd_command" ]; then
  $epmd_command </dev/null >/dev/null 2>&1 &
  epmd=$!
fi

while read -r order; do
  case $order in
    start)
      $server_command </dev/null >>"$folder/server.out" 2>&1 &
      server=$! ;;
    kill)
      kill -KILL "$server"
      wait "$server"
      server= ;;
    freeze)
      kill -STOP "$server"
      # Each thread stops by itself, a moment after the signal.
      while grep -qv ') [Tt] ' /proc/"$server"/task/*/stat; do :; done ;;
    thaw) kill -CONT "$server" ;;
    alive) kill -0 "$server" || { echo dead; continue; } ;;
  esac 2>/dev/null
  echo ok
done
