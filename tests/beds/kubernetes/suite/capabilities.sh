# shellcheck shell=bash
# Sourced after driver.sh: what root may do here, and in the pods of node1 at most. In guests root has
# all capabilities, so their list of exceptions is empty.

# Bits of capability.h.
declare -A capability_bits=([CAP_SYS_RESOURCE]=24)

# lacks CAPABILITY
lacks() {
    local bounding
    bounding=$(sed -n 's/^CapBnd:\t//p' /proc/self/status)
    (((0x$bounding >> capability_bits[$1] & 1) == 0))
}

# REGEX <tab> CAPABILITY <tab> reason, of each line of exceptions.txt that holds here.
exceptions_here() {
    local capability regex what
    sed '/^#/d; s/ | /\t/g' "$files/exceptions.txt" |
        while IFS=$'\t' read -r capability regex what; do
            ! lacks "$capability" || printf '%s\t%s\t%s\n' "$regex" "$capability" "$what"
        done
}
