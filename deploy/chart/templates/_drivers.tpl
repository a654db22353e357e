{{/* The keys of an entry override the backend's defaults. Sprig's own merge takes
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

{{/* The entries of `drivers` with all their keys, as {"drivers": [...]}; ends the rendering where one
     cannot work. A disk of `local` also has `mount`: the directory that pods mount for it. */}}
{{- define "belay.drivers" -}}
{{- include "belay.checkGlobal" . -}}
{{- $backends := list -}}
{{- range $path, $_ := .Files.Glob "backends/*.yaml" -}}
{{- $backends = append $backends (base $path | trimSuffix ".yaml") -}}
{{- end -}}
{{- if not .Values.drivers -}}
{{- fail "drivers: there is no entry; set at least one: --set 'drivers[0].backend=local'" -}}
{{- end -}}
{{- if le (trimSuffix "s" .Values.sidecars.timeout | int) 100 -}}
{{- fail (printf "sidecars.timeout %s: Belay may take up to 100 s to answer; set 120s or more" .Values.sidecars.timeout) -}}
{{- end -}}
{{- $drivers := list -}}
{{- range $at, $entry := .Values.drivers -}}
{{- $backend := default "local" $entry.backend -}}
{{- if not (has $backend $backends) -}}
{{- fail (printf "drivers[%d].backend: there is no backend %q; use one of: %s" $at $backend (join ", " $backends)) -}}
{{- end -}}
{{- $defaults := $.Files.Get (printf "backends/%s.yaml" $backend) | fromYaml -}}
{{- include "belay.checkKnown" (dict "where" (printf "drivers[%d]" $at) "backend" $backend "defaults" $defaults "entry" (omit $entry "backend")) -}}
{{- $driver := include "belay.over" (dict "defaults" $defaults "entry" $entry) | fromJson -}}
{{- $_ := set $driver "backend" $backend -}}
{{- if eq $backend "local" -}}
{{- $disks := list -}}
{{- range $driver.disks -}}
{{- $disk := include "belay.over" (dict "defaults" (first $defaults.disks) "entry" .) | fromJson -}}
{{- $_ := set $disk "mount" (ternary $disk.dir (dir $disk.dir) $disk.create) -}}
{{- $disks = append $disks $disk -}}
{{- end -}}
{{- $_ := set $driver "disks" $disks -}}
{{- $_ := set $driver "replicas" 2 -}}
{{- end -}}
{{/* The class of the defaults names no server: it only lists the keys. */}}
{{- if and (eq $backend "nfs") (not (hasKey $entry "storageClasses")) -}}
{{- $_ := set $driver "storageClasses" list -}}
{{- end -}}
{{- if and (eq $backend "nfs") (not $driver.controller.create) (not (hasKey $entry "snapshotClass")) -}}
{{- $_ := unset $driver "snapshotClass" -}}
{{- end -}}
{{- if eq (toString $driver.volumeAttributesClasses) "auto" -}}
{{- $_ := set $driver "volumeAttributesClasses" (semverCompare ">=1.34.0-0" $.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- include "belay.named" $driver -}}
{{- include "belay.check" (dict "at" $at "driver" $driver "defaults" $defaults "root" $) -}}
{{- if eq $backend "local" }}{{ include "belay.checkDisks" (dict "at" $at "driver" $driver "root" $) }}{{ end -}}
{{- if eq $backend "nfs" }}{{ include "belay.checkNfs" (dict "at" $at "driver" $driver "entry" $entry "root" $) }}{{ end -}}
{{- if eq $backend "openstack" }}{{ include "belay.checkClouds" (dict "at" $at "driver" $driver) }}{{ end -}}
{{- $drivers = append $drivers $driver -}}
{{- end -}}
{{- include "belay.checkTogether" (dict "drivers" $drivers "root" .) -}}
{{- toJson (dict "drivers" $drivers) -}}
{{- end -}}

{{/* Gives an entry the names that it leaves empty. */}}
{{- define "belay.named" -}}
{{- if not .shortName -}}
{{- $_ := set . "shortName" (splitList "." .name | first | trunc 30 | trimAll "-") -}}
{{- end -}}
{{- range append (.storageClasses | default list) .snapshotClass | compact -}}
{{- if not .name }}{{ $_ := set . "name" (printf "belay-%s" $.shortName) }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Refuses a value that another backend has. Its own are the keys of its defaults. */}}
{{- define "belay.checkKnown" -}}
{{- range $key, $value := .entry -}}
{{- if not (hasKey $.defaults $key) -}}
{{- fail (printf "%s.%s: backend %s has no such value" $.where $key $.backend) -}}
{{- end -}}
{{- end -}}
{{- range $number, $class := .entry.storageClasses -}}
{{- range $key, $_ := $class -}}
{{- if not (hasKey (first $.defaults.storageClasses) $key) -}}
{{- fail (printf "%s.storageClasses[%d].%s: backend %s has no such value" $.where $number $key $.backend) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What no schema can tell, since it depends on the backend or on other values. */}}
{{- define "belay.check" -}}
{{- $where := printf "drivers[%v]" .at -}}
{{- if and (eq .driver.backend "digitalocean") (not .driver.region) -}}
{{- fail (printf "%s.region is empty: set the slug of the region of the nodes, such as nyc1: --set '%s.region=SLUG'" $where $where) -}}
{{- end -}}
{{- if and (eq .driver.backend "civo") .driver.topology (not .driver.region) (not .driver.instanceFile) -}}
{{- fail (printf "%s.topology: set %s.region, the region of the nodes, or %s.instanceFile" $where $where $where) -}}
{{- end -}}
{{- if ne .driver.csiDriver.attachRequired .defaults.csiDriver.attachRequired -}}
{{- fail (printf "%s.csiDriver.attachRequired: with backend %s it is %v; remove it" $where .driver.backend .defaults.csiDriver.attachRequired) -}}
{{- end -}}
{{- if ne .driver.backend "local" -}}
{{- with .driver.caBundle -}}
{{- if and .secretName .configMapName -}}
{{- fail (printf "%s.caBundle: secretName and configMapName are both set; keep the one that has the certificates" $where) -}}
{{- end -}}
{{- end -}}
{{- if .driver.csiDriver.storageCapacity -}}
{{- if eq .driver.backend "nfs" -}}
{{- fail (printf "%s.csiDriver.storageCapacity: backend nfs does not enforce the size of a claim, so the scheduler must not compare it with the free space of a server; remove it" $where) -}}
{{- end -}}
{{- $why := dict "openstack" "backend openstack knows only the quota of the project" "civo" "backend civo knows only the quota of the account" "digitalocean" "DigitalOcean does not report its free capacity" -}}
{{- fail (printf "%s.csiDriver.storageCapacity: %s; remove it" $where (index $why .driver.backend)) -}}
{{- end -}}
{{- $agent := .root.Values.node -}}
{{- if and .root.Values.podMonitor.enabled (include "belay.agents" .root) (include "belay.needsHost" .driver) (not $agent.httpAddress) -}}
{{- fail (printf "podMonitor.enabled: with %s the node agent uses the host's network, where its metrics are on 127.0.0.1; set node.httpAddress to 0.0.0.0, and restrict port %s with the nodes' firewall" (ternary (printf "%s.metadata.searchOrder %q" $where (.driver.metadata | default dict).searchOrder) (printf "%s.backend %q" $where .driver.backend) (hasKey (.driver.metadata | default dict) "searchOrder")) (include "belay.agentPort" (dict "root" .root "host" "true"))) -}}
{{- end -}}
{{- end -}}
{{- $socket := printf "%s/plugins_registry/%s-reg.sock" .root.Values.kubeletDir .driver.name -}}
{{- if gt (len $socket) 107 -}}
{{- fail (printf "%s.name %q is %d characters too long: the kubelet would connect to %s, and a socket's path has 107 at most" $where .driver.name (sub (len $socket) 107) $socket) -}}
{{- end -}}
{{- end -}}

