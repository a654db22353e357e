# shellcheck shell=bash
# Sourced by every script and by the Makefile: the directories of the tools that the setup fetches.
#
# The tools go to a cache directory, so that nothing of the system is replaced; a rustup toolchain
# stays in rustup's directory. The sbin directories contain losetup and mkfs, and are not in every
# user's PATH.

: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"
: "${BELAY_CACHE:=$HOME/.cache/belay}"
export HOME BELAY_CACHE

case ":$PATH:" in
    *":$BELAY_CACHE/bin:"*) ;;
    *) PATH=$BELAY_CACHE/bin:${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin ;;
esac
export PATH

# Fails with one sentence that says what to do.
give_up() {
    printf 'belay: %s\n' "$*" >&2
    exit 1
}

# Announces an installation, with its reason, in one line.
announce() {
    printf 'belay: %s\n' "$*" >&2
}

have() {
    command -v "$1" >/dev/null 2>&1
}

# Installs packages without output, unless it fails, and without prompts, since the run may be
# unattended.
apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -qq "$@" \
        </dev/null >/dev/null
}

# at_least 1.90 1.95.0: whether the second version is the first, or a later one.
at_least() {
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

# workspace_version TOP: prints the version of everything that is built from the checkout TOP.
workspace_version() {
    sed -n 's/^version = "\(.*\)"$/\1/p' "$1/Cargo.toml" | head -n 1
}

# rust_target amd64|arm64: prints the target of programs for this architecture, in Rust's terms.
rust_target() {
    case $1 in
        amd64) printf 'x86_64-unknown-linux-gnu\n' ;;
        arm64) printf 'aarch64-unknown-linux-gnu\n' ;;
        *) give_up "there is no target for the architecture $1, only for amd64 and arm64" ;;
    esac
}

# is_go_build PROGRAM MODULE VERSION: whether the cache contains the program. Such a program may not
# report its version, or reports "(dev)", so this reads the version that Go has recorded in it.
is_go_build() {
    [ -x "$BELAY_CACHE/bin/$1" ] &&
        go version -m "$BELAY_CACHE/bin/$1" 2>/dev/null |
        awk -v module="$2" -v version="$3" \
            '$1 == "mod" && $2 == module && $3 == version { found = 1 } END { exit !found }'
}

# detach_all DIRECTORY: releases the loop devices that are bound to files in it.
detach_all() {
    local file loop
    for file in "$1"/*; do
        [ -e "$file" ] || continue
        for loop in $(losetup --noheadings --output NAME --associated "$file"); do
            losetup --detach "$loop" || true
        done
    done
}
