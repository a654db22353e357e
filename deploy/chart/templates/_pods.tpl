{{/* What a selector asks for: never changes, for selectors are immutable. */}}
{{- define "belay.selector" -}}
app.kubernetes.io/name: belay
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .driver }}
belay.dev/driver: {{ .shortName }}
{{- end }}
{{- end -}}

{{- define "belay.labels" -}}
app.kubernetes.io/name: belay
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "belay.podLabels" -}}
{{ include "belay.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- with .more }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "belay.controllerName" -}}
belay-controller-{{ .shortName }}
{{- end -}}

{{/* The resources of the node agent, as JSON. With `encryption.enabled`, the memory limit is 64 MiB higher;
     without a limit, there is nothing to raise. */}}
{{- define "belay.agentResources" -}}
{{- $resources := .Values.node.resources | default dict | deepCopy -}}
{{- $limits := $resources.limits | default dict -}}
{{- if and (.Values.node.encryption | default dict).enabled (hasKey $limits "memory") -}}
{{- $limit := toString $limits.memory -}}
{{- if not (regexMatch "^[1-9][0-9]*(Mi|Gi)$" $limit) -}}
{{- fail (printf "node.resources.limits.memory %q: node.encryption.enabled adds 64Mi to it; use a whole number of Mi or Gi, such as 256Mi" $limit) -}}
{{- end -}}
{{- $unit := ternary 1024 1 (hasSuffix "Gi" $limit) -}}
{{- $_ := set $limits "memory" (printf "%dMi" (add (mul (regexFind "^[0-9]+" $limit | int) $unit) 64)) -}}
{{- end -}}
{{- toJson $resources -}}
{{- end -}}

{{/* A container that needs nothing of the kernel. */}}
{{- define "belay.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* /livez: the process answers at all. /healthz: it can work. A failing /healthz must never end a
     program, for a restart repairs nothing that it reports: so it is used for readiness only, and
     the startup probe asks /livez. What a killed program left behind is taken up before anything
     is served, and may wait for a disk: ten minutes. Takes the address that the program listens on. */}}
{{- define "belay.probes" -}}
{{- $host := "" -}}
{{- if not (has . (list "0.0.0.0" "[::]")) }}{{ $host = printf ", host: %s" (trimAll "[]" . | quote) }}{{ end -}}
startupProbe:
  httpGet: {path: /livez, port: http{{ $host }}}
  periodSeconds: 2
  failureThreshold: 300
livenessProbe:
  httpGet: {path: /livez, port: http{{ $host }}}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /healthz, port: http{{ $host }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{/* User and group of the sidecars: `nonroot` of many images, and nobody's files on a node. */}}
{{- define "belay.sidecarId" -}}
65532
{{- end -}}

{{/* The tolerations of the controllers' pods, as JSON. A pod that tolerated every taint would stay on a
     node that is unreachable. */}}
{{- define "belay.tolerations" -}}
{{- $tolerations := list (dict "key" "node-role.kubernetes.io/control-plane" "operator" "Exists" "effect" "NoSchedule") -}}
{{- if kindIs "slice" .Values.controller.tolerations -}}
{{- $tolerations = .Values.controller.tolerations -}}
{{- end -}}
{{- toJson $tolerations -}}
{{- end -}}

{{/* What the API server would mount into every container of a pod. Takes the seconds after which the
     token expires. */}}
{{- define "belay.token" -}}
projected:
  sources:
    - serviceAccountToken:
        path: token
        expirationSeconds: {{ . }}
    - configMap:
        name: kube-root-ca.crt
        items:
          - key: ca.crt
            path: ca.crt
    - downwardAPI:
        items:
          - path: namespace
            fieldRef:
              fieldPath: metadata.namespace
{{- end -}}

{{/* Objects of a hook before an install or upgrade. Takes the weight. */}}
{{- define "belay.beforeRelease" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
