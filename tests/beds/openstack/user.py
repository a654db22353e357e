#!/usr/bin/env python3
"""What a user of a bed's cloud does, for tests that are shell scripts.

    user.py STATE volumes                     JSON: the volumes of the driver's project
    user.py STATE boot [NAME]                 a server; prints its UUID
    user.py STATE conf                        cloud.conf of the driver
    user.py STATE credential NAME             an application credential; prints ID and secret
    user.py STATE revoke ID                   deletes an application credential
    user.py STATE metadata ADDRESS:PORT [IP=]UUID...
                                              serves the metadata of these servers until it is
                                              ended; one without IP is that of all other clients
    user.py STATE tls ADDRESS:PORT CERT KEY   serves Keystone over TLS until it is ended
"""
import asyncio
import contextlib
import hashlib
import hmac
import http.server
import json
import secrets
import ssl
import sys
import time
import urllib.request

sys.dont_write_bytecode = True
from api import Session
from content import PROJECT, USER
from layout import Layout

BOOT_SECONDS = 300


def session(layout):
    return Session(layout, USER, PROJECT)


def volumes(layout):
    listed = session(layout).call("cinder", "GET", "/volumes/detail")["volumes"]
    print(json.dumps([{key: volume[key] for key in ("id", "name", "status", "size", "metadata",
                                                    "volume_type")}
                      | {"servers": [entry["server_id"] for entry in volume["attachments"]]}
                      for volume in listed]))


def boot(layout, name="node"):
    user = session(layout)
    made = json.loads((layout.var / "content.json").read_text())
    server = user.call("nova", "POST", "/servers", {"server": {
        "name": name, "imageRef": made["image"], "flavorRef": made["flavor"],
        "availability_zone": "az-a", "networks": "none"}}, version="compute 2.60")["server"]["id"]
    end = time.monotonic() + BOOT_SECONDS
    path = f"/servers/{server}"
    while (status := user.call("nova", "GET", path)["server"]["status"]) != "ACTIVE":
        if status == "ERROR" or time.monotonic() > end:
            raise SystemExit(f"server {server}: {status}")
        time.sleep(0.5)
    print(server)


def credential(layout, name):
    user = session(layout)
    made = user.call("keystone", "POST", f"/users/{user.user}/application_credentials", {
        "application_credential": {"name": name, "secret": secrets.token_hex(16),
                                   "roles": [{"name": "member"}]}})["application_credential"]
    print(made["id"], made["secret"])


def conf(layout):
    described = json.loads((layout.root / "bed.json").read_text())
    login = described["application_credential"]
    print(f"""[Global]
auth-url={described["auth_url"]}
region={described["region"]}
application-credential-id={login["id"]}
application-credential-secret={login["secret"]}""")


def revoke(layout, number):
    user = session(layout)
    user.call("keystone", "DELETE", f"/users/{user.user}/application_credentials/{number}")


def metadata(layout, address, *servers):
    """As Neutron's agent, which knows a server by its port and adds these headers."""
    project = json.loads((layout.var / "content.json").read_text())["project_id"]
    by_client = {ip: server for ip, _, server in (entry.rpartition("=") for entry in servers)}

    def headers(server):
        return {"X-Instance-ID": server, "X-Tenant-ID": project, "X-Forwarded-For": "192.0.2.1",
                "X-Instance-ID-Signature": hmac.new(layout.secret.encode(), server.encode(),
                                                    hashlib.sha256).hexdigest()}

    class Front(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server = by_client.get(self.client_address[0], by_client.get(""))
            if server is None:
                return self.send_error(404, "no server has this address")
            call = urllib.request.Request(layout.url("metadata", self.path),
                                          headers=headers(server))
            with urllib.request.urlopen(call, timeout=60) as answer:
                body = answer.read()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    host, _, port = address.rpartition(":")
    http.server.ThreadingHTTPServer((host, int(port)), Front).serve_forever()


async def copy(reader, writer):
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def tls(layout, address, certificate, key):
    """In front of the fault proxy, which sees what it carries."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def serve(reader, writer):
        upstream, sink = await asyncio.open_connection(layout.address,
                                                       layout.ports["keystone-front"])
        await asyncio.gather(copy(reader, sink), copy(upstream, writer))

    async def listen():
        host, _, port = address.rpartition(":")
        server = await asyncio.start_server(serve, host, int(port), ssl=context)
        await server.serve_forever()

    asyncio.run(listen())


def main():
    commands = {"volumes": volumes, "boot": boot, "conf": conf, "credential": credential,
                "revoke": revoke, "metadata": metadata, "tls": tls}
    state, command, *arguments = sys.argv[1:]
    commands[command](Layout(state).load(), *arguments)


if __name__ == "__main__":
    main()
