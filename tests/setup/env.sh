# shellcheck shell=bash
# Sourced by every script and by the Makefile: the directories of the tools that setup fetched.
#
# They go to a cache directory, so that nothing of the system is replaced; a rustup toolchain stands
# where rustup puts it. The sbin directories hold losetup and mkfs, and are not in everybody's PATH.

: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"
: "${BELAY_CACHE:=$HOME/.cache/belay}"
export HOME BELAY_CACHE

case ":$PATH:" in
    *":$BELAY_CACHE/bin:"*) ;;
    *) PATH=$BELAY_CACHE/bin:${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin ;;
esac
export PATH

# A failure ends in one sentence that says what to do.
give_up() {
    printf 'belay: %s\n' "$*" >&2
    exit 1
}

# One line before anything is installed: what, and why.
announce() {
    printf 'belay: %s\n' "$*" >&2
}

have() {
    command -v "$1" >/dev/null 2>&1
}

# Quiet unless it fails, and without prompts: the run may be unattended.
apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -qq "$@" \
        </dev/null >/dev/null
}

# at_least 1.90 1.95.0: is the second version the first, or a later one?
at_least() {
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

# workspace_version TOP: the version of everything that is built from the checkout TOP.
workspace_version() {
    sed -n 's/^version = "\(.*\)"$/\1/p' "$1/Cargo.toml" | head -n 1
}

# rust_target amd64|arm64: the target of programs for that architecture, in Rust's terms.
rust_target() {
    case $1 in
        amd64) printf 'x86_64-unknown-linux-gnu\n' ;;
        arm64) printf 'aarch64-unknown-linux-gnu\n' ;;
        *) give_up "there is no target for the architecture $1, only for amd64 and arm64" ;;
    esac
}

# is_go_build PROGRAM MODULE VERSION: does the cache have it? Such a program does not report
# its version, or says "(dev)"; what Go stamped into it is the truth.
is_go_build() {
    [ -x "$BELAY_CACHE/bin/$1" ] &&
        go version -m "$BELAY_CACHE/bin/$1" 2>/dev/null |
        awk -v module="$2" -v version="$3" \
            '$1 == "mod" && $2 == module && $3 == version { found = 1 } END { exit !found }'
}

# detach_all DIRECTORY: frees the loop devices that are bound to files in it.
detach_all() {
    local file loop
    for file in "$1"/*; do
        [ -e "$file" ] || continue
        for loop in $(losetup --noheadings --output NAME --associated "$file"); do
            losetup --detach "$loop" || true
        done
    done
}
