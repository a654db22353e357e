#!/usr/bin/env bash
# Builds Debian packages of the three programs, for nodes where they run outside of pods: belay-node
# with its unit, udev rules and settings, belay-controller with its unit and settings, belayctl with
# its manual pages and completions.
#
#   deploy/packages/build.sh OUTDIR BINDIR     OUTDIR/{belay-node,belay-controller,belayctl}_*.deb
#
# The programs are static, so the packages suit every release of Debian and Ubuntu. Installing a
# package starts nothing; an upgrade restarts the services that run. The build is reproducible.
#
# ARCHITECTURE is the architecture of the programs, by default this machine's. BELAYCTL writes the
# manual pages, so it must run on this machine; by default, it is the one in BINDIR.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
top=$here/../..
. "$top/tests/setup/env.sh"

[ "$#" = 2 ] || give_up "usage: build.sh OUTDIR BINDIR (the programs are built by: make build)"
have dpkg-deb || give_up "packages are made by dpkg-deb; please install dpkg"
version=${VERSION:-$(workspace_version "$top")}
architecture=${ARCHITECTURE:-$(dpkg --print-architecture)}
mkdir -p "$1"
outdir=$(readlink -f "$1")
bindir=$2
belayctl=${BELAYCTL:-$bindir/belayctl}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export SOURCE_DATE_EPOCH=0

put() {
    install -D --mode "${3:-644}" "$1" "$root/$2"
}

# Writes the fields that all packages share, and the description of this one.
control() {
    mkdir -p "$root/DEBIAN"
    cat - "$here/description.$package" >"$root/DEBIAN/control" <<END
Package: $package
Version: $version
Architecture: $architecture
Maintainer: The Belay project
Section: admin
Priority: optional
Installed-Size: $(du --summarize --apparent-size --block-size=1K "$root" | cut -f 1)
END
}

papers() {
    local doc=usr/share/doc/$package
    put "$top/LICENSE" "$doc/copyright"
    put "$scratch/third-party" "$doc/third-party"
}

# Adds a service and its settings, which an upgrade leaves as the administrator has set them.
service() {
    local script
    put "$top/deploy/systemd/$package.service" "usr/lib/systemd/system/$package.service"
    put "$top/deploy/systemd/$package.default" "etc/default/$package"
    put "$top/docs/configuration.md" "usr/share/doc/$package/configuration.md"
    put "$top/docs/health.md" "usr/share/doc/$package/health.md"
    put "$top/deploy/systemd/README.md" "usr/share/doc/$package/README.md"
    install -d -m 700 "$root/var/lib/belay"
    printf '/etc/default/%s\n' "$package" >"$root/DEBIAN/conffiles"
    for script in postinst prerm postrm; do
        sed "s/@PACKAGE@/$package/g" "$here/$script" >"$root/DEBIAN/$script"
        chmod 755 "$root/DEBIAN/$script"
    done
}

# Adds the manual pages and completions, which the program creates from its command line definition.
manual() {
    local share=$root/usr/share
    mkdir -p "$share/man/man1" "$share/bash-completion/completions" \
        "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d"
    "$belayctl" man "$share/man/man1"
    gzip -9 --no-name "$share"/man/man1/*.1
    "$belayctl" completion bash >"$share/bash-completion/completions/belayctl"
    "$belayctl" completion zsh >"$share/zsh/vendor-completions/_belayctl"
    "$belayctl" completion fish >"$share/fish/vendor_completions.d/belayctl.fish"
}

build() {
    local root=$scratch/$1 package=$1
    [ -x "$bindir/$package" ] || give_up "$bindir has no $package; please run: make build"
    mkdir -p "$root/DEBIAN"
    put "$bindir/$package" "usr/bin/$package" 755
    papers
    if [ "$package" = belayctl ]; then manual; else service; fi
    [ "$package" != belay-node ] ||
        put "$top/udev-rules/60-belay.rules" usr/lib/udev/rules.d/60-belay.rules
    control
    dpkg-deb --root-owner-group --build "$root" "$outdir/${package}_${version}_$architecture.deb" \
        >/dev/null
    ls "$outdir/${package}_${version}_$architecture.deb"
}

umask 022
"$top/deploy/images/notices.sh" >"$scratch/third-party"
for package in belay-node belay-controller belayctl; do
    build "$package"
done
