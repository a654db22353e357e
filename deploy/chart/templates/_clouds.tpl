{{/* Refuses clouds of backend openstack that calls could not name, and classes of no cloud. */}}
{{- define "belay.checkClouds" -}}
{{- $where := printf "drivers[%v]" .at -}}
{{- $known := list -}}
{{- range $number, $cloud := .driver.clouds -}}
{{- if and .name (not .secretName) -}}
{{- fail (printf "%s.clouds[%d].secretName is empty: create a Secret with the key cloud, whose value is %q, and name it" $where $number .name) -}}
{{- end -}}
{{- $known = append $known .name -}}
{{- end -}}
{{- $classes := dict -}}
{{- range $number, $class := .driver.storageClasses -}}
{{- $_ := set $classes (printf "storageClasses[%d]" $number) . -}}
{{- end -}}
{{- with .driver.snapshotClass }}{{ $_ := set $classes "snapshotClass" . }}{{ end -}}
{{- range $name, $class := $classes -}}
{{- if not (has (.cloud | default "") ($known | default (list ""))) -}}
{{- fail (printf "%s.%s.cloud: %s.clouds has no entry with the name %q" $where $name $where (.cloud | default "")) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The parameters by which a class names the Secret of its cloud, as {"lines": [...]}. Takes driver, cloud,
     namespace (of the release) and calls. */}}
{{- define "belay.cloudSecrets" -}}
{{- $lines := list -}}
{{- $given := . -}}
{{- range $cloud := .driver.clouds -}}
{{- if and .name .secretName (eq .name ($given.cloud | default "")) -}}
{{- range $call := $given.calls -}}
{{- $lines = append $lines (printf "csi.storage.k8s.io/%s-secret-name: %s" $call $cloud.secretName) -}}
{{- $lines = append $lines (printf "csi.storage.k8s.io/%s-secret-namespace: %s" $call ($cloud.secretNamespace | default $given.namespace)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "lines" $lines) -}}
{{- end -}}
