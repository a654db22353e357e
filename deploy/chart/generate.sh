#!/usr/bin/env bash
# Writes the parts of the chart that are generated: README.md, made from the comments of values.yaml
# and backends/, which `helm show readme` and Artifact Hub show; and copies of the rules and the
# dashboard, because a chart can contain only files in its directory.
#
#   deploy/chart/generate.sh [OUTDIR]      default: into the chart, as `make manifests` does
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
outdir=${1:-$here}

introduction() {
    cat <<'END'
<!-- Made by `make manifests` from the comments of values.yaml. Change those instead. -->
# Belay

Belay is a set of CSI drivers: it creates and mounts volumes on nodes' local disks, on OpenStack, DigitalOcean and Civo,
and on NFS servers. One agent per node runs all drivers. The chart needs Kubernetes 1.32 or later, and Helm 3 or 4.

Each entry of `drivers` installs a driver:

| entry | volumes are | create first | page |
|---|---|---|---|
| `{}` (the default) | files on disks of each node | | `docs/quickstart.md` |
| `{backend: openstack}` | Cinder volumes | a Secret `cloud-config` | `docs/openstack.md` |
| `{backend: digitalocean, region: SLUG}` | DigitalOcean volumes | a Secret `digitalocean` | `docs/digitalocean.md` |
| `{backend: civo}` | Civo volumes | a Secret `civo-api-access` | `docs/civo.md` |
| `{backend: nfs}` | directories on NFS servers | a StorageClass that names a server | `docs/nfs.md` |

```sh
helm install belay CHART --namespace belay-system --create-namespace
```

No images are published: build and load them as in `docs/quickstart.md`. Keep values in a file and pass it to every
command, because Helm replaces lists as a whole. The chart rejects unknown values. In the repository, `docs/helm.md`
describes images, privileges, disks, several drivers, upgrade and uninstall.

## Values
END
}

# Prints a row for each value: its path, its default, and the comment above it. Parses the subset of
# YAML that these files use: two spaces per level, a value on the line of its key, and a comment
# above each.
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
    # The keys of a list entry are two levels below the list, and belong to it directly.
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

# Prints the rows of an entry with this backend; many are the same as in the entry of `local`.
rows_of() {
    awk "$rows" part=drivers prefix='drivers[].' "$here/backends/$1.yaml" | grep '^| `'
}

table() {
    printf '\n### drivers with `backend: %s`\n\n| value | default | meaning |\n|---|---|---|\n' "$1"
    cat
}

as_for_local() {
    printf '\nAs for `local`: %s.\n' \
        "$(rows_of "$1" | grep -xFf <(rows_of local) | cut -d '`' -f 2 |
            sed 's/^drivers\[]\.\(.*\)/`\1`/' | paste -sd , | sed 's/,/, /g')"
}

write_readme() {
    introduction
    awk "$rows" part=drivers "$here/values.yaml" \
        prefix='drivers[].' "$here/backends/local.yaml"
    local of_clouds backend
    of_clouds=$(rows_of openstack | grep -xFf <(rows_of digitalocean) | grep -xFf <(rows_of civo) |
        grep -vxFf <(rows_of local))
    table 'openstack`, `digitalocean`, `civo' <<<"$of_clouds"
    for backend in openstack digitalocean civo nfs; do
        [ "$backend" != nfs ] || of_clouds=
        rows_of "$backend" | grep -vxFf <(rows_of local; printf '%s\n' "$of_clouds") | table "$backend"
        as_for_local "$backend"
    done
    awk "$rows" part=rest "$here/values.yaml"
}

write_readme >"$outdir/README.md"
mkdir -p "$outdir/monitoring"
cp "$here"/../monitoring/{rules.yaml,dashboard.json} "$outdir/monitoring/"
