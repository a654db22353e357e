#!/usr/bin/env python3
"""Draws the layers of the two programs as SVG:

docs/images/architecture.py >docs/images/architecture.svg
"""

INK, GREY, BLUE, WHITE = "#22303c", "#e4e9ed", "#c3d5e8", "#ffffff"
# The width of a column, and the distance of its rows.
WIDTH, ROW = 190, 38


def box(x, y, width, height, fill, name="", role=""):
    print(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{fill}"/>')
    anchor, at = ("start", x + 8) if role else ("middle", x + width / 2)
    print(f'<text x="{at}" y="{y + 21}" text-anchor="{anchor}">{name}</text>')
    print(f'<text x="{x + width - 8}" y="{y + 21}" text-anchor="end" font-size="12">{role}</text>')


def arrow(x, y, to_x, to_y):
    print(f'<path d="M{x} {y}L{to_x} {to_y}" stroke="{INK}" stroke-width="2" marker-end="url(#end)"/>')


def column(x, caller, service, program, rows, storage):
    middle, top, bottom = x + WIDTH / 2, 90, 90 + 5 * ROW + 38
    box(x, 10, WIDTH, 32, GREY, caller)
    arrow(middle, 42, middle, top - 9)
    print(f'<text x="{middle + 8}" y="68">{service}</text>')
    box(x, top, WIDTH, bottom - top, BLUE, f'<tspan font-weight="bold">{program}</tspan>')
    for number, layers in enumerate(rows):
        width = (WIDTH - 10) / len(layers)
        for place, (name, role) in enumerate(layers):
            box(x + 8 + place * width, top + 34 + number * ROW, width - 6, 32, WHITE, name, role)
    arrow(middle, bottom, middle, bottom + 31)
    box(x, bottom + 40, WIDTH, 32, GREY, storage)


print(
    '<svg xmlns="http://www.w3.org/2000/svg" width="480" height="400" viewBox="0 0 480 400" '
    f'font-family="sans-serif" font-size="14" fill="{INK}">'
    "<title>Layers of belay-controller and belay-node</title>"
    '<marker id="end" markerWidth="5" markerHeight="6" refY="3" orient="auto"><path d="M0 0L5 3L0 6z"/></marker>'
    f'<rect width="480" height="400" fill="{WHITE}"/>'
)
column(
    10,
    "provisioner, attacher, …",
    "CSI Controller",
    "belay-controller",
    [[("rpc", "messages")], [("operation", "CSI rules")], [("backend", "calls to storage")]],
    "cloud, NFS server, files",
)
column(
    280,
    "kubelet",
    "CSI Node",
    "belay-node",
    [
        [("rpc", "messages")],
        [("operation", "CSI verbs")],
        [("mounts", "index")],
        [("device", ""), ("filesystem", "")],
        [("kernel", "system calls")],
    ],
    "Linux",
)
arrow(200, 220, 271, 220)
for y, word in ((196, "publish"), (212, "context")):
    print(f'<text x="240" y="{y}" text-anchor="middle">{word}</text>')
print("</svg>")
