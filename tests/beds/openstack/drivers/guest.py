"""User-mode Linux guests as servers: the operator's socket of belay-guest-cloud plugs their disks.

A test makes plugs/<server> of the bed, a link to that socket. There, the guest has the server's ID.
"""
import os
import socket

# A plug takes a moment; a guest that has stopped, a minute.
SECONDS_MAX = 90


class Refused(Exception):
    """The guest has not done it."""


def _path(server):
    return os.path.join(os.environ["BELAY_BED"], "plugs", server)


def exists(server):
    """Does the server have a guest?"""
    return os.path.islink(_path(server))


def ask(verb, server, *words):
    """Has it done, or raises Refused."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(SECONDS_MAX)
        stream.connect(_path(server))
        stream.sendall(" ".join([verb, server, *words]).encode() + b"\n")
        stream.shutdown(socket.SHUT_WR)
        answer = b""
        while more := stream.recv(4096):
            answer += more
    code, _, text = answer.decode().partition("\n")
    if code != "0":
        raise Refused(f"{verb} {server}: {text or 'no answer'}")
