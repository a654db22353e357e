{{/* What is said in an entry stands over the backend's default, key by key. Sprig's own merge takes
     a false or an empty value for none. */}}
{{- define "belay.over" -}}
{{- $merged := deepCopy .defaults -}}
{{- range $key, $value := .entry -}}
{{- $default := get $merged $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $default) -}}
{{- $value = include "belay.over" (dict "defaults" $default "entry" $value) | fromJson -}}
{{- end -}}
{{- $_ := set $merged $key $value -}}
{{- end -}}
{{- toJson $merged -}}
{{- end -}}

{{/* The entries of `drivers` with all their keys, as {"drivers": [...]}; ends the rendering where
     one cannot work. */}}
{{- define "belay.drivers" -}}
{{- $backends := list -}}
{{- range $path, $_ := .Files.Glob "backends/*.yaml" -}}
{{- $backends = append $backends (base $path | trimSuffix ".yaml") -}}
{{- end -}}
{{- $count := len (.Values.drivers | default list) -}}
{{- if ne $count 1 -}}
{{- fail (printf "drivers: %d entries; this version of the agent serves exactly one driver, so leave one" $count) -}}
{{- end -}}
{{- if le (trimSuffix "s" .Values.sidecars.timeout | int) 100 -}}
{{- fail (printf "sidecars.timeout %s: Belay answers after 100 s at the latest, and must be waited for: say 120s or more" .Values.sidecars.timeout) -}}
{{- end -}}
{{- $drivers := list -}}
{{- range $at, $entry := .Values.drivers -}}
{{- $backend := default "local" $entry.backend -}}
{{- if not (has $backend $backends) -}}
{{- fail (printf "drivers[%d].backend: there is no backend %q; use one of: %s" $at $backend (join ", " $backends)) -}}
{{- end -}}
{{- $defaults := $.Files.Get (printf "backends/%s.yaml" $backend) | fromYaml -}}
{{- $driver := include "belay.over" (dict "defaults" $defaults "entry" $entry) | fromJson -}}
{{- $_ := set $driver "backend" $backend -}}
{{- include "belay.named" $driver -}}
{{- include "belay.check" (dict "at" $at "driver" $driver) -}}
{{- include "belay.checkStays" (dict "at" $at "driver" $driver "root" $) -}}
{{- $drivers = append $drivers $driver -}}
{{- end -}}
{{- toJson (dict "drivers" $drivers) -}}
{{- end -}}

{{/* Gives an entry the names that it leaves empty. */}}
{{- define "belay.named" -}}
{{- if not .shortName -}}
{{- $_ := set . "shortName" (splitList "." .name | first | trunc 30 | trimAll "-") -}}
{{- end -}}
{{- range append .storageClasses .snapshotClass -}}
{{- if not .name }}{{ $_ := set . "name" (printf "belay-%s" $.shortName) }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* What no schema can tell, since it depends on the backend or on other values. */}}
{{- define "belay.check" -}}
{{- $where := printf "drivers[%v]" .at -}}
{{- if eq .driver.backend "local" -}}
{{- if not .driver.nodeName -}}
{{- fail (printf "%s.nodeName is empty: say which node keeps the volumes, by its name in `kubectl get nodes`: --set '%s.nodeName=NAME'" $where $where) -}}
{{- end -}}
{{- if gt (len .driver.nodeName) 63 -}}
{{- fail (printf "%s.nodeName %q is longer than 63 characters: it is the value of a topology label, which cannot be longer" $where .driver.nodeName) -}}
{{- end -}}
{{- end -}}
{{- $defaults := 0 -}}
{{- range .driver.storageClasses -}}
{{- if .default }}{{ $defaults = add1 $defaults }}{{ end -}}
{{- end -}}
{{- if gt (int $defaults) 1 -}}
{{- fail (printf "%s.storageClasses: %d of them are the default; a cluster has one" $where (int $defaults)) -}}
{{- end -}}
{{- end -}}

{{/* With another node or folder the controller would begin an empty store: the volumes of the one
     before would count as deleted. Only helm against an API server can see that. */}}
{{- define "belay.checkStays" -}}
{{- $where := printf "drivers[%v]" .at -}}
{{- $advice := "volumes do not move. If theirs were moved by hand, uninstall the release and install it again" -}}
{{- $driver := .driver -}}
{{- $name := include "belay.controllerName" $driver -}}
{{- with lookup "apps/v1" "Deployment" .root.Release.Namespace $name -}}
{{- range (dig "spec" "template" "spec" "volumes" list .) -}}
{{- if and (eq .name "state") .hostPath (ne (.hostPath | default dict).path $driver.stateDir) -}}
{{- fail (printf "%s.stateDir: %s, but the volumes are in %s; %s" $where $driver.stateDir .hostPath.path $advice) -}}
{{- end -}}
{{- end -}}
{{- range (dig "spec" "template" "spec" "affinity" "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" list .) -}}
{{- range .matchFields -}}
{{- if not (has $driver.nodeName .values) -}}
{{- fail (printf "%s.nodeName: %s, but the volumes are on %s; %s" $where $driver.nodeName (first .values) $advice) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" or empty. */}}
{{- define "belay.snapshots" -}}
{{- if eq (toString .Values.snapshots.enabled) "auto" -}}
{{- if .Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1/VolumeSnapshotClass" }}true{{ end -}}
{{- else if .Values.snapshots.enabled }}true{{ end -}}
{{- end -}}
