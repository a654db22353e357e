#!/usr/bin/env bash
# Tests the chart's backend `openstack` with a real Keystone, Cinder and Nova: two replicas, next to
# a driver with the backend `local`. Volumes are created, attached, expanded, changed to another
# volume type by a VolumeAttributesClass, and deleted. The leader is killed between Cinder's work
# and its response; the credentials in the Secret are replaced and the old ones revoked; the key of
# format marks survives an uninstall of the driver. Keystone is reached over TLS, with a separate
# authority. A server of the bed has no guest, so no disk reaches the node and no volume is mounted.
#
#   openstack.sh     in a cluster of the Kubernetes bed (cluster.sh exec), with the chart installed
set -Eeuo pipefail
here=$(dirname "$(readlink -f "$0")")
: "${BASE:?is set by cluster.sh exec}"
. "$here/../beds/kubernetes/env.sh"
. "$here/claims.sh"

cloud=$here/../beds/openstack
state=$BASE/openstack
namespace=belay-system
spot=belay-openstack
driver=cinder.csi.openstack.org
controller=belay-controller-cinder
key=belay-format-mark-cinder
metadata=$node_address:8775
keystone=$node_address:5000
work=$(mktemp -d)
fronts=()
# The bed's kubelet re-reads a Secret every 10 s, the controller its file every 5 s.
seconds=180

clean() {
    local code=$?
    trap - EXIT ERR
    set +e
    if [ "$code" != 0 ]; then
        kubectl get pods,pvc,volumeattachments,events --all-namespaces >&2
        kubectl --namespace "$namespace" logs --selector belay.dev/driver=cinder --tail=40 \
            --all-containers --prefix >&2
        tail -n 50 "$work/helm" >&2
        cp -r "$state/log" "$BASE/log/openstack"
    fi
    rules '[]' 2>/dev/null
    kubectl delete namespace "$spot" --ignore-not-found --timeout=120s >/dev/null || code=1
    [ ! -e "$work/local.json" ] || upgrade local || code=1
    kubectl --namespace "$namespace" delete secret cloud-config "$key" --ignore-not-found >/dev/null
    kubectl delete volumeattributesclass first second moving --ignore-not-found >/dev/null
    kubectl --namespace "$namespace" delete configmap cloud-authorities --ignore-not-found \
        >/dev/null
    [ "${#fronts[@]}" = 0 ] || kill "${fronts[@]}"
    "$cloud/bed.py" --state "$state" remove || code=1
    rm -rf "$work"
    exit "$code"
}

user() {
    "$cloud/user.py" "$state" "$@"
}

# value KEY: prints a value of bed.json.
value() {
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' \
        "$state/bed.json" "$1"
}

# rules JSON: sets the rules of the fault proxy.
rules() {
    curl --silent --fail --show-error --request PUT "$(value proxy)/rules" --data "$1" >/dev/null
}

start_cloud() {
    "$cloud/bed.py" --state "$state" up --address "$node_address"
    "$cloud/bed.py" --state "$state" start metadata
    server=$(user boot)
    "$cloud/user.py" "$state" metadata "$metadata" "$server" 2>/dev/null &
    fronts+=($!)
    make_certificates
    "$cloud/user.py" "$state" tls "$keystone" "$work/tls.crt" "$work/tls.key" &
    fronts+=($!)
}

# Creates an authority, and a certificate for Keystone that it has signed: a certificate cannot be
# both.
make_certificates() {
    local new=(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2)
    "${new[@]}" -keyout "$work/ca.key" -out "$work/ca.crt" -subj /CN=authority 2>/dev/null
    "${new[@]}" -keyout "$work/tls.key" -out "$work/tls.crt" -subj /CN=keystone \
        -CA "$work/ca.crt" -CAkey "$work/ca.key" -addext "subjectAltName=IP:$node_address" \
        -addext basicConstraints=critical,CA:FALSE 2>/dev/null
    kubectl --namespace "$namespace" create configmap cloud-authorities \
        --from-file=ca.crt="$work/ca.crt" >/dev/null
}

# put_secret ID SECRET
put_secret() {
    printf '[Global]\nauth-url=%s\nregion=%s\napplication-credential-id=%s\n%s=%s\n' \
        "https://$keystone/v3" "$(value region)" "$1" application-credential-secret "$2" \
        >"$work/cloud.conf"
    kubectl --namespace "$namespace" create secret generic cloud-config \
        --from-file="$work/cloud.conf" --dry-run=client --output yaml | kubectl apply --filename - \
        >/dev/null
}

# Writes local.json and both.json: the release's values, and the values with the cloud's driver.
write_values() {
    helm get values belay --namespace "$namespace" --output json >"$work/local.json"
    python3 - "$work" "$metadata" <<'PY'
import json, pathlib, sys
work, metadata = pathlib.Path(sys.argv[1]), sys.argv[2]
values = json.loads((work / "local.json").read_text())
values["drivers"].append({
    "backend": "openstack", "metadata": {"searchOrder": "metadataService", "address": metadata},
    "caBundle": {"configMapName": "cloud-authorities"}, "volumeAttributesClasses": True,
    "storageClasses": [{"name": "cinder-at-once", "volumeBindingMode": "Immediate"},
                       {"name": "cinder-az-a", "type": "file-a", "availability": "az-a"}]})
(work / "both.json").write_text(json.dumps(values))
PY
}

