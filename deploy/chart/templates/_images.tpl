{{/* The reference of an image. Takes root and name, a key of `images`. */}}
{{- define "belay.image" -}}
{{- $image := get .root.Values.images .name -}}
{{- if kindIs "map" $image -}}
{{- $registry := (.root.Values.global | default dict).imageRegistry | default $image.registry -}}
{{- with $registry }}{{ . }}/{{ end }}{{ $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- else -}}
{{- $image | default (printf "localhost/belay-%s:%s" .name .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Refuses a key of `global` that nothing reads; within another chart, it may be for others. */}}
{{- define "belay.checkGlobal" -}}
{{- if .Chart.IsRoot -}}
{{- range $key, $_ := .Values.global -}}
{{- if not (has $key (list "imageRegistry" "imagePullSecrets")) -}}
{{- fail (printf "global.%s: no such value; use one of: imagePullSecrets, imageRegistry" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "belay.pullSecrets" -}}
{{- $global := (.Values.global | default dict).imagePullSecrets | default list -}}
{{- with concat $global (.Values.images.pullSecrets | default list) -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
  {{- end }}
{{- end -}}
{{- end -}}
