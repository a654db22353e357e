#!/usr/bin/env python3
"""A proxy between a client and OpenStack's APIs that counts requests and makes faults.

    proxy.py [--log FILE] [--address IP] CONTROL-PORT SERVICE=PORT:UPSTREAM-PORT...

On the control port, JSON over HTTP:

    PUT /rules      a list of rules (rules.py) that replaces the present ones
    GET /rules      the rules, with how often each matched and was applied
    GET /counts     [{service, method, path, status, count}], ids replaced by {id}
    DELETE /counts  begins to count again

FILE gets one line per request, without bodies and headers: they have secrets.
"""
import argparse
import asyncio
import collections
import contextlib
import http
import json
import signal
import sys
import time

sys.dont_write_bytecode = True
from rules import Rule, Wrong, pattern

HOST = "127.0.0.1"
HEAD_BYTES_MAX = 1 << 16
BODY_BYTES_MAX = 16 << 20
UPSTREAM_SECONDS_MAX = 300
# Of answers to remember for `stale`.
ANSWERS_MAX = 4096
BODILESS = ("204", "304")
PER_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")


class Cut(Exception):
    """The connection ends here."""


class Message:
    """Start line, headers and body of a request or an answer."""

    def __init__(self, start, headers, body):
        self.start, self.headers, self.body = start, headers, body

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def encode(self, connection, body=None):
        """The message with its own length, regardless of the body."""
        kept = [(key, value) for key, value in self.headers if key.lower() not in PER_HOP]
        # RFC 9110, 8.6: no length with these.
        if self.start.split()[1] not in BODILESS:
            kept.append(("Content-Length", str(len(self.body))))
        kept.append(("Connection", connection))
        head = "\r\n".join([self.start, *(f"{key}: {value}" for key, value in kept)])
        return head.encode("latin-1") + b"\r\n\r\n" + (self.body if body is None else body)