# upgrade local|both
upgrade() {
    helm upgrade belay "$here/../../deploy/chart" --namespace "$namespace" --wait --timeout 5m \
        --values "$work/$1.json" >"$work/helm" 2>&1
}

node_id() {
    kubectl get csinode "$BED_NODE" \
        --output jsonpath="{.spec.drivers[?(@.name==\"$driver\")].nodeID}"
}

# volumes EXPRESSION: prints the value of a Python expression, in which `v` contains the volumes of
# the project.
volumes() {
    user volumes | python3 -c 'import json, sys
v = json.load(sys.stdin)
print(eval(sys.argv[1]))' "$1"
}

# volumes_are EXPRESSION: whether the expression is true.
volumes_are() {
    [ "$(volumes "bool($1)")" = True ]
}

# name CLAIM: prints the name of the claim's volume.
name() {
    printf 'pvc-%s\n' "$(kubectl --namespace "$spot" get pvc "$1" \
        --output jsonpath='{.metadata.uid}')"
}

is_bound() {
    kubectl --namespace "$spot" wait --for=jsonpath='{.status.phase}'=Bound "pvc/$1" \
        --timeout="${seconds}s" >/dev/null
}

delete_claim() {
    kubectl --namespace "$spot" delete pvc "$1" --timeout="${seconds}s" >/dev/null
    await "$seconds" "the deletion of the volume of $1 in Cinder" volumes_are 'not v'
}

attached() {
    kubectl get volumeattachments --output \
        jsonpath="{.items[?(@.spec.attacher==\"$driver\")].status.attached}"
}

check_create_and_expand() {
    local volume
    make_claim "$spot" data cinder-at-once
    is_bound data
    volume=$(name data)
    volumes_are "[(x['name'], x['status'], x['size']) for x in v] == [('$volume', 'available', 1)]"
    volumes_are "v[0]['metadata']['cinder.csi.openstack.org/cluster'] == 'kubernetes'"
    kubectl --namespace "$spot" patch pvc data --patch \
        '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}' >/dev/null
    await "$seconds" "the growth in Cinder" volumes_are "v[0]['size'] == 2"
    delete_claim data
}

# make_attributes NAME TYPE
make_attributes() {
    kubectl apply --filename - >/dev/null <<YAML
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: $1}
driverName: $driver
parameters: {type: $2}
YAML
}

# status_is CLAIM PATH VALUE
status_is() {
    [ "$(kubectl --namespace "$spot" get pvc "$1" --output jsonpath="{.status.$2}")" = "$3" ]
}

choose() {
    kubectl --namespace "$spot" patch pvc "$1" --patch \
        "{\"spec\": {\"volumeAttributesClassName\": \"$2\"}}" >/dev/null
}

# Tests that a class whose type would require moving the data is reported as infeasible, and can be
# undone.
check_attributes_class() {
    make_attributes first file-a
    make_attributes second file
    make_attributes moving file-b
    kubectl --namespace "$spot" apply --filename - >/dev/null <<'YAML'
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: typed}
spec:
  storageClassName: cinder-at-once
  volumeAttributesClassName: first
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
YAML
    is_bound typed
    volumes_are "[x['volume_type'] for x in v] == ['file-a']"
    choose typed second
    await "$seconds" "the new type in Cinder" volumes_are "v[0]['volume_type'] == 'file'"
    await "$seconds" "the class as the current one" \
        status_is typed currentVolumeAttributesClassName second
    choose typed moving
    await "$seconds" "the refusal" status_is typed modifyVolumeStatus.status Infeasible
    volumes_are "v[0]['volume_type'] == 'file'"
    kubectl --namespace "$spot" get events | grep -q 'mutable_parameters\[type\]'
    choose typed first
    await "$seconds" "the first type in Cinder" volumes_are "v[0]['volume_type'] == 'file-a'"
    await "$seconds" "the first class as the current one" \
        status_is typed currentVolumeAttributesClassName first
    delete_claim typed
}

# The pod waits for the disk; the kubelet's calls fail until the pod is deleted.
check_attach() {
    make_claim "$spot" attached cinder-az-a
    kubectl --namespace "$spot" apply --filename - >/dev/null <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: shell
      image: localhost/busybox:1
      command: [sleep, "3600"]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: attached}}]
YAML
    is_bound attached
    await "$seconds" "the attachment" eval '[ "$(attached)" = true ]'
    volumes_are "[(x['status'], x['servers']) for x in v] == [('in-use', ['$server'])]"
    kubectl --namespace "$spot" delete pod user --timeout="${seconds}s" >/dev/null
    await "$seconds" "the detachment" eval '[ -z "$(attached)" ]'
    volumes_are "[(x['status'], x['servers']) for x in v] == [('available', [])]"
    delete_claim attached
}

