#!/usr/bin/env bash
# venv.sh NAME LIST DESCRIPTION: installs the Python packages of a list with versions into a virtual
# environment, and prints its directory. An interrupted run continues where it stopped.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
name=$1 list=$2 description=$3

"$here/packages.sh" python
# Each set of versions and each Python has its environment, so that worktrees do not disturb each
# other. A complete environment contains the file `complete`.
python=$(python3 -c 'import sys; print(sys.version, sys.base_prefix)')
key=$(printf '%s\n' "$python" | cat - "$list" | sha256sum | cut -c 1-12)
venv=$BELAY_CACHE/$name/venv-$key
mkdir -p "$BELAY_CACHE/$name"
# Two concurrent runs would write into each other's environment.
exec 9>"$BELAY_CACHE/$name/setup.lock"
flock 9
if ! [ -e "$venv/complete" ]; then
    announce "installing $description into $venv by pip"
    [ -x "$venv/bin/pip" ] || python3 -m venv --clear "$venv"
    # The list is complete, so pip has nothing to resolve.
    "$venv/bin/pip" install --quiet --no-deps --requirement "$list" >&2 ||
        give_up "pip could not install all of $list; run it again to continue"
    touch "$venv/complete"
fi
printf '%s\n' "$venv"
