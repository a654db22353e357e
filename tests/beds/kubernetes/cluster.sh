#!/usr/bin/env bash
# Runs a Kubernetes of one node in separate mount, network and process namespaces.
#
#   cluster.sh up              returns when the node is ready
#   cluster.sh exec COMMAND... runs a command inside, as the cluster's administrator
#   cluster.sh restart NAME    ends one component; returns when its successor answers
#   cluster.sh kill NAME       the same by SIGKILL
#   cluster.sh stop NAME       ends one component until `start NAME`
#   cluster.sh start NAME
#   cluster.sh status          exits 1 if it does not run
#   cluster.sh down            ends everything and removes all of it
#
# NAME is etcd, containerd, kube-apiserver, kube-controller-manager, kube-scheduler or kubelet.
# BASE is the cluster's directory; IMAGES names archives to import besides the bed's own.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

log_lines=15
# Maximum time that a component may take to stop and to start on a busy machine.
change_seconds_max=180
volumes_gib=256

usage() {
    sed -n '4,11s/^# *//p' "$0" >&2
    exit 64
}

# Prints the PID of the process that holds the namespaces, if it is still the one that `up` started.
holder() {
    local pid
    pid=$(cat "$BASE/run/holder.pid" 2>/dev/null) || return 1
    tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF "$BASE" || return 1
    printf '%s\n' "$pid"
}

check_base() {
    case $BASE/ in
        /run/* | /var/run/* | /var/lib/* | /var/log/* | /etc/*)
            give_up "BASE=$BASE: a cluster has its own $(cut -d / -f 1-3 <<<"$BASE"), which would" \
                "hide it; please choose a directory elsewhere"
            ;;
        /*) ;;
        *) give_up "BASE=$BASE: please give an absolute path" ;;
    esac
    [ ! -e "$BASE" ] || [ -e "$BASE/.belay-cluster" ] || [ -z "$(ls -A "$BASE")" ] ||
        give_up "BASE=$BASE is not the directory of a cluster; please choose another directory"
}

check_ready() {
    local program
    [ "$(id -u)" = 0 ] || give_up "a cluster needs namespaces and mounts; please run it as root"
    for program in unshare nsenter ip openssl mkfs.xfs losetup; do
        have "$program" || give_up "there is no $program; please run: tests/setup/setup.sh e2e"
    done
    [ -x "$node_tools/bin/containerd" ] ||
        give_up "there is no containerd in $node_tools; please run: tests/setup/kubernetes.sh"
    [ -x "$bin/kubebox" ] ||
        give_up "there are no binaries in $bin; please run: tests/beds/kubernetes/build/build.sh"
}

# Prints a cgroup name that is short, and different for each directory: the cgroups of all clusters
# have the same parent.
cgroup_name() {
    printf 'belay-bed-%s\n' "$(sha256sum <<<"$BASE" | cut -c 1-10)"
}

is_unified() {
    [ -e /sys/fs/cgroup/cgroup.controllers ]
}

# Prints one directory in each hierarchy of version 1, or the single one of version 2.
cgroup_roots() {
    local hierarchy
    if is_unified; then
        printf '%s\n' "/sys/fs/cgroup/$(cgroup_name)"
        return
    fi
    for hierarchy in /sys/fs/cgroup/*/; do
        [ -L "${hierarchy%/}" ] || [ ! -e "$hierarchy/cgroup.procs" ] ||
            printf '%s\n' "$hierarchy$(cgroup_name)"
    done
}

# The kubelet creates everything below, but not the directory itself.
make_cgroups() {
    local root controller
    cgroup_name >"$BASE/cgroup"
    for root in $(cgroup_roots); do
        mkdir -p "$root"
        # A new cpuset is empty, and nothing can run in it.
        if [ -e "$root/cpuset.cpus" ] && ! is_unified; then
            cat "$root/../cpuset.cpus" >"$root/cpuset.cpus"
            cat "$root/../cpuset.mems" >"$root/cpuset.mems"
        fi
    done
    is_unified || return 0
    # If this kernel lacks or withholds a controller, the kubelet reports it. While a controller is
    # delegated further down, systemd cannot disable it.
    for controller in cpu cpuset memory pids hugetlb; do
        echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control || continue
        echo "+$controller" >"$root/cgroup.subtree_control" || continue
    done 2>/dev/null
}

