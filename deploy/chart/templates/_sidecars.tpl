{{/* One sidecar. Takes root, driver, name (provisioner), args and env (lists). */}}
{{- define "belay.sidecar" -}}
{{- $number := get (dict "provisioner" 1 "attacher" 2 "resizer" 3 "snapshotter" 4) .name -}}
{{- $port := add (include "belay.controllerPort" .) $number -}}
- name: csi-{{ .name }}
  image: {{ include "belay.image" . }}
  imagePullPolicy: {{ .root.Values.images.pullPolicy }}
  args:
    - --csi-address=/run/csi/csi.sock
    - --timeout={{ .root.Values.sidecars.timeout }}
    - --kube-api-qps={{ .root.Values.sidecars.kubeApiQps }}
    - --kube-api-burst={{ int .root.Values.sidecars.kubeApiBurst }}
    - --v={{ int .root.Values.sidecars.verbosity }}
    {{- if .root.Values.sidecars.metrics }}
    - --http-endpoint={{ include "belay.controllerAddress" . }}:{{ $port }}
    {{- end }}
    {{- with concat .args (get .root.Values.sidecars.extraArgs .name) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with concat (.env | default list) (.root.Values.sidecars.env | default list) }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .root.Values.sidecars.metrics }}
  ports:
    - name: csi-{{ .name }}
      containerPort: {{ $port }}
  {{- end }}
  resources:
    {{- $only := (get .root.Values.sidecars .name | default dict).resources | default dict }}
    {{- include "belay.over" (dict "defaults" .root.Values.sidecars.resources "entry" $only) | fromJson | toYaml | nindent 4 }}
  securityContext:
    {{- include "belay.unprivileged" . | nindent 4 }}
    runAsNonRoot: true
    runAsUser: {{ include "belay.sidecarId" . }}
    runAsGroup: {{ include "belay.sidecarId" . }}
  volumeMounts:
    - name: socket
      mountPath: /run/csi
    - name: token
      mountPath: /var/run/secrets/kubernetes.io/serviceaccount
      readOnly: true
{{- end -}}

{{- define "belay.sidecars" -}}
{{- /* Watching classes that do not exist, or may not be read, would stop them. */ -}}
{{- $unmodified := printf "--feature-gates=VolumeAttributesClass=%t" (.driver.volumeAttributesClasses | default false) -}}
{{- $provisioner := list "--default-fstype=ext4" $unmodified -}}
{{- if eq .driver.backend "nfs" }}{{ $provisioner = list $unmodified }}{{ end -}}
{{- $resizer := list "--handle-volume-inuse-error=false" $unmodified -}}
{{- $snapshotter := list "--leader-election" -}}
{{/* Each sidecar has its own leader: belay-controller serves whichever asks. With the metadata, `local`
     finds the node that the scheduler has selected for a claim, and volumes and snapshots of other
     backends are named after the cluster's objects. Not --strict-topology: a restore goes to the node of
     its source, and the scheduler follows. */}}
{{- $provisioner = concat $provisioner (list "--extra-create-metadata" "--leader-election") -}}
{{- $resizer = append $resizer "--leader-election" -}}
{{- if ne .driver.backend "local" }}{{ $snapshotter = prepend $snapshotter "--extra-create-metadata" }}{{ end -}}
{{- $env := list -}}
{{- if .driver.csiDriver.storageCapacity -}}
{{/* Owned by the Deployment (pod, ReplicaSet, Deployment): there is no gap while it is updated, and
     nothing is left after it. One class's capacity may be queried often, since the call is cheap; there
     is one object for each node and class. */}}
{{- $provisioner = concat $provisioner (list "--enable-capacity" "--capacity-ownerref-level=2" "--kube-api-capacity-qps=20" "--kube-api-capacity-burst=100") -}}
{{- $env = list (dict "name" "POD_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.name"))) (dict "name" "NAMESPACE" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.namespace"))) -}}
{{- end -}}
{{ include "belay.sidecar" (dict "root" .root "driver" .driver "name" "provisioner" "args" $provisioner "env" $env) }}
{{- if .driver.csiDriver.attachRequired }}
{{ include "belay.sidecar" (dict "root" .root "driver" .driver "name" "attacher" "args" (list "--leader-election")) }}
{{- end }}
{{ include "belay.sidecar" (dict "root" .root "driver" .driver "name" "resizer" "args" $resizer) }}
{{- if include "belay.snapshotsOf" . }}
{{ include "belay.sidecar" (dict "root" .root "driver" .driver "name" "snapshotter" "args" $snapshotter) }}
{{- end }}
{{- end -}}
