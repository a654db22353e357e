# Reads the suite's junit reports, of one or more runs, and prints one line a spec, tabs between:
#
#   passed|failed|skipped|left-out  SECONDS  DESCRIPTION  SUITE  SPEC  REASON
#
# left-out: excluded by the command line. A spec of several runs counts where it ran
# last. The REASON is the one for which a spec was skipped.

function attribute(line, name,    text) {
    if (!match(line, " " name "=\"[^\"]*\"")) return ""
    text = substr(line, RSTART + length(name) + 3, RLENGTH - length(name) - 4)
    gsub(/&#34;/, "\"", text); gsub(/&#39;/, "'", text)
    gsub(/&lt;/, "<", text); gsub(/&gt;/, ">", text); gsub(/&amp;/, "\\&", text)
    return text
}

function finish(    rank) {
    rank = status == "left-out" ? 1 : status == "skipped" ? 2 : 3
    if (rank >= best[name]) {
        best[name] = rank
        line[name] = status "\t" seconds "\t" reason
    }
    name = ""
}

/<testcase name="\[It\] External Storage / {
    name = attribute($0, "name")
    sub(/^\[It\] External Storage \[Driver: [^]]*\] /, "", name)
    status = attribute($0, "status")
    seconds = attribute($0, "time")
    reason = ""
    if (status != "passed" && status != "skipped") status = "failed"
}
name != "" && /<skipped / {
    reason = attribute($0, "message")
    if (!sub(/^skipped - /, "", reason)) status = "left-out"
}
name != "" && (/<\/testcase>/ || /<testcase .*\/>/) { finish() }

# "(ext4, late) [Testpattern: ...] [Slow] volumes should store data [Slow]"
END {
    for (name in line) {
        split(line[name], field, "\t")
        match(name, /^\([^)]*\)/)
        description = substr(name, 2, RLENGTH - 2)
        spec = rest = substr(name, RLENGTH + 2)
        sub(/^\[Testpattern: [^]]*\] /, "", rest)
        while (sub(/^\[[^]]*\] /, "", rest)) { }
        suite = rest
        sub(/ .*/, "", suite)
        printf "%s\t%s\t%s\t%s\t%s\t%s\n", field[1], field[2], description, suite, spec, field[3]
    }
}
