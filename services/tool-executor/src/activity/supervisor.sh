# Runs one command and outlives whoever started it. Arguments: folder of the activity, working folder, the command and its
# arguments. Everything it needs is a shell, mkdir and mv. What it may use and touch was settled by whoever started it, and a
# line on its input says that this is done: without that, nothing is run.
umask 077
# A handler, not "ignore": children must get the default action back.
trap : TERM INT HUP QUIT
read -r go && [ "$go" = go ] || exit 125
here=$1 there=$2
shift 2
mkdir -p "$here/tmp"
echo "$$" >"$here/pid.new" && mv -f "$here/pid.new" "$here/pid"
input=/dev/null
if [ -p "$here/in" ]; then
  input=$here/in
  # Held open, so that the command does not see the end of its input before somebody says so.
  exec 3<>"$here/in"
  trap 'exec 3>&-' USR1
fi
(
  umask 022
  cd "$there" || exit 126
  exec 3>&-
  exec "$@"
) <"$input" >>"$here/out.log" 2>&1 &
child=$!
while :; do
  wait "$child"
  status=$?
  # A signal to this shell ends the wait, not the command.
  [ "$status" -gt 128 ] && kill -0 "$child" 2>/dev/null || break
done
echo "$status" >"$here/exit.new" && mv -f "$here/exit.new" "$here/exit"