{{/* The same, of backend nfs. */}}
{{- define "belay.checkNfs" -}}
{{- $where := printf "drivers[%v]" .at -}}
{{- if and (eq (toString .driver.csiDriver.create) "false") (not (hasKey (.entry.controller | default dict) "create")) -}}
{{- fail (printf "%s.controller.create: csiDriver.create is false, so another release may have the driver's controller. Set it to false if csi-driver-nfs keeps its controller, or to true if that has been stopped: two of them must not run" $where) -}}
{{- end -}}
{{- range $number, $class := .driver.storageClasses -}}
{{- range $key := list "server" "share" -}}
{{- if not (get $class $key) -}}
{{- fail (printf "%s.storageClasses[%d].%s is empty: volumes of the class are directories of a share of a server, so set both" $where $number $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .driver.snapshotClass (not .driver.controller.create) -}}
{{- fail (printf "%s.snapshotClass: controller.create is false, so no controller of this release creates its snapshots; remove it, or create the controller" $where) -}}
{{- end -}}
{{- if and .driver.storageClasses (not .driver.controller.create) -}}
{{- fail (printf "%s.storageClasses: controller.create is false, so no controller of this release creates their volumes; remove them, or create the controller" $where) -}}
{{- end -}}
{{- $port := int .driver.controller.httpPort -}}
{{- $agentPort := include "belay.agentPort" (dict "root" .root "host" "true") -}}
{{- if and .driver.controller.create (include "belay.agents" .root) (has $agentPort (include "belay.controllerPorts" . | splitList " ")) -}}
{{- fail (printf "%s.controller.httpPort: the node agent has port %s of the host's network; set another port" $where $agentPort) -}}
{{- end -}}
{{- if and .root.Values.podMonitor.enabled .driver.controller.create (not .driver.controller.httpAddress) -}}
{{- fail (printf "podMonitor.enabled: with %s.backend \"nfs\" the controller uses the host's network, where its metrics are on 127.0.0.1; set %s.controller.httpAddress to 0.0.0.0, and restrict port %d with the nodes' firewall" $where $where $port) -}}
{{- end -}}
{{- end -}}

{{/* What no two entries may have in common, and what one may not have beside others. */}}
{{- define "belay.checkTogether" -}}
{{- $taken := dict -}}
{{- range $at, $driver := .drivers -}}
{{- $where := printf "drivers[%d]" $at -}}
{{/* Each claim: of what kind, where it is made, to which value, and what to do if that is taken. */}}
{{- $claims := list
      (list "driver" (print $where ".name") .name "the kubelet knows a driver by it, so give each its own")
      (list "objects" (print $where ".shortName") .shortName "it is part of the names of objects, and defaults to the first part of name; set one for each") -}}
{{- if eq .backend "local" -}}
{{- $claims = append $claims (list "backend" (print $where ".backend") .backend "its objects in the cluster name no driver, so there can be only one entry; give it several disks") -}}
{{- end -}}
{{- range $number, $disk := .disks -}}
{{- $here := printf "%s.disks[%d]" $where $number -}}
{{- $claims = append $claims (list "disk" (print $here ".name") .name "volumes name their disk by it, so give each its own") -}}
{{- $claims = append $claims (list "directory" (print $here ".dir") .dir "each disk needs its own directory") -}}
{{- end -}}
{{- with .snapshotClass -}}
{{- $claims = append $claims (list "snapshot class" (print $where ".snapshotClass.name") .name "a class belongs to one driver, so give each its own") -}}
{{- end -}}
{{- if include "belay.controllerOnHost" . -}}
{{- $first := .controller.httpPort | int -}}
{{- range $port := include "belay.controllerPorts" (dict "root" $.root "driver" .) | splitList " " -}}
{{- $offset := sub (int $port) $first -}}
{{- $of := print $where ".controller.httpPort" (ternary "" (printf " + %d" $offset) (eq $offset 0)) -}}
{{- $claims = append $claims (list "port" $of $port "both controllers use the host's network, and with sidecars.metrics each uses four ports; set another port") -}}
{{- end -}}
{{- end -}}
{{- range $number, $class := .storageClasses -}}
{{- $here := printf "%s.storageClasses[%d]" $where $number -}}
{{- $claims = append $claims (list "storage class" (print $here ".name") .name "a class is one object of one driver, so give each its own name") -}}
{{- if .default -}}
{{- $claims = append $claims (list "default" (print $here ".default") "true" "a cluster has one default class, so leave it with one of them") -}}
{{- end -}}
{{- end -}}
{{- range $claim := $claims -}}
{{- $key := printf "%s %s" (index . 0) (index . 2) -}}
{{- with get $taken $key }}{{ fail (printf "%s and %s are both %q: %s" . (index $claim 1) (index $claim 2) (index $claim 3)) }}{{ end -}}
{{- $_ := set $taken $key (index . 1) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The disks of backend local. */}}
{{- define "belay.checkDisks" -}}
{{- $where := printf "drivers[%v]" .at -}}
{{- $disks := .driver.disks -}}
{{- $kubelet := .root.Values.kubeletDir -}}
{{- $names := list -}}
{{- range $number, $disk := $disks -}}
{{- $names = append $names .name -}}
{{- $here := printf "%s.disks[%d].dir" $where $number -}}
{{- if and (not .create) (eq .mount "/") -}}
{{- fail (printf "%s %q: with create: false, the pods mount its parent, which must not be /; use a directory such as /srv/belay/state" $here .dir) -}}
{{- end -}}
{{- if hasPrefix (print .mount "/") (print $kubelet "/") -}}
{{- fail (printf "%s %q: the pods would mount %s, which contains kubeletDir %s; use a directory such as /srv/belay/state" $here .dir .mount $kubelet) -}}
{{- end -}}
{{- range $at, $other := $disks -}}
{{- $there := printf "%s.disks[%d].dir" $where $at -}}
{{- if and (ne .dir $disk.dir) (hasPrefix (print .dir "/") $disk.dir) -}}
{{- fail (printf "%s %q is within %s %q: choose separate directories" $here $disk.dir $there .dir) -}}
{{- end -}}
{{- if and (ne .dir $disk.dir) (hasPrefix (print .mount "/") (print $disk.mount "/")) -}}
{{- fail (printf "%s %q and %s %q: with create: false, the pods mount the parent of a directory, here %s, which only one disk may use; choose directories with separate parents" $here $disk.dir $there .dir .mount) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $number, $class := .driver.storageClasses -}}
{{- if not (has (.disk | default "default") $names) -}}
{{- fail (printf "%s.storageClasses[%d].disk: there is no disk %q; use one of: %s" $where $number (.disk | default "default") (join ", " $names)) -}}
{{- end -}}
{{- end -}}
{{/* In another directory, the volumes of the disk would be missing. Only helm against an API server can see
     the one before. */}}
{{- with lookup "apps/v1" "DaemonSet" .root.Release.Namespace "belay-store" -}}
{{- range (first (dig "spec" "template" "spec" "containers" (list dict) .)).args -}}
{{- $before := . -}}
{{- range $number, $disk := $disks -}}
{{- $flag := printf "--disk=%s=" .name -}}
{{- if and (hasPrefix $flag $before) (ne $before (print $flag .dir)) -}}
{{- fail (printf "%s.disks[%d].dir: %s, but the volumes of disk %s are in %s; volumes do not move. If theirs were moved by hand, uninstall the release and install it again" $where $number .dir .name (trimPrefix $flag $before)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The driver `local`, as JSON; empty if there is none. */}}
{{- define "belay.local" -}}
{{- range (include "belay.drivers" . | fromJson).drivers -}}
{{- if eq .backend "local" }}{{ toJson . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* "true" or empty: whether the agent of this driver asks a metadata service, for which its pod needs
     the host's network. */}}
{{- define "belay.asksService" -}}
{{- with .metadata -}}
{{- if contains "metadataService" (.searchOrder | default "metadataService") }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* "true" or empty: whether the agent of this driver needs the host's network: also for mounts, which
     have the network of the process that made them. */}}
{{- define "belay.needsHost" -}}
{{- if or (eq .backend "nfs") (include "belay.asksService" .) }}true{{ end -}}
{{- end -}}

{{/* "true" or empty: whether the agent of any of these drivers does. */}}
{{- define "belay.hostNetwork" -}}
{{- $asks := list -}}
{{- range . }}{{ $asks = append $asks (include "belay.needsHost" .) }}{{ end -}}
{{- if compact $asks }}true{{ end -}}
{{- end -}}

{{/* The drivers that have a controller, as {"drivers": [...]}. */}}
{{- define "belay.controlled" -}}
{{- $controlled := list -}}
{{- range (include "belay.drivers" . | fromJson).drivers -}}
{{- if or (ne .backend "nfs") .controller.create }}{{ $controlled = append $controlled . }}{{ end -}}
{{- end -}}
{{- toJson (dict "drivers" $controlled) -}}
{{- end -}}

{{/* The agent's HTTP port and address. Take root and host ("true" or empty). */}}
{{- define "belay.agentPort" -}}
{{- .root.Values.node.httpPort | default (ternary 29808 9808 (eq .host "true")) | int -}}
{{- end -}}

{{- define "belay.agentAddress" -}}
{{- .root.Values.node.httpAddress | default (ternary "127.0.0.1" .root.Values.httpAddress (eq .host "true")) -}}
{{- end -}}

{{/* "true" or empty: whether the controller of this driver uses the host's network. */}}
{{- define "belay.controllerOnHost" -}}
{{- if eq .backend "nfs" }}{{ if .controller.create }}true{{ end }}{{ end -}}
{{- end -}}

{{/* The HTTP port and address of a controller. Take root and driver. */}}
{{- define "belay.controllerPort" -}}
{{- ternary (.driver.controller | default dict).httpPort .root.Values.controller.httpPort (eq (include "belay.controllerOnHost" .driver) "true") | int -}}
{{- end -}}

{{/* The HTTP ports of a controller's pod, separated by spaces: of the controller, and with sidecars.metrics of
     csi-provisioner, csi-attacher (if volumes are attached), csi-resizer and csi-snapshotter. Take root
     and driver. */}}
{{- define "belay.controllerPorts" -}}
{{- $port := include "belay.controllerPort" . | int -}}
{{- $ports := list $port -}}
{{- if eq (toString .root.Values.sidecars.metrics) "true" -}}
{{- $ports = concat $ports (list (add $port 1)) (ternary (list (add $port 2)) list .driver.csiDriver.attachRequired) (list (add $port 3) (add $port 4)) -}}
{{- end -}}
{{- join " " $ports -}}
{{- end -}}

{{- define "belay.controllerAddress" -}}
{{- if include "belay.controllerOnHost" .driver -}}
{{- .driver.controller.httpAddress | default "127.0.0.1" -}}
{{- else -}}
{{- .root.Values.httpAddress -}}
{{- end -}}
{{- end -}}

{{/* "true" or empty: whether the node agent is a DaemonSet. A release that is upgraded with the values of
     one that did not know the setting has it. */}}
{{- define "belay.agents" -}}
{{- if ne (toString .Values.node.enabled) "false" }}true{{ end -}}
{{- end -}}

{{/* "true" or empty: whether this driver has snapshots. Takes root and driver. */}}
{{- define "belay.snapshotsOf" -}}
{{- if .driver.snapshotClass }}{{ include "belay.snapshots" .root }}{{ end -}}
{{- end -}}

{{/* "true" or empty: whether drivers that can have snapshots do. */}}
{{- define "belay.snapshots" -}}
{{- if eq (toString .Values.snapshots.enabled) "auto" -}}
{{- if .Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1/VolumeSnapshotClass" }}true{{ end -}}
{{- else if .Values.snapshots.enabled }}true{{ end -}}
{{- end -}}

{{/* The Secret with which the controller of a cloud signs in, as {"volume": its name in the pod, "path":
     where it is mounted, "secretName": its own name}. */}}
{{- define "belay.credentials" -}}
{{- if eq .backend "openstack" -}}
{{- toJson (dict "volume" "cloud-config" "path" "/etc/config" "secretName" .cloudConfig.secretName) -}}
{{- else if eq .backend "digitalocean" -}}
{{- toJson (dict "volume" "api-token" "path" "/etc/api-token" "secretName" .token.secretName) -}}
{{- else if eq .backend "civo" -}}
{{- toJson (dict "volume" "civo-access" "path" "/etc/civo" "secretName" .access.secretName) -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the keys of format marks; empty if there are no keys. */}}
{{- define "belay.formatMark" -}}
{{- if .formatMark -}}
{{- $created := ternary (printf "belay-format-mark-%s" .shortName) "" .formatMark.create -}}
{{- .formatMark.secretName | default $created -}}
{{- end -}}
{{- end -}}

{{/* "true" or empty: whether the chart creates that Secret. */}}
{{- define "belay.createsFormatMark" -}}
{{- if and (include "belay.formatMark" .) (not .formatMark.secretName) }}true{{ end -}}
{{- end -}}

{{/* The mount options of the controller of an entry with `backend: nfs`, for calls that pass none: those of
     the entry, or those that all its classes have. */}}
{{- define "belay.nfsMountOptions" -}}
{{- $given := list -}}
{{- range .storageClasses | default list -}}
{{- $given = append $given (join "," (.mountOptions | default list)) -}}
{{- end -}}
{{- $given = uniq $given -}}
{{- if .mountOptions -}}
{{- join "," .mountOptions -}}
{{- else if eq (len $given) 1 -}}
{{- first $given -}}
{{- end -}}
{{- end -}}
