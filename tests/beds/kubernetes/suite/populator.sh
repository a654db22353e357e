#!/bin/sh
# Replaces the populator that one spec installs: fills the volume of each claim whose source is a
# Hello with the file that the Hello describes. Runs in a pod, with the rights that the spec grants.
#
# Like any populator, it creates a volume with a separate claim, lets a pod write to it, and then
# binds it to the waiting claim. All arguments except --namespace are the original's, and ignored
# here.
set -eu

for word; do
    case $word in
        --namespace=*) own=${word#*=} ;;
    esac
done
image=registry.k8s.io/sig-storage/hello-populator:v1.0.1

# Prints NAMESPACE NAME UID CLASS HELLO SIZE of each claim that waits for this populator.
waiting() {
    local source=.spec.dataSourceRef columns
    columns=kind:$source.kind,phase:.status.phase,namespace:.metadata.namespace
    columns=$columns,name:.metadata.name,uid:.metadata.uid,class:.spec.storageClassName
    columns=$columns,hello:$source.name,size:.spec.resources.requests.storage
    kubectl get persistentvolumeclaims --all-namespaces --no-headers \
        --output "custom-columns=$columns" | sed -n 's/^Hello *Pending *//p'
}

k() {
    kubectl --namespace "$own" "$@"
}

hello() {
    kubectl --namespace "$1" get hellos.hello.example.com "$2" --output jsonpath="{.spec.$3}"
}

make_volume() {
    k apply --filename - <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: prime-$3}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: $4
  resources: {requests: {storage: $6}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer-$3}
spec:
  restartPolicy: Never
  containers:
    - name: writer
      image: $image
      command: [sh, -ec, 'printf "%s\n" "\$CONTENTS" >"/mnt/\$FILE" && sync']
      env:
        - {name: FILE, value: "$(hello "$1" "$5" fileName)"}
        - {name: CONTENTS, value: "$(hello "$1" "$5" fileContents)"}
      volumeMounts: [{name: volume, mountPath: /mnt}]
  volumes: [{name: volume, persistentVolumeClaim: {claimName: prime-$3}}]
YAML
    k wait --for=jsonpath='{.status.phase}'=Succeeded "pod/writer-$3" --timeout=120s
}

give_volume() {
    local volume
    volume=$(k get persistentvolumeclaim "prime-$3" --output jsonpath='{.spec.volumeName}')
    k delete pod "writer-$3"
    kubectl patch persistentvolume "$volume" --type merge --patch \
        "{\"spec\": {\"claimRef\": {\"namespace\": \"$1\", \"name\": \"$2\", \"uid\": \"$3\"}}}"
    kubectl --namespace "$1" wait --for=jsonpath='{.status.phase}'=Bound \
        "persistentvolumeclaim/$2" --timeout=120s
    k delete persistentvolumeclaim "prime-$3"
}

while :; do
    waiting | while read -r claim; do
        # shellcheck disable=SC2086
        make_volume $claim && give_volume $claim
    done
    sleep 1
done
