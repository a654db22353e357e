# shellcheck shell=bash
# Sourced by the first process of a node: restarts components that end, as systemd would.
#
# A file BASE/run/NAME.stopped keeps a component from being started again.

# supervise NAME COMMAND...: starts a component, and restarts it whenever it ends.
supervise() {
    local name=$1 code
    shift
    while :; do
        # Use a separate session, so that the processes that it leaves running, such as containerd's
        # shims, continue.
        setsid "$@" >>"$BASE/log/$name.log" 2>&1 </dev/null &
        echo $! >"$BASE/run/$name.pid.new"
        mv "$BASE/run/$name.pid.new" "$BASE/run/$name.pid"
        code=0
        wait $! || code=$?
        printf 'belay: %s ended with code %d\n' "$name" "$code" >>"$BASE/log/$name.log"
        sleep 0.2
        while [ -e "$BASE/run/$name.stopped" ]; do sleep 0.1; done
    done
}