# Removes child groups first. Mounts that are still in use stay, and are reported.
remove_cgroups() {
    local root
    for root in $(cgroup_roots); do
        [ ! -d "$root" ] || find "$root" -depth -type d -exec rmdir {} \; 2>/dev/null || true
        [ ! -d "$root" ] || printf 'belay: the cgroup %s is still in use\n' "$root" >&2
    done
}

make_base() {
    mkdir -p "$BASE"
    : >"$BASE/.belay-cluster"
    printf '%s\n' "$bin" >"$BASE/programs"
    mkdir -p "$BASE"/{bin,cni,containerd,etcd,flexvolumes,images,kubelet,log,pki,run,tmp}
    chmod 700 "$BASE/pki"
    make_cgroups
    "$here/config.sh" "$BASE"
    # On xfs, files can share blocks, so that a snapshot takes no time; the image is sparse.
    truncate --size "${volumes_gib}G" "$BASE/volumes.img"
    mkfs.xfs -q "$BASE/volumes.img"
    ! has_kubelet || link_images
}

link_images() {
    local archive own
    own=$("$here/images.sh")
    for archive in $own ${IMAGES:-}; do
        [ -e "$archive" ] || give_up "there is no image archive $archive"
        ln -sf "$(readlink -f "$archive")" "$BASE/images/"
    done
}

# Writes wrappers for a shell outside: the API server listens only in the cluster's own network
# namespace.
write_wrappers() {
    local program
    for program in kubectl helm; do
        cat >"$BASE/bin/$program" <<SH
#!/bin/sh
# $program from outside the cluster's network namespace.
export KUBECONFIG="\${KUBECONFIG:-$BASE/kubeconfig}" PATH="$bin:$BELAY_CACHE/bin:\$PATH"
exec nsenter --net="/proc/\$(cat "$BASE/run/holder.pid")/ns/net" $program "\$@"
SH
        chmod 755 "$BASE/bin/$program"
    done
}

launch() {
    # The mounts are slaves: a mount that is unmounted outside must not stay busy because of the
    # cluster.
    setsid unshare --mount --net --pid --fork --mount-proc --propagation slave --kill-child \
        "$here/inside.sh" "$BASE" "$bin" >"$BASE/log/inside.log" 2>&1 </dev/null &
    echo $! >"$BASE/run/holder.pid"
    # The process is recognised by its arguments, which it has once it has executed inside.sh.
    until holder >/dev/null; do
        kill -0 $! 2>/dev/null || break
        sleep 0.01
    done
}

show_logs() {
    local log
    for log in "$BASE"/log/*.log; do
        [ -s "$log" ] || continue
        printf -- '---- the end of %s\n' "$log"
        tail -n "$log_lines" "$log" | cut -c 1-400
    done >&2
}

fail_up() {
    trap - INT TERM HUP
    show_logs
    end_all
    give_up "the cluster did not come up: $1; all logs are in $BASE/log (cluster.sh down" \
        "removes them)"
}

up() {
    check_base
    check_ready
    holder >/dev/null && give_up "a cluster runs in $BASE already; please take it down first"
    [ ! -e "$BASE/.belay-cluster" ] || down
    trap 'trap "" INT TERM HUP; down; exit 130' INT TERM HUP
    make_base
    launch
    write_wrappers
    # inside.sh has its own deadline for each step, and exits at the first one that fails.
    while [ ! -e "$BASE/run/ready" ]; do
        holder >/dev/null || [ -e "$BASE/run/ready" ] || fail_up "see the end of inside.log above"
        sleep 0.1
    done
    trap - INT TERM HUP
}

enter() {
    local pid
    pid=$(holder) || give_up "no cluster runs in BASE=$BASE; please run: cluster.sh up"
    # The holder itself is outside of the process namespace that it created.
    nsenter --mount="/proc/$pid/ns/mnt" --net="/proc/$pid/ns/net" \
        --pid="/proc/$pid/ns/pid_for_children" --wd="$PWD" \
        env BASE="$BASE" BIN="$bin" KUBECONFIG="$BASE/kubeconfig" TMPDIR="$BASE/tmp" \
        PATH="$bin:$node_tools/bin:$PATH" "$@"
}

check_component() {
    local component
    holder >/dev/null || give_up "no cluster runs in BASE=$BASE; please run: cluster.sh up"
    for component in "${components[@]}"; do
        [ "$component" != "${1:-}" ] || return 0
    done
    give_up "there is no component called '${1:-}'; there are: ${components[*]}"
}

answers() {
    case $1 in
        etcd | kube-apiserver) enter kubectl get --raw /readyz ;;
        containerd) enter ctr version ;;
        kubelet) enter bash -c 'exec 3<>/dev/tcp/127.0.0.1/10248' ;;
        kube-controller-manager) enter bash -c 'exec 3<>/dev/tcp/127.0.0.1/10257' ;;
        kube-scheduler) enter bash -c 'exec 3<>/dev/tcp/127.0.0.1/10259' ;;
    esac >/dev/null 2>&1
}

# PIDs are relative to the cluster's own namespace.
signal() {
    enter kill "-$2" "$(cat "$BASE/run/$1.pid")"
}

has_successor() {
    [ "$(cat "$BASE/run/$1.pid")" != "$2" ]
}

replace() {
    local before
    check_component "$1"
    before=$(cat "$BASE/run/$1.pid")
    signal "$1" "$2"
    await "$change_seconds_max" "the successor of $1" has_successor "$1" "$before"
    await "$change_seconds_max" "an answer of $1" answers "$1"
}

is_gone() {
    ! enter kill -0 "$(cat "$BASE/run/$1.pid")"
}

stop() {
    check_component "$1"
    : >"$BASE/run/$1.stopped"
    signal "$1" TERM
    await "$change_seconds_max" "the end of $1" is_gone "$1"
}

start() {
    check_component "$1"
    rm -f "$BASE/run/$1.stopped"
    await "$change_seconds_max" "an answer of $1" answers "$1"
}

# Waits until all processes of the cluster have exited: the last one releases the mounts.
processes_gone() {
    local namespaces
    # Entries of processes that exit meanwhile cannot be read.
    namespaces=$(readlink /proc/[0-9]*/ns/pid 2>/dev/null || true)
    ! grep -qxF "$1" <<<"$namespaces"
}

