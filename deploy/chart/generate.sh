#!/usr/bin/env bash
# Writes what the chart contains besides its sources: README.md, made from the comments of
# values.yaml and backends/, which `helm show readme` and Artifact Hub show; and copies of the rules
# and the dashboard, because a chart can contain only files in its directory.
#
#   deploy/chart/generate.sh [OUTDIR]      default: into the chart, as `make manifests` does
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
outdir=${1:-$here}

introduction() {
    cat <<'END'
<!-- Made by `make manifests` from the comments of values.yaml. Change those instead. -->
# Belay

CSI drivers with one node agent: volumes as files on the disk of one node (`local`), with snapshots,
clones and online expansion; volumes of Cinder (`openstack`), attached by Nova; volumes of
DigitalOcean (`digitalocean`) and Civo (`civo`); and directories of NFS servers (`nfs`). The chart is for
Kubernetes 1.32 and later, and for Helm 3 and 4.

```sh
kubectl get nodes                       # choose the node that stores the volumes
printf 'drivers: [{nodeName: NODE}]\n' >belay.yaml
helm install belay CHART --namespace belay-system --create-namespace --values belay.yaml
```

With `drivers: [{backend: openstack}]` and a Secret `cloud-config`, volumes are those of Cinder; with
`drivers: [{backend: digitalocean, region: SLUG}]` and a Secret `digitalocean`, those of DigitalOcean;
with `drivers: [{backend: civo}]` and a Secret `civo-api-access`, those of Civo. With
`drivers: [{backend: nfs}]`, volumes are directories of NFS servers, which StorageClasses name, with the
parameters of csi-driver-nfs. In the repository, `docs/openstack.md`, `docs/digitalocean.md`,
`docs/civo.md` and `docs/nfs.md` describe them.

Keep your values in a file and pass it to every command: Helm replaces lists as a whole, so with
`--reuse-values --set 'drivers[0].overcommit=2'` the entry loses all its other values, and
`--reuse-values` also keeps the defaults of the previously installed chart.

A value that the chart does not know is rejected with its path. In the repository, `docs/helm.md`
describes what is installed, privileges, several drivers, upgrade and uninstall, and
`docs/quickstart.md` the way from a clone to a pod with a volume.

## Values
END
}

# One row for each value: its path, its default, and the comment above it. The subset of YAML that
# these files keep to: two spaces a level, a value on the line of its key, a comment above each.
# shellcheck disable=SC2016
rows='
function row(path, value) {
    if (seen[path]++) return
    if (!is_table) printf "\n| value | default | meaning |\n|---|---|---|\n"
    is_table = 1
    printf "| `%s` | %s | %s |\n", path, value == "" ? "" : "`" value "`", comment
}
function heading(title, text) {
    printf "\n### %s\n", title
    if (text != "") printf "\n%s\n", text
    is_table = 0
}
FNR == 1 { delete keys; comment = "" }
/^ *# / { sub(/^ *# /, ""); comment = comment (comment == "" ? "" : " ") $0; next }
/^$/ { comment = ""; next }
{
    match($0, /^ */)
    level = RLENGTH / 2
    line = substr($0, RLENGTH + 1)
    # The keys of a list entry stand two levels below the list, and belong to it directly.
    if (sub(/^- /, "", line)) { sub(/(\[\])?$/, "[]", keys[level - 1]); keys[level++] = "" }
    key = value = line
    sub(/:.*/, "", key)
    sub(/^[^:]*: ?/, "", value)
    keys[level] = key
    path = prefix
    for (at = 0; at <= level; at++) if (keys[at] != "") path = path (at ? "." : "") keys[at]
    is_section = prefix == "" && level == 0
    is_drivers = path ~ /^drivers/
    if (is_drivers == (part == "drivers")) {
        if (is_section && value == "") heading(key, comment)
        else if (is_section && !is_general++) heading("Both programs")
        if (value != "" || !is_section && comment != "") row(path, value)
    }
    comment = ""
}'

write_readme() {
    introduction
    awk "$rows" part=drivers "$here/values.yaml" \
        prefix='drivers[].' "$here/backends/local.yaml"
    local backend
    for backend in "$here"/backends/*.yaml; do
        backend=$(basename "$backend" .yaml)
        [ "$backend" != local ] || continue
        printf '\n### drivers with `backend: %s`\n' "$backend"
        awk "$rows" part=drivers prefix='drivers[].' "$here/backends/$backend.yaml"
    done
    awk "$rows" part=rest "$here/values.yaml"
}

write_readme >"$outdir/README.md"
mkdir -p "$outdir/monitoring"
cp "$here"/../monitoring/{rules.yaml,dashboard.json} "$outdir/monitoring/"
