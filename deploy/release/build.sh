#!/usr/bin/env bash
# Builds all files of a release from the committed files, for amd64 and arm64. The build is
# reproducible on machines with the same packages.
#
#   deploy/release/build.sh OUTDIR
#
#   belay-VERSION-linux-ARCHITECTURE.tar.gz    static programs, manual pages, completions, licences
#   belay-{node,controller}-VERSION.oci.tar    images with an index of both architectures
#   belay-VERSION.tgz                          the chart
#   belay*_VERSION_ARCHITECTURE.deb            packages
#   belay*-VERSION.cdx.json                    what each program is made of (CycloneDX)
#   NOTES.md, SHA256SUMS
#
# The version is the one in Cargo.toml; if the commit has a tag, it must be `v` and that version.
# REGISTRY (localhost) is the registry of the images, also in the chart. REPOSITORY is the address of
# this repository, for the chart; without it, the chart names none.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
. tests/setup/env.sh

[ "$#" = 1 ] || give_up "usage: build.sh OUTDIR"
architectures=(amd64 arm64)
programs=(belay-node belay-controller belayctl)
native=$(dpkg --print-architecture)
mkdir -p "$1"
outdir=$(readlink -f "$1")
[ -z "$(ls -A "$outdir")" ] || give_up "$outdir is not empty; a release takes an empty directory"
[ -z "$(git status --porcelain)" ] || announce "changes that are not committed are left out"

# Build from a clean copy, without uncommitted changes and without other files of the checkout.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive HEAD | tar --extract --directory "$work"
tag=$(git tag --points-at HEAD 'v*' | head -n 1)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
BELAY_REVISION=$(git rev-parse HEAD)
export SOURCE_DATE_EPOCH BELAY_REVISION
cd "$work"
version=$(workspace_version .)
[ -z "$tag" ] || [ "$tag" = "v$version" ] ||
    give_up "the commit is tagged $tag, but Cargo.toml has version $version; they must agree"

step() {
    local start=$SECONDS
    printf '== release: %s\n' "$1"
    "$@"
    printf '== release: %s: ok, %d s\n' "$1" $((SECONDS - start))
}

programs() {
    local architecture
    for architecture in "${architectures[@]}"; do
        tests/setup/cross.sh "$architecture"
        ARCHITECTURE=$architecture CARGO_TARGET_DIR=$work/target \
            tests/setup/build.sh "$work/bin/$architecture" --locked --quiet
    done
}

# pack FILE DIRECTORY: creates an archive; the same files give the same bytes.
pack() {
    tar --create --directory "${2%/*}" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 \
        --group=0 --numeric-owner "${2##*/}" | gzip -9 --no-name >"$1"
}

# The documentation is the same for both architectures.
archives() {
    local architecture name program shell papers=$work/papers
    mkdir -p "$papers"/{man,completions}
    "bin/$native/belayctl" man "$papers/man"
    for shell in bash zsh fish; do
        "bin/$native/belayctl" completion "$shell" >"$papers/completions/belayctl.$shell"
    done
    cp -r README.md CHANGELOG.md LICENSE docs udev-rules deploy/systemd "$papers/"
    deploy/images/notices.sh >"$papers/third-party"
    for architecture in "${architectures[@]}"; do
        name=belay-$version-linux-$architecture
        cp -r "$papers" "$name"
        mkdir "$name/bin"
        for program in "${programs[@]}"; do
            install "bin/$architecture/$program" "$name/bin/$program"
        done
        pack "$outdir/$name.tar.gz" "$work/$name"
    done
}

packages() {
    local architecture
    for architecture in "${architectures[@]}"; do
        ARCHITECTURE=$architecture BELAYCTL=$work/bin/$native/belayctl VERSION=$version \
            deploy/packages/build.sh "$outdir" "bin/$architecture"
    done
}

images() {
    VERSION=$version deploy/images/index.sh "$outdir" bin "${architectures[@]}"
}

# Helm writes the time into the archive, so it is packed here.
chart() {
    mkdir -p chart
    cp -r deploy/chart chart/belay
    rm -rf chart/belay/{ci,generate.sh}
    [ -z "${REGISTRY:-}" ] ||
        sed -i "s|localhost/belay-|$REGISTRY/belay-|; s|registry: localhost|registry: $REGISTRY|" \
            chart/belay/{Chart,values}.yaml chart/belay/templates/_images.tpl
    [ -z "${REPOSITORY:-}" ] ||
        sed -i "s|^sources:|home: $REPOSITORY\n&\n  - $REPOSITORY|" chart/belay/Chart.yaml
    helm lint --quiet chart/belay
    pack "$outdir/belay-$version.tgz" "$work/chart/belay"
}

# Writes a list for each program. Paths of this machine are replaced by the crates' sources.
contents() {
    local crate program
    cargo cyclonedx --quiet --format json --override-filename belay
    for crate in node-agent controller ctl; do
        case $crate in ctl) program=belayctl ;; *) program=belay-${crate%-agent} ;; esac
        sed "s|$work|/belay|g" "$crate/belay.json" >"$outdir/$program-$version.cdx.json"
    done
}

# Prints the changes of this version, or of *Unreleased* before the version is tagged.
notes() {
    local heading=$version
    [ -n "$tag" ] || heading=Unreleased
    awk -v heading="$heading" '
        /^## / { on = index($0, "## " heading) == 1; next }
        on { print }' CHANGELOG.md | sed '/./,$!d' >"$outdir/NOTES.md"
    [ -s "$outdir/NOTES.md" ] || give_up "CHANGELOG.md has no section called $heading"
}

sums() {
    (cd "$outdir" && sha256sum -- * >SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS)
}

umask 022
tests/setup/packages.sh build images filesystems
tests/setup/rust.sh
tests/setup/cargo_tool.sh cargo-cyclonedx 'make release'
tests/setup/helm.sh
for part in programs archives packages images chart contents notes sums; do
    step "$part"
done
(cd "$outdir" && du --apparent-size --human-readable -- *)