# Releases loop devices of volumes, which are files on the image, itself a loop device. They are
# found by device number: sysfs shows paths only as seen from inside.
release_loops() {
    local outer number inner
    for outer in $(losetup --noheadings --output NAME --associated "$BASE/volumes.img"); do
        number=$(losetup --noheadings --output MAJ:MIN --list "$outer" | tr -d ' ')
        losetup --list --noheadings --output NAME,BACK-MAJ:MIN |
            awk -v of="$number" '$2 == of { print $1 }' | while read -r inner; do
            release_kubelets "$inner"
            # The device may have been released together with the mount on top of it.
            losetup --detach "$inner" 2>/dev/null || true
        done
    done
}

# Releases the loop devices that the kubelet puts on top of raw volumes, and leaves behind if it is
# killed. Each is found by the inode of the device below, in the filesystem of /dev.
release_kubelets() {
    local inode upper
    inode=$(stat --format=%i "$1")
    losetup --list --noheadings --output NAME,BACK-INO,BACK-MAJ:MIN |
        awk -v inode="$inode" -v dev="$(stat --format=%Hd:%Ld /dev)" \
            '$2 == inode && $3 == dev { print $1 }' | while read -r upper; do
        losetup --detach "$upper" || true
    done
}

loops_gone() {
    [ -z "$(losetup --noheadings --output NAME --associated "$BASE/volumes.img")" ]
}

end_all() {
    local pid namespace
    if pid=$(holder); then
        namespace=$(readlink "/proc/$pid/ns/pid_for_children")
        # The exit of the holder ends process 1 inside, and so all processes there.
        kill -KILL "$pid"
        await "$change_seconds_max" "the end of the cluster's processes" processes_gone "$namespace"
    fi
    rm -f "$BASE/run/holder.pid"
    if [ -e "$BASE/volumes.img" ]; then
        release_loops
        await "$change_seconds_max" "the release of $BASE/volumes.img by its loop device" loops_gone
    fi
    remove_cgroups
}

down() {
    [ -e "$BASE" ] || return 0
    check_base
    end_all
    rm -rf --one-file-system "$BASE"
}

command=${1:-}
shift || true
# A running cluster keeps the programs with which it was started.
if [ "$command" = up ]; then
    bin=$(bed_binaries)
else
    bin=$(cat "$BASE/programs" 2>/dev/null || true)
fi
case $command in
    up) up ;;
    exec) enter "$@" ;;
    restart) replace "${1:-}" TERM ;;
    kill) replace "${1:-}" KILL ;;
    stop) stop "${1:-}" ;;
    start) start "${1:-}" ;;
    status) holder >/dev/null && [ -e "$BASE/run/ready" ] ;;
    down) down ;;
    *) usage ;;
esac
