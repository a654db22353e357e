#!/usr/bin/env bash
# Provides a Go that can build csi-sanity and the wire test. Belay itself needs no Go.
#
# Since 1.21, an older Go fetches the version that a module requires. If Go is older or missing, a
# toolchain is installed into the cache directory: the official archive, or, if that site cannot be
# reached, the same toolchain as the module that Go itself would fetch.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

oldest=1.25
fetched=1.26.8
self_updating=1.21

version_of() {
    GOTOOLCHAIN=local "$1" version 2>/dev/null | sed -n 's/^go version go\([0-9.]*\).*/\1/p'
}

good_enough() {
    local version
    version=$(version_of go)
    [ -n "$version" ] && { at_least "$oldest" "$version" || self_updates "$version"; }
}

self_updates() {
    at_least "$self_updating" "$1" && [ "${GOTOOLCHAIN:-auto}" != local ]
}

architecture() {
    case $(uname -m) in
        x86_64) echo amd64 ;;
        aarch64) echo arm64 ;;
        *) give_up "no Go is fetched for $(uname -m); please install Go $oldest or later" ;;
    esac
}

fetch_archive() {
    "$here/packages.sh" curl build
    curl --fail --silent --location --connect-timeout 10 --max-time 600 --output "$1/go.tar.gz" \
        "https://go.dev/dl/go$fetched.linux-$2.tar.gz" && tar -xzf "$1/go.tar.gz" -C "$1"
}

bootstrap() {
    have apt-get && [ "$(id -u)" = 0 ] || return 1
    announce "go.dev is out of reach; installing golang-go by apt, to fetch the newer Go with it"
    apt_install golang-go && hash -r
}

# Fetches the toolchain as a module, which the checksum database verifies like any other.
fetch_module() {
    have go || bootstrap || return 1
    local module=golang.org/toolchain@v0.0.1-go$fetched.linux-$2
    GOTOOLCHAIN=local GOFLAGS=-modcacherw GOPATH=$1/path go mod download "$module" || return 1
    mv "$1/path/pkg/mod/$module" "$1/go" && chmod -R u+w "$1/go" &&
        chmod -R a+x "$1/go/bin" "$1/go/pkg/tool"
}

install_go() {
    local arch directory
    arch=$(architecture)
    announce "getting Go $fetched into $BELAY_CACHE (csi-sanity and the wire test need $oldest or" \
        "later, found: $(version_of go | grep . || echo none))"
    mkdir -p "$BELAY_CACHE/bin"
    directory=$(mktemp -d "$BELAY_CACHE/go.XXXXXX")
    fetch_archive "$directory" "$arch" || fetch_module "$directory" "$arch" ||
        give_up "no Go could be fetched; please install Go $oldest or later and try again"
    rm -rf "$BELAY_CACHE/go"
    mv "$directory/go" "$BELAY_CACHE/go"
    rm -rf "$directory"
    ln -sf "$BELAY_CACHE/go/bin/go" "$BELAY_CACHE/bin/go"
    hash -r
    good_enough || give_up "the Go in $BELAY_CACHE/go does not run; please install Go $oldest or later"
}

good_enough || install_go