async def read_message(reader, to_end=False):
    """The next message; None at an orderly end. `to_end`: an answer may end with its connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise Cut("in the middle of a head") from None
        return None
    start, *lines = head[:-4].decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    message = Message(start, [(key, value.strip()) for key, _, value in pairs], b"")
    length = message.header("content-length")
    if (message.header("transfer-encoding") or "").lower() == "chunked":
        message.body = await read_chunks(reader)
    elif length is not None:
        if int(length) > BODY_BYTES_MAX:
            raise Cut(f"a body of {length} bytes")
        message.body = await reader.readexactly(int(length))
    elif to_end and start.split()[1] not in BODILESS:
        message.body = await reader.read(BODY_BYTES_MAX)
        while more := await reader.read(BODY_BYTES_MAX):
            message.body += more
    return message


async def read_chunks(reader):
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
        if len(body) > BODY_BYTES_MAX:
            raise Cut("a body without end")
    while (await reader.readline()).strip():
        pass
    return body


def made_up(status, headers, body):
    phrase = http.HTTPStatus(status).phrase
    return Message(f"HTTP/1.1 {status} {phrase}", headers, body.encode())


class Proxy:
    """Rules and counts, of all services together."""

    def __init__(self, log):
        self.rules, self.counts, self.log = [], collections.Counter(), log
        self.answers = collections.OrderedDict()

    def note(self, service, method, target, status, action, began):
        self.counts[service, method, pattern(target), status] += 1
        if self.log:
            self.log.write(json.dumps({
                "time": round(time.time(), 3), "service": service, "method": method,
                "target": target, "status": status, "action": action,
                "ms": round((time.monotonic() - began) * 1000)}) + "\n")
            self.log.flush()

    async def serve(self, service, port, reader, writer):
        """One client's connection."""
        with contextlib.suppress(Cut, ConnectionError, asyncio.IncompleteReadError,
                                 asyncio.LimitOverrunError, ValueError):
            while request := await read_message(reader):
                await self.handle(service, port, request, writer)
                if (request.header("connection") or "").lower() == "close":
                    break
        # Without an answer a reset is a cut; `abort` drops what was not yet sent.
        writer.close()

    async def handle(self, service, port, request, writer):
        method, target, _ = request.start.split(" ")
        began = time.monotonic()
        matching = (rule for rule in self.rules if rule.applies(service, method, target))
        rule = next(matching, None)
        action = rule.action if rule else None
        # What the client gets; 0 is a connection without an answer.
        status = 0
        try:
            answer = await self.obtain(rule, (service, method, target), port, request)
            if action in ("cut_after", "cut_before"):
                raise Cut(action)
            status = int(answer.start.split()[1])
            if action == "truncate":
                writer.write(answer.encode("close", answer.body[:rule["bytes"]]))
                await writer.drain()
                raise Cut(action)
            writer.write(answer.encode("keep-alive"))
            await writer.drain()
        finally:
            self.note(service, method, target, status, action, began)

    async def obtain(self, rule, key, port, request):
        """The answer to a request, by the service or by the rule."""
        action = rule.action if rule else None
        if action in ("answer", "rate"):
            after = rule["retry_after"]
            headers = [("Content-Type", "application/json")]
            headers += [("Retry-After", str(after))] if after is not None else []
            return made_up(rule["status"], headers, rule.members.get("body", "{}"))
        if action == "cut_before":
            raise Cut(action)
        if action == "stale" and key in self.answers:
            return self.answers[key]
        if action == "slow":
            await asyncio.sleep(rule["before_seconds"])
        if action == "twice":
            await self.forward(port, request)
        answer = await self.forward(port, request)
        if action == "slow":
            await asyncio.sleep(rule["after_seconds"])
        self.answers[key] = answer
        self.answers.move_to_end(key)
        while len(self.answers) > ANSWERS_MAX:
            self.answers.popitem(last=False)
        return answer

    async def forward(self, port, request):
        """The service's own answer; a service that is down cuts the connection, as without us."""
        try:
            reader, writer = await asyncio.open_connection(HOST, port, limit=HEAD_BYTES_MAX)
        except OSError:
            raise Cut("the service is down") from None
        try:
            writer.write(request.encode("close"))
            await writer.drain()
            answer = await asyncio.wait_for(read_message(reader, to_end=True),
                                            UPSTREAM_SECONDS_MAX)
        except asyncio.TimeoutError:
            raise Cut("the service does not answer") from None
        finally:
            writer.close()
        if answer is None:
            raise Cut("the service closed the connection")
        return answer

    async def control(self, reader, writer):
        """One command."""
        with contextlib.suppress(Cut, ConnectionError, asyncio.IncompleteReadError):
            request = await read_message(reader)
            if request:
                status, document = self.command(request)
                answer = made_up(status, [("Content-Type", "application/json")],
                                 json.dumps(document))
                writer.write(answer.encode("close"))
                await writer.drain()
        writer.close()

    def command(self, request):
        method, path, _ = request.start.split(" ")
        if (method, path) == ("PUT", "/rules"):
            try:
                self.rules = [Rule(document) for document in json.loads(request.body)]
            except (Wrong, ValueError, TypeError, AttributeError) as wrong:
                return 400, {"error": str(wrong)}
            return 200, []
        if (method, path) == ("GET", "/rules"):
            return 200, [rule.report() for rule in self.rules]
        if (method, path) == ("GET", "/counts"):
            names = ("service", "method", "path", "status")
            return 200, [{**dict(zip(names, key)), "count": count}
                         for key, count in sorted(self.counts.items())]
        if (method, path) == ("DELETE", "/counts"):
            self.counts.clear()
            return 200, []
        return 404, {"error": "no such command"}


async def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=argparse.FileType("a"))
    parser.add_argument("--address", default=HOST, help="where clients connect")
    parser.add_argument("control", type=int)
    parser.add_argument("services", nargs="+")
    options = parser.parse_args()
    proxy = Proxy(options.log)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    servers = [await asyncio.start_server(proxy.control, HOST, options.control)]
    for entry in options.services:
        service, _, ports = entry.partition("=")
        port, upstream = map(int, ports.split(":"))

        async def serve(reader, writer, service=service, upstream=upstream):
            await proxy.serve(service, upstream, reader, writer)

        servers.append(await asyncio.start_server(serve, options.address, port,
                                                  limit=HEAD_BYTES_MAX, backlog=1024))
    await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