leader() {
    kubectl --namespace "$namespace" get lease "${driver//./-}" \
        --output jsonpath='{.spec.holderIdentity}'
}

# Cinder has created the volume, but its response reaches no client.
check_killed_leader() {
    local before volume
    before=$(leader)
    rules '[{"action": "slow", "service": "cinder", "method": "POST", "path": "/volumes$",
             "after_seconds": 300, "times": 1}]'
    make_claim "$spot" killed cinder-at-once
    volume=$(name killed)
    await "$seconds" "the volume in Cinder" volumes_are "v"
    kubectl --namespace "$namespace" delete pod "$before" --grace-period=0 --force >/dev/null 2>&1
    [ "$(kubectl --namespace "$spot" get pvc killed --output jsonpath='{.status.phase}')" = \
        Pending ]
    is_bound killed
    rules '[]'
    [ "$(leader)" != "$before" ]
    volumes_are "[x['name'] for x in v] == ['$volume']"
    kubectl --namespace "$namespace" rollout status "deployment/$controller" \
        --timeout="${seconds}s" >/dev/null
    delete_claim killed
}

restarts() {
    local count='{.status.containerStatuses[?(@.name=="belay-controller")].restartCount}'
    kubectl --namespace "$namespace" get pods --selector belay.dev/driver=cinder \
        --output jsonpath="{range .items[*]}{.metadata.uid} $count {end}"
}

# Prints the number of logins; only the controllers log in through the proxy.
logins() {
    curl --silent --fail --show-error "$(value proxy)/counts" | python3 -c 'import json, sys
print(sum(entry["count"] for entry in json.load(sys.stdin)
          if entry["service"] == "keystone" and entry["status"] == 201))'
}

# A token in a service's cache may outlive its credential, so also check that there was a new login.
check_rotated_secret() {
    local before count new
    before=$(restarts)
    count=$(logins)
    new=$(user credential second)
    put_secret "${new% *}" "${new#* }"
    user revoke "${first% *}"
    make_claim "$spot" rotated cinder-at-once
    is_bound rotated
    await "$seconds" "a login with the new credentials" eval '[ "$(logins)" -gt "$count" ]'
    [ "$(restarts)" = "$before" ]
    delete_claim rotated
}

# Checks that the sidecars and the controller have all the rights that they requested.
check_rights() {
    tail -c "+$((marked + 1))" "$BASE/log/audit.jsonl" |
        grep "\"username\":\"system:serviceaccount:$namespace:$controller\"" >"$work/requests"
    [ -s "$work/requests" ] && ! grep '"code":403' "$work/requests" >&2
}

key_in_cluster() {
    kubectl --namespace "$namespace" get secret "$key" \
        --output jsonpath='{.metadata.uid} {.metadata.resourceVersion} {.data.keys}'
}

# Marks on disks use the first key. The Job that creates the key has a right only while it runs, and
# uses no other.
check_kept_key() {
    local before
    before=$(key_in_cluster)
    [ "$(cut -d ' ' -f 3 <<<"$before" | base64 --decode | wc -c)" = 64 ]
    upgrade local
    [ "$(key_in_cluster)" = "$before" ]
    upgrade both
    [ "$(key_in_cluster)" = "$before" ]
    [ -z "$(kubectl --namespace "$namespace" get job,role,rolebinding,serviceaccount \
        --field-selector "metadata.name=$key" --output name)" ]
    tail -c "+$((marked + 1))" "$BASE/log/audit.jsonl" |
        grep "\"username\":\"system:serviceaccount:$namespace:$key\"" >"$work/requests"
    python3 - "$work/requests" <<'PY'
import json, sys
entries = [json.loads(line) for line in open(sys.argv[1])]
calls = {(e["verb"], e["objectRef"]["resource"], e["responseStatus"]["code"]) for e in entries}
assert calls == {("create", "secrets", 201), ("create", "secrets", 409)}, calls
PY
}

step() {
    local start=$SECONDS
    "check_$1"
    printf 'openstack: %s: ok, %d s\n' "${1//_/ }" $((SECONDS - start))
}

# An earlier uninstall removes rights while the sidecars still send requests, so only later entries
# of the audit log count.
marked=$(wc -c <"$BASE/log/audit.jsonl")
trap clean EXIT
trap 'printf "openstack: line %s: %s\n" "$LINENO" "$BASH_COMMAND" >&2' ERR
start_cloud
first=$(user credential first)
put_secret "${first% *}" "${first#* }"
write_values
upgrade both
await "$seconds" "the server's ID as that of the node" eval '[ "$(node_id)" = "$server" ]'
kubectl get node "$BED_NODE" --output jsonpath='{.metadata.labels}' |
    grep -q '"topology.cinder.csi.openstack.org/zone":"az-a"'
[ "$(kubectl --namespace "$namespace" get deployment "$controller" \
    --output jsonpath='{.status.readyReplicas}')" = 2 ]
make_namespace "$spot"
for check in create_and_expand attributes_class attach killed_leader rotated_secret rights kept_key; do
    step "$check"
done
