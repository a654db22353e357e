#!/usr/bin/env python3
"""Tests of the fault proxy, against a service that counts."""
import asyncio
import contextlib
import sys
import unittest

sys.dont_write_bytecode = True
from proxy import HOST, Proxy, made_up, read_message
from rules import Rule, Wrong, pattern

VOLUME = "6f1c2d3e-0000-4000-8000-0123456789ab"


class Bench(unittest.IsolatedAsyncioTestCase):
    """A proxy in front of a service whose n-th answer has the body `answer n`."""

    async def asyncSetUp(self):
        self.received = []
        service = await asyncio.start_server(self._serve, HOST, 0)
        self.proxy = Proxy(None)
        upstream = service.sockets[0].getsockname()[1]

        async def serve(reader, writer):
            await self.proxy.serve("cinder", upstream, reader, writer)

        front = await asyncio.start_server(serve, HOST, 0)
        self.port = front.sockets[0].getsockname()[1]
        self.addCleanup(front.close)
        self.addCleanup(service.close)

    async def _serve(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            request = await read_message(reader)
            if request:
                self.received.append(request)
                body = f"answer {len(self.received)}"
                writer.write(made_up(200, [("X-Own", "kept")], body).encode("close"))
                await writer.drain()
        writer.close()

    def rules(self, *documents):
        self.proxy.rules = [Rule(document) for document in documents]

    async def call(self, method="GET", target="/v3/volumes", body=b""):
        """The answer's (status, body); None if the connection was cut."""
        reader, writer = await asyncio.open_connection(HOST, self.port)
        writer.write(f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
                     "\r\n".encode() + body)
        try:
            answer = await read_message(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        finally:
            writer.close()
        self.last = answer
        return answer and (int(answer.start.split()[1]), answer.body.decode())

    async def test_a_request_and_its_answer_pass_unchanged(self):
        self.assertEqual(await self.call("POST", "/v3/volumes", b"{}"), (200, "answer 1"))
        self.assertEqual(self.received[0].start, "POST /v3/volumes HTTP/1.1")
        self.assertEqual(self.received[0].body, b"{}")
        self.assertEqual(self.received[0].header("Host"), "x")
        self.assertEqual(self.last.header("X-Own"), "kept")

    async def test_one_connection_carries_many_requests(self):
        reader, writer = await asyncio.open_connection(HOST, self.port)
        for number in (1, 2, 3):
            writer.write(b"GET /v3/volumes HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await read_message(reader)
            self.assertEqual(answer.body, f"answer {number}".encode())
        writer.close()

    async def test_a_throttled_request_never_reaches_the_service(self):
        self.rules({"action": "answer", "status": 429, "retry_after": 7, "times": 1})
        self.assertEqual((await self.call())[0], 429)
        self.assertEqual(self.last.header("Retry-After"), "7")
        self.assertEqual(self.received, [])
        self.assertEqual(await self.call(), (200, "answer 1"))

    async def test_a_cut_before_is_not_seen_by_the_service_and_a_cut_after_is(self):
        self.rules({"action": "cut_before", "times": 1}, {"action": "cut_after", "times": 1})
        self.assertIsNone(await self.call())
        self.assertEqual(len(self.received), 0)
        self.assertIsNone(await self.call())
        self.assertEqual(len(self.received), 1)
        self.assertEqual(await self.call(), (200, "answer 2"))

    async def test_a_truncated_body_is_shorter_than_its_length_says(self):
        self.rules({"action": "truncate", "bytes": 3, "times": 1})
        self.assertIsNone(await self.call())
        self.assertEqual(len(self.received), 1)

    async def test_a_stale_answer_is_the_last_one_of_the_same_path(self):
        await self.call()
        await self.call(target="/v3/types")
        self.rules({"action": "stale"})
        self.assertEqual(await self.call(), (200, "answer 1"))
        self.assertEqual(len(self.received), 2)

    async def test_twice_reaches_the_service_two_times(self):
        self.rules({"action": "twice", "times": 1})
        self.assertEqual(await self.call("POST"), (200, "answer 2"))
        self.assertEqual(len(self.received), 2)

    async def test_a_rule_matches_by_service_method_and_path_after_its_skips(self):
        self.rules({"action": "answer", "service": "cinder", "method": "GET", "path": "/volumes$",
                    "skip": 1, "status": 503},
                   {"action": "answer", "service": "nova", "status": 500})
        for target, method, status in (("/v3/types", "GET", 200), ("/v3/volumes", "POST", 200),
                                       ("/v3/volumes", "GET", 200), ("/v3/volumes", "GET", 503)):
            self.assertEqual((await self.call(method, target))[0], status, target)
        self.assertEqual(self.proxy.rules[0].report()["applied"], 1)

    async def test_a_service_that_is_down_is_a_cut_connection(self):
        self.rules({"action": "slow", "before_seconds": 0})
        self.proxy.forward = lambda port, request: Proxy(None).forward(1, request)
        self.assertIsNone(await self.call())

    async def test_counts_are_by_method_pattern_and_status(self):
        self.rules({"action": "answer", "status": 429, "skip": 1, "times": 1})
        for _ in range(3):
            await self.call("GET", f"/v3/volumes/{VOLUME}?name=secret")
        counted = {(key[2], key[3]): count for key, count in self.proxy.counts.items()}
        path = "/v3/volumes/{id}?name"
        self.assertEqual(counted, {(path, 200): 2, (path, 429): 1})


class Rules(unittest.TestCase):
    """Rules by themselves."""

    def test_a_rate_lets_its_burst_pass_and_then_so_many_a_second(self):
        rule = Rule({"action": "rate", "per_second": 2, "burst": 3})
        refused = [rule.applies("nova", "GET", "/", now) for now in (0, 0, 0, 0, 0.5, 0.5, 9)]
        self.assertEqual(refused, [False, False, False, True, False, True, False])

    def test_an_unknown_action_or_member_is_refused(self):
        for wrong in ({"action": "explode"}, {"action": "slow", "seconds": 1}, {}):
            with self.assertRaises(Wrong):
                Rule(wrong)

    def test_a_pattern_has_no_ids_and_no_values(self):
        project = "0123456789abcdef0123456789abcdef"
        self.assertEqual(pattern(f"/v3/{project}/volumes/{VOLUME}/action?b=1&a=2"),
                         "/v3/{id}/volumes/{id}/action?a&b")
        self.assertEqual(pattern("/v3/volumes/detail"), "/v3/volumes/detail")


if __name__ == "__main__":
    unittest.main()
