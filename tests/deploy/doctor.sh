# shellcheck shell=bash
# Sourced by tests of `belayctl doctor --switch cinder`, which have set `belayctl` to the program,
# and `work` to a directory for the objects and the report.

# Reads the objects with the commands in the help text.
read_objects() {
    local commands
    commands=$("$belayctl" doctor --help | sed -n 's/^ *\(kubectl get .*\)/\1/p')
    [ "$(wc -l <<<"$commands")" = 3 ] || give_up "belayctl doctor --help has no commands"
    bash -e -c "$commands" >"$work/objects.json"
}

# doctor CODE: runs the check, which must exit with CODE. Its report is in the work directory, a
# finding per line.
doctor() {
    local code=0
    read_objects
    "$belayctl" doctor --switch cinder --objects "$work/objects.json" --output json \
        >"$work/report.json" || code=$?
    python3 - "$work/report.json" >"$work/report" <<'PY'
import json, sys
with open(sys.argv[1]) as report:
    for finding in json.load(report)["findings"]:
        print(*(finding[field] for field in ("verdict", "name", "detail", "cure")))
PY
    [ "$code" = "$1" ] || give_up "belayctl doctor --switch cinder: exit code $code instead of $1"
}

expect() {
    local line
    for line; do
        grep -qF -- "$line" "$work/report" || give_up "the report lacks: $line"
    done
}
