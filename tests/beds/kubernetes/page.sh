# shellcheck shell=bash
# Sourced by the checks that follow a page of docs, given by `page` and `section`: runs the page's
# commands exactly as printed, in place of the driver that the guests have.

# remove_driver: removes what the chart has installed, and its namespace.
remove_driver() {
    helm uninstall belay --namespace "$driver_namespace" --ignore-not-found --wait --timeout 2m >/dev/null
    kubectl delete namespace "$driver_namespace" --ignore-not-found --timeout=120s >/dev/null
}

# block LANGUAGE NUMBER: prints this block of the section, without its indentation.
block() {
    awk -v language="$1" -v number="$2" -v section="## $section" '
        /^## / { inside = $0 == section }
        /^ *```/ {
            open = inside && !fenced && $1 == "```" language
            indent = match($0, /`/) - 1
            seen += open
            fenced = !fenced
            next
        }
        open && seen == number { print substr($0, indent + 1) }' "$bed/../../../docs/$page" | grep . ||
        give_up "docs/$page has no block $2 of $1 in its section $section"
}

# follow NUMBER: runs this block of shell exactly as printed, except for credentials, an image and
# the bed's addresses, in a directory that looks like a clone.
follow() {
    local bed_flags
    bed_flags=$(address_flags | paste -sd ' ')
    block sh "$1" | sed "s|\bTOKEN\b|$digitalocean_token|; s|image: busybox$|image: localhost/busybox:1|; \
        s|api-key=KEY|api-key=$civo_key --from-literal=api-url=http://$cloud_address|; \
        s|cluster-id=ID|cluster-id=$civo_cluster|; s|--values belay.yaml|--values $bed/guests.yaml & $bed_flags|" >"$BASE/run/block.sh"
    mkdir -p "$BASE/run/clone"
    ln -sfn "$(readlink -f "$bed/../../../deploy")" "$BASE/run/clone/deploy"
    (cd "$BASE/run/clone" && bash -euo pipefail ../block.sh)
}
