#!/usr/bin/env bash
# Writes an image archive of one layer, which containerd imports: busybox and the requested files.
#
#   image.sh OUT NAME[,NAME...] [--copy FILE=/PATH]... [--linked FILE=/PATH]...
#                               [--entry PROGRAM] [--run WORD...]
#
# --copy puts a static program into the image, --linked a program together with its libraries. A
# container of the image starts the entry, if any, with the words of --run, which a pod may replace.
# The build is reproducible.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

out=$1 names=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
layer=$work/layer

architecture() {
    case $(uname -m) in
        x86_64) echo amd64 ;;
        aarch64) echo arm64 ;;
        *) give_up "no image is made for $(uname -m)" ;;
    esac
}

# json WORD...: prints a list of strings; the words come from these scripts and need no escapes.
json() {
    local word list=
    for word in "$@"; do
        list+="${list:+,}\"$word\""
    done
    printf '[%s]' "$list"
}

make_tree() {
    local applet
    mkdir -p "$layer"/{bin,dev,etc,home,mnt,opt,proc,root,run,sys,tmp,usr/local/bin,var}
    chmod 1777 "$layer/tmp"
    printf 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' \
        >"$layer/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$layer/etc/group"
    install "$node_tools/bin/busybox" "$layer/bin/busybox"
    for applet in $("$layer/bin/busybox" --list); do
        [ -e "$layer/bin/$applet" ] || ln -s busybox "$layer/bin/$applet"
    done
}

copy() {
    # install(1) would follow a link of busybox, and overwrite busybox.
    rm -f "$layer${1#*=}"
    install -D "${1%%=*}" "$layer${1#*=}"
}

# Copies the libraries that the loader would use here, to the same paths in the image.
copy_linked() {
    local library
    copy "$1"
    for library in $(ldd "${1%%=*}" | grep -o '/[^ ]*'); do
        copy "$library=$library"
    done
}

pack() {
    tar --create --format=posix --pax-option=delete=atime,delete=ctime --sort=name --mtime=@0 \
        --owner=0 --group=0 --numeric-owner --file="$1" --directory="$2" "${@:3}"
}

make_tree
entry=() run=()
while [ $# -gt 0 ]; do
    case $1 in
        --copy) copy "$2" ;;
        --linked) copy_linked "$2" ;;
        --entry) entry=("$2") ;;
        --run) run=("${@:2}") && break ;;
        *) give_up "image.sh does not know $1" ;;
    esac
    shift 2
done

mkdir "$work/archive"
pack "$work/archive/layer.tar" "$layer" .
digest=$(sha256sum "$work/archive/layer.tar" | cut -d ' ' -f 1)
cat >"$work/archive/config.json" <<JSON
{"architecture": "$(architecture)", "os": "linux",
 "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Entrypoint": $(json "${entry[@]}"),
            "Cmd": $(json "${run[@]}")},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]}}
JSON
cat >"$work/archive/manifest.json" <<JSON
[{"Config": "config.json", "Layers": ["layer.tar"], "RepoTags": $(json ${names//,/ })}]
JSON
pack "$out.part" "$work/archive" manifest.json config.json layer.tar
mv "$out.part" "$out"
