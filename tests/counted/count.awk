# Reads a profile of callgrind. Prints instructions, allocations, and pages of code.
#
# -v without=EXPRESSION: functions with such names, and all that they call, do not count. The name of
# an allocation contains its callers (--separate-callers).

# name "(12) malloc'...", and "(12)" from then on.
function name(text,    id) {
    id = substr(text, 1, index(text, ")"))
    if (length(text) > length(id)) names[id] = substr(text, length(id) + 2)
    return names[id]
}

function hex(text,    value, i) {
    for (i = 3; i <= length(text); i++)
        value = value * 16 + index("123456789abcdef", substr(text, i, 1))
    return value
}

function visit(address) {
    at = address
    if (!(int(at / 4096) in seen)) pages++
    seen[int(at / 4096)] = 1
}

function is_left_out(path) {
    return without != "" && path ~ without
}

/^fn=/ { caller = name(substr($0, 4)); next }
/^cfn=/ { callee = name(substr($0, 5)); next }
/^calls=/ {
    count = substr($1, 7)
    if (callee ~ /^[^']*__rust_(alloc|alloc_zeroed|realloc)('|$)/ && !is_left_out(callee))
        allocations += count
    # The next line has the cost of these calls.
    getline
    if (is_left_out(callee) && callee !~ /[{]closure[}]/) left_out += $NF
    next
}
/^(totals|summary):/ { total = $2 }
/^0x/ { visit(hex($1)) }
/^[+]/ { visit(at + substr($1, 2)) }
/^-/ { visit(at - substr($1, 2)) }

END { printf "%d %d %d\n", total - left_out, allocations, pages }
