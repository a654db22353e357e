#!/usr/bin/env python3
"""In a guest: edits the metadata of a LUKS2 header (LUKS2 On-Disk Format Specification 1.1).

    header.py DEVICE memory KIB     every key slot asks for this memory of argon2

Writes both copies of the header, with valid checksums.
"""
import hashlib
import json
import struct
import sys

# The binary part of a copy; its checksum is at this offset.
BINARY_BYTES, CHECKSUM_AT, CHECKSUM_BYTES = 4096, 448, 64
SIZE_AT = 8


def edit(metadata, verb, value):
    assert verb == "memory", verb
    for slot in metadata["keyslots"].values():
        slot["kdf"]["memory"] = int(value)


def rewrite(device, at, verb, value):
    device.seek(at)
    binary = bytearray(device.read(BINARY_BYTES))
    (size,) = struct.unpack_from(">Q", binary, SIZE_AT)
    text = device.read(size - BINARY_BYTES)
    metadata = json.loads(text[: text.index(b"\0")])
    edit(metadata, verb, value)
    text = json.dumps(metadata, separators=(",", ":")).encode().ljust(len(text), b"\0")
    binary[CHECKSUM_AT : CHECKSUM_AT + CHECKSUM_BYTES] = bytes(CHECKSUM_BYTES)
    checksum = hashlib.sha256(binary + text).digest()
    binary[CHECKSUM_AT : CHECKSUM_AT + len(checksum)] = checksum
    device.seek(at)
    device.write(binary + text)
    return size


path, verb, value = sys.argv[1:]
with open(path, "r+b") as device:
    size = rewrite(device, 0, verb, value)
    rewrite(device, size, verb, value)
