#!/usr/bin/env bash
# Runs the External Storage suite of Kubernetes against the driver of the cluster.
#
#   cluster.sh exec suite/run.sh            the specs of focus.txt
#   PARTS="parallel disruptive" cluster.sh exec suite/run.sh    all specs that apply
#   FOCUS=REGEX cluster.sh exec suite/run.sh    matching specs; with PROCS=1, also disruptive ones
#   SUITE=disk cluster.sh exec suite/run.sh    the driver of the guests; others are in driver.sh
#
# PROCS specs run at a time; disruptive specs stop the kubelet and run one at a time. A failed spec is
# run again; if it passes then, the report says so. Reports and logs are in SUITE_DIR. A run of
# one half of PARTS is evaluated by itself; if the other half has passed before, both are evaluated
# as a full run. report.sh prints the table; its exit code is the verdict.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../env.sh"
. "$here/driver.sh"
. "$here/capabilities.sh"

: "${BIN:?}" "${KUBECONFIG:?is set by cluster.sh exec}"
reports=${SUITE_DIR:-$BASE/suite}
procs=${PROCS:-8}
helpers=()

# of_driver NODE FIELD: prints what the node's CSINode object reports about the driver.
of_driver() {
    kubectl get csinode "$1" -o jsonpath="{.spec.drivers[?(@.name==\"$driver\")].$2}"
}

check_cluster() {
    local name
    for name in "${nodes[@]}"; do
        of_driver "$name" name | grep -q . ||
            give_up "the kubelet of $name has no driver $driver; is the chart installed and" \
                "belay-node ready?"
        # Without a limit, volumeLimits would fail after minutes, without a reason.
        [ "${SUITE:-local}" = nfs ] || of_driver "$name" allocatable.count | grep -q . ||
            give_up "the driver has no limit of volumes on $name; please install it with maxVolumes"
    done
    ! grep -q snapshotDataSource "$files/driver.yaml" ||
        kubectl get crd volumesnapshots.snapshot.storage.k8s.io >/dev/null ||
        give_up "the cluster has no CRDs of the snapshot API"
}

# describe FILESYSTEM BINDING: writes the driver's description in the suite's form, and its class.
describe() {
    local mode=Immediate
    [ "$2" = immediate ] || mode=WaitForFirstConsumer
    local edit="s/@FILESYSTEM@/$1/g; s/@BINDING@/$2/g; s/@VOLUME_BINDING_MODE@/$mode/g"
    edit+="; s/@NODES@/$(tr ' ' , <<<"${nodes[*]}")/"
    sed "$edit" "$files/driver.yaml" >"$reports/driver-$1-$2.yaml"
    sed "$edit" "$files/class.yaml" >"$reports/class-$1-$2.yaml"
    kubectl apply -f "$reports/class-$1-$2.yaml" >/dev/null
    descriptions+=(--storage.testdriver="$reports/driver-$1-$2.yaml")
}

load_dm_crypt() {
    local name
    for name in "${nodes[@]}"; do
        "$here/../guests.sh" run "$name" <<<'modprobe --all dm-crypt xts'
    done
}

# Prints the specs to skip, as one regex.
left_out() {
    { grep -v '^#' "$files/excluded.txt" | sed 's/ | .*//' && exceptions_here | cut -f 1; } |
        paste -sd '|'
}

