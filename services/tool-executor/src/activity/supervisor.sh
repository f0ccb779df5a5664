# Runs one command and outlives whoever started it. Arguments: folder of the activity, working folder, command, most open
# files, largest file in blocks of 512 bytes (0: no limit). Everything it needs is a shell and mv.
umask 077
# A handler, not "ignore": children must get the default action back.
trap : TERM INT HUP QUIT
ulimit -c 0 2>/dev/null
ulimit -n "$4" 2>/dev/null
[ "$5" = 0 ] || ulimit -f "$5" 2>/dev/null
echo "$$" >"$1/pid.new" && mv -f "$1/pid.new" "$1/pid"
(
  umask 022
  cd "$2" || exit 126
  exec sh -c "$3"
) </dev/null >>"$1/out.log" 2>&1 &
child=$!
while :; do
  wait "$child"
  status=$?
  # A signal to this shell ends the wait, not the command.
  [ "$status" -gt 128 ] && kill -0 "$child" 2>/dev/null || break
done
echo "$status" >"$1/exit.new" && mv -f "$1/exit.new" "$1/exit"
