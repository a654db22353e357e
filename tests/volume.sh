# shellcheck shell=bash
# Sourced by tests that drive both programs with belayctl: takes a volume up and down again. They
# define `controller` and `node`, which call belayctl with each program's socket, and `wrong`.

# Prints the value of a line in belayctl's tables.
field() {
    sed -n "s/^$1 *//p"
}

# Retries a command for half a minute, far more than anything here takes.
await() {
    local tries
    for ((tries = 0; tries < 300; tries++)); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    wrong "not so after half a minute: $*"
}

# up NAME FS STAGING TARGET [CREATE-FLAG...]: creates, stages and publishes a volume; prints its ID.
up() {
    local fs=$2 staging=$3 target=$4 id
    id=$(controller create "$1" --size 512MiB --fs-type "$fs" "${@:5}" | field volume_id)
    node stage "$id" --staging "$staging" --fs-type "$fs" >/dev/null
    node publish "$id" --staging "$staging" --target "$target" --fs-type "$fs" >/dev/null
    printf '%s\n' "$id"
}

# down ID STAGING TARGET: unpublishes and unstages a volume.
down() {
    node unpublish "$1" --target "$3" >/dev/null
    node unstage "$1" --staging "$2" >/dev/null
}
