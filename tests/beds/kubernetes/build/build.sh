#!/usr/bin/env bash
# Builds the programs of the bed: Kubernetes, etcd, the sidecars and the official storage suite, all
# from one go.mod, so that no image registry is needed.
#
#   build.sh            builds missing programs
#   build.sh --where    prints the directory of the finished programs, there or not
#
# The directory is named after everything that the build depends on, so a change causes a new build.
# Go's own caches speed up the build and are not needed afterwards.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../../../setup/env.sh"
cd "$here"

cache=$BELAY_CACHE/kubernetes
programs=(etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl)
report_seconds=30

directory() {
    local inputs
    have go || give_up "there is no Go; please run: tests/setup/go.sh"
    inputs=$({ go env GOVERSION GOARCH && cat build.sh go.mod go.sum ./*/*.go; } | sha256sum)
    printf '%s/programs-%s\n' "$cache" "${inputs:0:16}"
}

# Sets the version as in an official release, since the suite and the API server compare their
# versions.
version_flags() {
    local version package=k8s.io/component-base/version
    version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
    printf -- '-s -w'
    printf -- " -X $package.%s" "gitVersion=$version" "gitTreeState=clean" \
        "gitMajor=$(cut -d . -f 1 <<<"${version#v}")" "gitMinor=$(cut -d . -f 2 <<<"$version")"
}

# Go prints nothing for minutes, so report progress: each line of its log is a compiled package.
run_go() {
    local started=$SECONDS pid tick=0
    go "$@" 2>>"$log" &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        tick=$((tick + 1))
        [ $((tick % report_seconds)) != 0 ] ||
            announce "$((SECONDS - started)) s, $(wc -l <"$log") packages compiled or fetched"
    done
    wait "$pid" || {
        grep -v '^[a-z0-9./-]*$' "$log" | tail -n 20 >&2
        give_up "the programs of the Kubernetes bed could not be built (go $1); see above"
    }
}

# Copies the manifests that the official suite and the sidecars' makers install in addition to their
# programs.
copy_manifests() {
    local snapshotter=github.com/kubernetes-csi/external-snapshotter client makers
    client=$(go list -m -f '{{.Dir}}' "$snapshotter/client/v8")
    makers=$(go list -m -f '{{.Dir}}' "$snapshotter/v8")
    mkdir "$1/snapshot-crds"
    cp "$client"/config/crd/snapshot.storage.k8s.io_*.yaml "$1/snapshot-crds"
    cp -r "$makers/deploy/kubernetes/snapshot-controller" "$1/snapshot-controller-manifests"
    chmod -R u+w "$1"
}

build() {
    local flags program work=$cache/programs.unfinished log=$cache/programs.log
    rm -rf "$work"
    mkdir "$work"
    : >"$log"
    flags=(-v -trimpath -ldflags "$(version_flags)" -o "$work/")
    run_go build "${flags[@]}" ./kubebox ./nodessh ./registrar tool
    run_go test -c -vet=off "${flags[@]::4}" -o "$work/storagee2e.test" ./storagee2e
    for program in "${programs[@]}"; do
        ln -s kubebox "$work/$program"
    done
    copy_manifests "$work"
    rm "$log"
    mv "$work" "$finished"
}

# Removes other builds after two days, since another checkout or a running cluster may use them.
prune() {
    touch "$finished"
    find "$cache" -maxdepth 1 -name 'programs-*' -mtime +1 -type d -exec rm -rf {} +
}

finished=$(directory)
if [ "${1:-}" = --where ]; then
    printf '%s\n' "$finished"
    exit
fi
mkdir -p "$cache"
exec 9>"$cache/programs.lock"
flock 9
export CGO_ENABLED=0
if [ ! -d "$finished" ]; then
    announce "building Kubernetes, its sidecars and the storage suite into $cache (once; ten" \
        "minutes on two cores; 650 MB)"
    build
    announce "built in $SECONDS s"
fi
prune