# Writes facts that the tables do not show, for docs/conformance.md.
write_facts() {
    local version kernel
    version=$(kubectl get node "${nodes[0]}" -o jsonpath='{.status.nodeInfo.kubeletVersion}')
    kernel=$(kubectl get node "${nodes[0]}" -o jsonpath='{.status.nodeInfo.kernelVersion}')
    printf '* Kubernetes %s, Linux %s, %s\n' "$version" "${kernel%%-*}" "$(uname -m)" >"$reports/facts"
    [ "${SUITE:-local}" = local ] || return 0
    cat >>"$reports/facts" <<MD
* the volumes' files on $(stat --file-system --format=%T /var/lib/belay), root
  $(lacks CAP_SYS_RESOURCE && echo without || echo with) \`CAP_SYS_RESOURCE\`
MD
}

# Prints a line for each spec when it ends; skipped specs, which are hundreds, are only in the
# table. The name follows the verdict, or precedes it if specs run one at a time.
progress() {
    awk -v repeated="$1" '
        function short(name) {
            sub(/^External Storage \[Driver: [^]]*\] /, "", name)
            gsub(/\[(It|BeforeEach|AfterEach|DeferCleanup \(Each\))\] /, "", name)
            return name
        }
        /^(•|↺|S|P) .*\[[0-9.]+ seconds\]/ {
            verdict = /^•/ ? "passed" : /^↺/ ? "second" : "skipped"
            if (/\[(FAILED|PANICKED|TIMEDOUT|INTERRUPTED|ABORTED)\]/) verdict = "FAILED"
            match($0, /[0-9]+\.[0-9]+ seconds/)
            seconds = substr($0, RSTART, RLENGTH - 8)
            wanted = verdict != "skipped"
            next
        }
        wanted {
            name = short(/^External/ ? $0 : before)
            printf "%-6s %6.1f s  %s\n", verdict, seconds, name
            fflush()
            if (verdict == "second") print name >repeated
            wanted = 0
        }
        /^External Storage/ { before = $0 }'
}

# run NAME FOCUS SKIP PROCS: the exit code is ignored, since the report has more detail.
run() {
    local name=$1 focus=$2 skip=$3 started=$SECONDS
    printf 'suite: %s, %s at a time; full output: %s\n' "$name" "$4" "$reports/$name.log"
    mkdir -p "$reports/$name"
    "$BIN/ginkgo" run --procs="$4" --focus="$focus" --skip="$skip" --timeout=4h --fail-on-empty \
        --flake-attempts=2 --no-color -v "$BIN/storagee2e.test" -- "${descriptions[@]}" --provider=local \
        --kubeconfig="$KUBECONFIG" --kubectl-path="$BIN/kubectl" --report-dir="$reports/$name" \
        --num-nodes="${#nodes[@]}" --minStartupPods=0 2>&1 | tee "$reports/$name.log" |
        progress "$reports/$name/second" || true
    [ -s "$reports/$name/junit_01.xml" ] || {
        tail -n 20 "$reports/$name.log" >&2
        give_up "the suite made no report of $name; see above"
    }
    printf 'suite: %s: %d s\n' "$name" $((SECONDS - started))
}

# Starts SSH servers: the specs reach the nodes by SSH, with which they run only systemctl.
start_ssh() {
    rm -f "$reports/ssh.key"
    PATH=$here/node:$PATH "$BIN/nodessh" "$node_address:22" "$reports/ssh.key" \
        >"$reports/nodessh.log" 2>&1 &
    helpers+=($!)
    await 10 "the SSH server (see $reports/nodessh.log)" test -s "$reports/ssh.key"
    export KUBE_SSH_USER=root KUBE_SSH_KEY_PATH=$reports/ssh.key
    [ "${SUITE:-local}" = local ] || start_ssh_in_guests
}

# Starts SSH servers in guests, with the same key. They end with the guests.
start_ssh_in_guests() {
    local name
    for name in "${nodes[@]}"; do
        "$here/../guests.sh" run "$name" <<SH
umask 077
cat >/run/ssh.key <<'KEY'
$(cat "$reports/ssh.key")
KEY
[ ! -e /run/nodessh.pid ] || kill "\$(cat /run/nodessh.pid)" 2>/dev/null || true
BASE=/node PATH=/machine$here/node:\$PATH setsid "/machine$BIN/nodessh" "$(guest_address "$name"):22" \
    /run/ssh.key >/node/log/nodessh.log 2>&1 </dev/null &
echo \$! >/run/nodessh.pid
SH
    done
}

end_helpers() {
    local helper
    for helper in "${helpers[@]}"; do
        kill "$helper" 2>/dev/null || true
    done
    rm -f "$reports/ssh.key"
}

# One spec requires another project's program in an image with this name; populator.sh replaces it.
import_populator() {
    "$here/../image.sh" "$reports/populator.tar" registry.k8s.io/sig-storage/hello-populator:v1.0.1 \
        --copy "$here/populator.sh=/populator" --copy "$BIN/kubebox=/bin/kubectl" --entry /populator
    if [ "${SUITE:-local}" = local ]; then
        ctr --namespace k8s.io images import "$reports/populator.tar" >/dev/null
    else
        "$here/../guests.sh" import "$reports/populator.tar"
    fi
    rm "$reports/populator.tar"
}

# Runs all parts. The second part must have the node for itself, since it stops the kubelet.
all() {
    local part excluded
    excluded=$(left_out)
    for part in $PARTS; do
        case $part in
            # Specs spend most of their time waiting.
            parallel) run parallel 'External Storage' "$excluded|\[Disruptive\]" "${PROCS:-12}" ;;
            disruptive) run disruptive 'External Storage.*\[Disruptive\]' "$excluded" 1 ;;
            *) give_up "PARTS=$PARTS: please choose of: parallel disruptive" ;;
        esac
    done
}

# Removes the reports, but keeps the other half's in a run of one half.
forget_reports() {
    local part
    case ${PARTS:-} in
        parallel | disruptive)
            for part in focus "$PARTS"; do
                rm -rf "${reports:?}/$part" "$reports/$part.log"
            done
            ;;
        *) rm -rf "$reports" ;;
    esac
}

# A failure in one half does not count against the other.
judge_halves() {
    if [ -e "$reports/parallel/passed" ] && [ -e "$reports/disruptive/passed" ]; then
        "$here/report.sh" "$reports" full parallel disruptive
    fi
}

judge() {
    local part
    # shellcheck disable=SC2086
    "$here/report.sh" "$reports" some $PARTS || return 1
    for part in $PARTS; do touch "$reports/$part/passed"; done
    judge_halves
}

descriptions=()
forget_reports
mkdir -p "$reports"
chmod 700 "$reports"
check_cluster
[ "${SUITE:-local}" != encrypted ] || load_dm_crypt
printf '%s\n' "promoterE2eRegistry: localhost/e2e" >"$reports/registries.yaml"
export KUBE_TEST_REPO_LIST=$reports/registries.yaml
write_facts
trap end_helpers EXIT
start_ssh
for filesystem in "${kinds[@]}"; do
    for binding in "${bindings[@]}"; do describe "$filesystem" "$binding"; done
done
if [ -n "${PARTS:-}" ]; then
    import_populator
    all
    judge
elif [ -n "${FOCUS:-}" ]; then
    import_populator
    skip=$(left_out)
    # In parallel, a spec that stops the kubelet would break the streams of other specs, which then
    # wait forever.
    [ "$procs" = 1 ] || skip+='|\[Disruptive\]'
    run focus "$FOCUS" "$skip" "$procs"
    "$here/report.sh" "$reports" some focus
else
    run focus "$(grep -v '^#' "$files/focus.txt" | paste -sd '|')" '^$' "$procs"
    "$here/report.sh" "$reports" focus focus
fi
