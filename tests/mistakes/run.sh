#!/usr/bin/env bash
# Makes the mistakes in mistakes.txt with the real programs. Prints the command, the exit code and
# the message of each, and fails if a message does not contain what mistakes.txt expects.
#
#   tests/mistakes/run.sh BIN          the directory of the programs
#
# Lines of mistakes.txt that begin with + prepare the next mistakes and must succeed. Each other
# command is followed by an indented line: its exit code, and the expected part of its message. The
# commands run in one bash, in separate mount and process namespaces, with an empty tmpfs at /run,
# /mnt and /var/lib.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../setup/env.sh"

# start NAME COMMAND...: starts a program; waits until its socket /run/belay/NAME.sock exists.
start() {
    local name=$1 pid
    "${@:2}" --endpoint "/run/belay/$name.sock" >"/run/$name.log" 2>&1 &
    pid=$!
    until [ -S "/run/belay/$name.sock" ]; do
        kill -0 $pid || { cat "/run/$name.log"; return 1; }
        sleep 0.05
    done
    printf '%d\n' $pid >"/run/$name.pid"
}

# stop NAME: stops a program that `start` has started.
stop() {
    local pid
    pid=$(<"/run/$1.pid")
    kill "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
}

# loops: prints the loop devices with files on the tmpfs of this run, which is recognised by its
# device number, since files of other processes may have the same path.
loops() {
    losetup --list --noheadings --output NAME,BACK-MAJ:MIN |
        awk -v of="$(mountpoint --fs-devno /var/lib)" '$2 == of { print $1 }'
}

# Unmounts everything. A mount that is left would keep its loop device bound.
clean() {
    local code=$? loop
    trap - EXIT
    umount --recursive --quiet /mnt || true
    for loop in $(loops); do losetup --detach "$loop" || true; done
    exit "$code"
}

# meet COMMAND CODE PART: makes one mistake, and prints it.
meet() {
    local code=0 said
    number=$((number + 1))
    timeout 10 bash -c "$1" >/run/said 2>&1 </dev/null || code=$?
    said=$(</run/said)
    printf '%2d. %s\n    exit code %d\n' $number "$1" $code
    sed 's/^/    | /' /run/said
    [ "$code" = "$2" ] && [[ $said == *"$3"* ]] && return
    printf '    WRONG: expected exit code %s, and: %s\n' "$2" "$3"
    wrong+=" $number"
}

inside() {
    local directory line command='' number=0 wrong=''
    for directory in /run /mnt /var/lib; do mount -t tmpfs -o size=1g tmpfs "$directory"; done
    trap clean EXIT
    # The commands use the variables that the preparations set.
    set -a
    mkdir /run/belay
    cd /run
    while IFS= read -r line; do
        case $line in
            '' | '#'*) ;;
            '+ '*)
                printf '    %s\n' "$line"
                eval "${line#+ }" >/run/said 2>&1 || { cat /run/said >&2; give_up "failed: $line"; }
                ;;
            ' '*)
                read -r code part <<<"$line"
                meet "$command" "$code" "$part"
                ;;
            *) command=$line ;;
        esac
    done <"$here/mistakes.txt"
    [ -z "$wrong" ] || give_up "tests/mistakes: these messages are not as expected:$wrong"
    printf '%d mistakes, each with the expected message\n' $number
}

if [ "${1:-}" = --inside ]; then
    inside
    exit
fi
[ "$(id -u)" = 0 ] || give_up "this mounts volumes; please run it as root"
[ -x "${1:-}/belayctl" ] || give_up "usage: run.sh BIN (the programs are built by: make build)"
twins=$(readlink -f "${2:-$1}")
env --ignore-environment HOME="$HOME" PATH="$(readlink -f "$1"):$twins:$PATH" \
    unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
    "$0" --inside </dev/null
