# shellcheck shell=bash
# Sourced after driver.sh: the capabilities that root has here, and so at most has in the pods of
# node1. In guests, root has all capabilities, so the list of exceptions is empty.

# The bits in capability.h.
declare -A capability_bits=([CAP_SYS_RESOURCE]=24)

# lacks CAPABILITY: whether root lacks the capability.
lacks() {
    local bounding
    bounding=$(sed -n 's/^CapBnd:\t//p' /proc/self/status)
    (((0x$bounding >> capability_bits[$1] & 1) == 0))
}

# Prints REGEX <tab> CAPABILITY <tab> reason for each line of exceptions.txt that applies here.
exceptions_here() {
    local capability regex what
    sed '/^#/d; s/ | /\t/g' "$files/exceptions.txt" |
        while IFS=$'\t' read -r capability regex what; do
            ! lacks "$capability" || printf '%s\t%s\t%s\n' "$regex" "$capability" "$what"
        done
}
