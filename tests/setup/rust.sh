#!/usr/bin/env bash
# Provides a Rust toolchain that can build the workspace: an existing one, or else one from rustup,
# which never changes a Rust that the distribution installed.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/../../Cargo.toml")

good_enough() {
    local version
    version=$(rustc --version 2>/dev/null | cut -d ' ' -f 2) || return 1
    [ -n "$version" ] && at_least "$oldest" "$version" && cargo --version >/dev/null 2>&1
}

# Fetches the official installer, without the shell script around it.
fetch_rustup() {
    local installer
    "$here/packages.sh" curl build
    installer=$(mktemp -d)
    curl --fail --silent --show-error --location --max-time 300 --output "$installer/rustup-init" \
        "https://static.rust-lang.org/rustup/dist/$(uname -m)-unknown-linux-gnu/rustup-init" ||
        give_up "no Rust from rust-lang.org; please install Rust $oldest or later and try again"
    chmod +x "$installer/rustup-init"
    RUSTUP_INIT_SKIP_PATH_CHECK=yes "$installer/rustup-init" -y -q --no-modify-path \
        --profile minimal --component clippy,rustfmt </dev/null >/dev/null
    rm -rf "$installer"
}

install_rust() {
    announce "getting Rust by rustup (the workspace needs $oldest or later, found: $(rustc \
        --version 2>/dev/null || echo none))"
    if ! have rustup && ! have cargo && have apt-get && [ "$(id -u)" = 0 ]; then
        apt_install rustup 2>/dev/null || true
    fi
    hash -r
    if have rustup; then
        rustup toolchain install stable --profile minimal --component clippy,rustfmt </dev/null
        rustup default stable </dev/null
    else
        fetch_rustup
    fi
    hash -r
    good_enough || give_up "this Rust is still older than $oldest; please install a later one"
}

add_component() {
    have rustup || give_up "cargo has no $1; please install it for your Rust"
    announce "adding $1 to the Rust toolchain (make check needs it)"
    rustup component add "$1" </dev/null
}

good_enough || install_rust
cargo fmt --version >/dev/null 2>&1 || add_component rustfmt
cargo clippy --version >/dev/null 2>&1 || add_component clippy
