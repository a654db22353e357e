# shellcheck shell=bash
# Sourced by the tests of the chart in a cluster: creates the objects that each test needs first.

# make_namespace NAME: creates a namespace; returns when pods can be created in it.
make_namespace() {
    kubectl create namespace "$1" >/dev/null
    await 30 "the default service account" kubectl --namespace "$1" get serviceaccount default
}

# make_claim NAMESPACE NAME CLASS
make_claim() {
    kubectl --namespace "$1" apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $2}
spec:
  storageClassName: $3
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 256Mi}}
YAML
}
