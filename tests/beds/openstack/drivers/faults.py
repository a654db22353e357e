"""Faults that a test orders from a driver inside Cinder or Nova.

The file faults/<operation> of the bed, JSON: {"delay": SECONDS, "fail": true, "once": true}, each
optional. Write it elsewhere and rename it, for a driver may read at any time.
"""
import contextlib
import json
import os
import time


class Ordered(Exception):
    """This operation fails because the test wants it to."""


def check(operation):
    """Delays or fails the operation as its control file says; nothing without a file."""
    path = os.path.join(os.environ["BELAY_BED"], "faults", operation)
    try:
        with open(path) as file:
            fault = json.load(file)
    except FileNotFoundError:
        return
    if fault.get("once"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    time.sleep(fault.get("delay", 0))
    if fault.get("fail"):
        raise Ordered(f"fault ordered by the test: {operation}")
