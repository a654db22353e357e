#!/usr/bin/env bash
# Tests `belayctl doctor --switch` on the objects of a real API server: it fails as long as the
# other driver has pods, its sidecars hold leases, and a volume has mount options that Belay
# refuses; it succeeds once these have ended and the volume was changed as the report says.
#
#   switch.sh BELAYCTL     within a cluster of the Kubernetes bed (cluster.sh exec)
#
# The driver consists of objects only: no node can run its image.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
belayctl=${1:?the program belayctl}
: "${BASE:?is set by cluster.sh exec}"
. "$here/../beds/kubernetes/env.sh"
. "$here/doctor.sh"

namespace=belay-switch
driver=cinder.csi.openstack.org
lease=external-attacher-leader-cinder-csi-openstack-org
work=$(mktemp -d)

clean() {
    local code=$?
    trap - EXIT
    [ "$code" = 0 ] || cat "$work/report" >&2 || true
    kubectl delete namespace "$namespace" --ignore-not-found --timeout=120s >/dev/null || code=1
    kubectl delete persistentvolume/belay-switch storageclass/belay-switch --ignore-not-found \
        --timeout=60s >/dev/null || code=1
    rm -rf "$work"
    exit "$code"
}

# install HOLDER: creates the driver's controller, and a volume. The names of images and leases are
# the real driver's.
install() {
    kubectl apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: Namespace
metadata: {name: $namespace}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: csi-cinder-controllerplugin, namespace: $namespace}
spec:
  replicas: 1
  selector: {matchLabels: {app: cinder}}
  template:
    metadata: {labels: {app: cinder}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - name: plugin
          image: localhost/nowhere/cinder-csi-plugin:v1
          imagePullPolicy: Never
          args: ["--cloud-config=\$(CLOUD_CONFIG)", --cluster=prod, --pvc-annotations]
          env: [{name: CLOUD_CONFIG, value: /etc/config/cloud.conf}]
          volumeMounts: [{name: conf, mountPath: /etc/config}]
      volumes: [{name: conf, hostPath: {path: /etc/kubernetes}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: hinted
  namespace: $namespace
  annotations: {$driver/affinity: data-0}
spec:
  storageClassName: ""
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: $lease, namespace: $namespace}
spec:
  holderIdentity: $1
  leaseDurationSeconds: 15
  renewTime: "$(date --utc +%Y-%m-%dT%H:%M:%S.%6NZ)"
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: belay-switch}
provisioner: $driver
parameters: {type: ssd, csi.storage.k8s.io/fstype: ext3}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: belay-switch}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: belay-switch
  persistentVolumeReclaimPolicy: Retain
  mountOptions: [noatime, norecovery]
  csi: {driver: $driver, volumeHandle: 0f1b9c1e-9c51-4b5f-8f32-4b6d2f0f7a11, fsType: xfs}
YAML
}

has_no_pods() {
    [ -z "$(kubectl --namespace "$namespace" get pods --output name)" ]
}

trap clean EXIT
install pod-1
doctor 2
expect "NO pods of the driver Deployment $namespace/csi-cinder-controllerplugin: 1" \
    "NO leases of the sidecars $namespace/$lease" \
    "NO volumes belay-switch: mountOptions, norecovery: without the journal" \
    "warn settings Deployment $namespace/csi-cinder-controllerplugin: --cluster=prod set cluster: prod" \
    "cloud.conf is /etc/kubernetes/cloud.conf of the host" \
    "warn claims $namespace/hinted: have hints" \
    "warn storage classes belay-switch: Belay does not create ext3"
scale=$(grep -o "kubectl --namespace $namespace scale .* --replicas=0" "$work/report")
bash -c "$scale" >/dev/null
await 60 "the end of the driver's pods" has_no_pods
kubectl --namespace "$namespace" patch lease "$lease" --type merge \
    --patch '{"spec":{"holderIdentity":""}}' >/dev/null
kubectl patch persistentvolume belay-switch --type merge \
    --patch '{"spec":{"mountOptions":["noatime"]}}' >/dev/null
doctor 0
expect "ok leases of the sidecars none is held" "ok volumes 1 can be taken over"
