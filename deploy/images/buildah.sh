# shellcheck shell=bash
# Sourced: provides buildah without a daemon and without leftovers, and the name of an image.

registry=${REGISTRY:-localhost}
version=${VERSION:-$(workspace_version "$here/../..")}

# Buildah keeps everything in here, except a small cache whose path cannot be configured.
scratch=$(mktemp -d)
cache=/var/lib/containers/cache
made_here=$([ -e "$cache" ] || echo "$cache/blob-info-cache-v1.boltdb")
clean() {
    rm -rf "$scratch"
    [ -z "$made_here" ] || rm -f "$made_here"
    [ -z "$made_here" ] || rmdir -p "$cache" 2>/dev/null || true
}
trap clean EXIT
# Nothing is pulled, so there is no signature to check.
printf '{"default": [{"type": "insecureAcceptAnything"}]}\n' >"$scratch/policy.json"

buildah() {
    command buildah --root "$scratch/storage" --runroot "$scratch/run" --storage-driver vfs "$@"
}

# image NAME CONTEXT TAG FLAG...: builds an image from the directory CONTEXT/rootfs, reproducibly.
image() {
    local name=$1 context=$2 tag=$3
    shift 3
    buildah bud --quiet --isolation chroot --timestamp 0 --build-arg VERSION="$version" \
        --signature-policy "$scratch/policy.json" --file "$here/$name.Dockerfile" \
        --tag "$tag" "$@" "$context" >/dev/null
}
