"""A small client of OpenStack's APIs, for the bed itself: no retries, errors with their body."""
import json
import socket
import time
import urllib.error
import urllib.request

from layout import HOST


# A service that was just started answers once it is loaded, on a busy machine after minutes.
ANSWER_SECONDS = 300


class Refused(Exception):
    """The service answered with an error."""

    def __init__(self, method, url, status, body):
        super().__init__(f"{method} {url}: {status} {body[:500]!r}")
        self.status, self.body = status, body


def request(method, url, body=None, token=None, version=None, raw=None):
    """(document, headers) of an answer; the document is None if there is no body."""
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/octet-stream" if raw else "application/json"}
    if token:
        headers["X-Auth-Token"] = token
    if version:
        headers["OpenStack-API-Version"] = version
    call = urllib.request.Request(url, method=method, data=data, headers=headers)
    try:
        with urllib.request.urlopen(call, timeout=ANSWER_SECONDS) as answer:
            text = answer.read()
            return json.loads(text) if text else None, answer.headers
    except urllib.error.HTTPError as error:
        raise Refused(method, url, error.code, error.read()) from None


def await_port(port, seconds):
    """Waits until a process listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port} after {seconds} s; see log/")


class Session:
    """Calls as one user, at the services themselves and not at the fault proxy."""

    def __init__(self, layout, user="admin", project="admin"):
        self.layout = layout
        scope = {"project": {"name": project, "domain": {"name": "Default"}}}
        login = {"name": user, "password": layout.secret, "domain": {"name": "Default"}}
        document, headers = request("POST", layout.url("keystone", "/v3/auth/tokens"), {"auth": {
            "identity": {"methods": ["password"], "password": {"user": login}}, "scope": scope}})
        self.token = headers["X-Subject-Token"]
        self.project = document["token"]["project"]["id"]
        self.user = document["token"]["user"]["id"]

    def call(self, service, method, path, body=None, **options):
        """The document of an answer."""
        root = {"keystone": "/v3", "cinder": f"/v3/{self.project}", "nova": "/v2.1",
                "glance": "/v2", "neutron": "/v2.0", "placement": ""}[service]
        url = self.layout.url(service, root + path)
        return request(method, url, body, token=self.token, **options)[0]
