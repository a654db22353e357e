#!/usr/bin/env python3
"""Draws the last screen of a terminal program as SVG: terminal.py COLUMNS COMMAND... >picture.svg

Each word has its own position, so that no renderer can collapse spaces. The pictures of the demo:

    for columns in 80 120; do
        docs/images/terminal.py $columns target/bin/belay-demo >docs/images/demo-$columns.svg
    done
"""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from xml.sax.saxutils import escape

CELL_WIDTH, CELL_HEIGHT = 8, 18
TEXT, BOLD, BACKGROUND = "#c8ccd4", "#ffffff", "#16181d"
# By SGR code.
COLOURS = {"32": "#5fd38d", "33": "#e0b34f", "34": "#6ea8fe", "36": "#5cc8d7"}


def run(columns, command):
    """Returns what the command wrote to a terminal of so many columns."""
    pid, terminal = pty.fork()
    if pid == 0:
        size = struct.pack("HHHH", 60, columns, 0, 0)
        fcntl.ioctl(0, termios.TIOCSWINSZ, size)
        os.execvp(command[0], command)
    output = b""
    try:
        while chunk := os.read(terminal, 65536):
            output += chunk
    except OSError:
        pass  # EIO: the program has ended.
    if os.waitpid(pid, 0)[1] != 0:
        sys.exit(output.decode(errors="replace") + "\nthe command failed")
    return output.decode()


def last_screen(output):
    """Returns the lines after the last time that the cursor went to the top."""
    screen = re.split(r"\x1b\[H|\x1b\[2J|\x1b\[\d+A|\x1b\[\?1049l", output)[-1]
    return [line.rstrip() for line in screen.replace("\r", "").split("\n")]


def words(line):
    """Yields column, style and text of each run of characters that are not spaces."""
    column, style = 0, ""
    for code, word, spaces in re.findall(r"\x1b\[([?0-9;]*)[a-zA-Z]|([^\x1b ]+)|( +)", line):
        if word:
            yield column, style, word
        elif not spaces:
            style = code.lstrip("0")
        column += len(word) + len(spaces)


def svg(lines, columns):
    width, height = CELL_WIDTH * (columns + 2), CELL_HEIGHT * (len(lines) + 1)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="monospace" font-size="13">'
    )
    yield f'<rect width="{width}" height="{height}" fill="{BACKGROUND}"/>'
    for row, line in enumerate(lines, 1):
        for column, style, word in words(line):
            x, y = CELL_WIDTH * (column + 1), CELL_HEIGHT * row
            bold = ' font-weight="bold"' if style == "1" else ""
            fill = BOLD if style == "1" else COLOURS.get(style, TEXT)
            yield (
                f'<text x="{x}" y="{y}" textLength="{CELL_WIDTH * len(word)}" '
                f'fill="{fill}"{bold}>{escape(word)}</text>'
            )
    yield "</svg>"


columns = int(sys.argv[1])
lines = last_screen(run(columns, sys.argv[2:]))
while lines and not lines[-1]:
    lines.pop()
print("\n".join(svg(lines, columns)))
