{{/* The forms of values: of each, the keys with the keys above them, a regular expression, and what to use,
     for the message. They are not patterns in values.schema.json, because Helm would print the expression. */}}
{{- define "belay.forms" -}}
- of: [.kubeletDir, extraVolumeMounts.mountPath]
  form: '^(/[^/]+)+$'
  use: an absolute path that does not end with /
- of: [disks.dir]
  form: '^(/[^/,:]+)+$'
  use: an absolute path that does not end with /, without commas and colons
- of: [sidecars.timeout, podMonitor.interval, podMonitor.scrapeTimeout]
  form: '^[1-9][0-9]*s$'
  use: a number of seconds, such as 120s
- of: ['*.httpAddress']
  form: '^([0-9.]+|\[[0-9a-f:]+\])$'
  use: an IPv4 address, or an IPv6 address in brackets
- of: [metadata.address]
  form: '^([0-9.]+|\[[0-9a-f:]+\]):[1-9][0-9]*$'
  use: an IPv4 address, or an IPv6 address in brackets, followed by a colon and a port
- of: [egress.cidrs]
  form: '^[0-9a-f.:]+/[0-9]+$'
  use: a network, such as 10.0.0.0/8
- of: [drivers.name, storageClasses.name, snapshotClass.name, extraVolumes.name, extraVolumeMounts.name, images.pullSecrets, pullSecrets.name, global.imagePullSecrets, imagePullSecrets.name, '*.secretName', '*.configMapName', '*.secretNamespace', '*.mountOptionsSecret', '*.priorityClassName']
  form: '^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$'
  use: lowercase letters, digits, - and ., with a letter or digit at both ends
- of: [drivers.shortName, disks.name]
  form: '^[a-z0-9]([a-z0-9-]*[a-z0-9])?$'
  use: lowercase letters, digits and -, with a letter or digit at both ends
- of: [drivers.region]
  form: '^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$'
  use: letters, digits, -, _ and ., with a letter or digit at both ends
- of: [cloudConfig.key, token.key, formatMark.key, caBundle.key]
  form: '^[A-Za-z0-9._-]+$'
  use: letters, digits, -, _ and .
- of: [images.node, images.controller, images.provisioner, images.attacher, images.resizer, images.snapshotter]
  form: '^[^ ]+$'
  use: the reference of an image, without spaces
- of: [global.imageRegistry, '*.registry']
  form: '^[A-Za-z0-9][A-Za-z0-9./:_-]*[A-Za-z0-9]$'
  use: a host with or without a port and a path, such as registry.example.com/mirror
- of: ['*.repository']
  form: '^[a-z0-9][a-z0-9./_-]*[a-z0-9]$'
  use: lowercase letters, digits, -, _, . and /, with a letter or digit at both ends
- of: [node.tag, controller.tag, provisioner.tag, attacher.tag, resizer.tag, snapshotter.tag]
  form: '^[A-Za-z0-9_][A-Za-z0-9_.-]*$'
  use: letters, digits, -, _ and ., with a letter, digit or _ at the beginning
- of: ['*.digest']
  form: '^sha256:[0-9a-f]{64}$'
  use: 'sha256: and 64 hexadecimal digits in lowercase'
- of: [drivers.mountPermissions, storageClasses.mountPermissions]
  form: '^[0-7]{1,4}$'
  use: an octal mode, such as 0770
- of: [storageClasses.server]
  form: '^[A-Za-z0-9._:\[][A-Za-z0-9._:\]-]*$'
  use: the name or address of a server, without the share
- of: [clouds.name]
  form: '^[^,]+$'
  use: a name without commas
- of: [drivers.apiUrl]
  form: '^https?://[^ #?"]+$'
  use: a URL that begins with https:// or http://, without a query
- of: [drivers.tag]
  form: '^[A-Za-z0-9_:-]+$'
  use: letters, digits, -, _ and colons
- of: [node.maxUnavailable]
  form: '^[1-9][0-9]*%$'
  use: a number without quotes, or a percentage, such as 10%
- of: [requests.*, limits.*]
  form: '^[0-9.]+([eE][0-9]+|m|k|[KMGTPE]i?)?$'
  use: a quantity, such as 100m or 64Mi
- of: [prometheusRule.runbookUrl]
  form: '^[^ #"]+$'
  use: a URL without spaces, quotes and #
{{- end -}}

{{/* Refuses a value that does not have its form. The schema decides which may be empty. Takes forms, and of a
     value: path, parent (the key above its own), key and value. */}}
{{- define "belay.checkForm" -}}
{{- if kindIs "slice" .value -}}
{{- range $at, $value := .value -}}
{{- include "belay.checkForm" (dict "forms" $.forms "path" (printf "%s[%d]" $.path $at) "parent" $.parent "key" $.key "value" $value) -}}
{{- end -}}
{{- else if and (kindIs "map" .value) (not (has .key (list "podAnnotations" "podLabels" "annotations" "labels" "nodeSelector"))) -}}
{{- range $key, $value := .value -}}
{{- include "belay.checkForm" (dict "forms" $.forms "path" (printf "%s.%s" $.path $key | trimPrefix ".") "parent" $.key "key" $key "value" $value) -}}
{{- end -}}
{{- else if and (kindIs "string" .value) .value -}}
{{- range .forms -}}
{{- if or (has (printf "%s.%s" $.parent $.key) .of) (has (printf "*.%s" $.key) .of) (has (printf "%s.*" $.parent) .of) -}}
{{- if not (regexMatch .form $.value) -}}
{{- fail (printf "%s %q: use %s" $.path $.value .use) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
