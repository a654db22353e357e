{{/* Additions of the values to a pod. They must not replace anything that the chart sets. */}}

{{/* The affinity as JSON, less likely on a node that has such a pod already. Preferred only: a cluster of
     one node can run all of them. Takes affinity and labels. */}}
{{- define "belay.apart" -}}
{{- $affinity := .affinity | default dict | deepCopy -}}
{{- $anti := $affinity.podAntiAffinity | default dict -}}
{{- $preferred := "preferredDuringSchedulingIgnoredDuringExecution" -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" .labels) -}}
{{- $_ := set $anti $preferred (append (get $anti $preferred | default list) (dict "weight" 100 "podAffinityTerm" $term)) -}}
{{- $_ := set $affinity "podAntiAffinity" $anti -}}
{{- toJson $affinity -}}
{{- end -}}

{{/* Refuses entries whose name the chart uses. Takes where (the path of the list), more (the list) and
     taken (names). */}}
{{- define "belay.checkNames" -}}
{{- range $at, $one := .more -}}
{{- if has $one.name $.taken -}}
{{- fail (printf "%s[%d].name: %s is the chart's own; use another name" $.where $at $one.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses labels and annotations that the chart sets: selectors go by some, and a key that is there
     twice has no certain value. Takes where and map. */}}
{{- define "belay.checkKeys" -}}
{{- $own := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/version" "belay.dev/driver" "kubectl.kubernetes.io/default-container" -}}
{{- range $key, $_ := .map -}}
{{- if has $key $own -}}
{{- fail (printf "%s: %s is the chart's own; use another key" $.where $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
