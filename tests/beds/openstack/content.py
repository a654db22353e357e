"""What a cloud has before its first volume: users, catalog, volume types, zones, an image."""
import json
import secrets
import time

from api import Session
from config import REGION, USERS, ZONES
from layout import FRONT, write_private

# Type, name, path; Cinder has two types for old and new clients.
CATALOG = (("identity", "keystone", "/v3"), ("placement", "placement", ""),
           ("image", "glance", ""), ("network", "neutron", ""),
           ("block-storage", "cinder", "/v3"), ("volumev3", "cinder", "/v3/%(project_id)s"),
           ("compute", "nova", "/v2.1"))
INTERFACES = ("public", "internal", "admin")
# The driver's own user and project.
USER, PROJECT = "csi", "kubernetes"
TYPES = {"file": {}, "file-a": {"volume_backend_name": "file-a"},
         "file-b": {"volume_backend_name": "file-b"}, "multi": {"multiattach": "<is> True"}}
# It looks for new ones every 5 s (discover_hosts_in_cells_interval).
HOSTS_SECONDS = 120
VOLUME_QUOTA = {"volumes": 20000, "gigabytes": 200000, "snapshots": 1000, "backups": 100,
                "backup_gigabytes": 1000}
SERVER_QUOTA = {"instances": 200, "cores": 200, "ram": 100000}


def endpoints(layout):
    """[(type, interface, URL)]: public ones are the fault proxy's."""
    rows = []
    for kind, name, path in CATALOG:
        for interface in INTERFACES:
            front = interface == "public" and name in FRONT
            rows.append((kind, interface, layout.url(f"{name}-front" if front else name, path)))
    return rows


def make_identity(layout):
    """Projects, users, roles and the catalog; Keystone's own entry comes from its bootstrap."""
    admin = Session(layout)

    def keystone(method, path, body=None):
        return admin.call("keystone", method, path, body)

    roles = {role["name"]: role["id"] for role in keystone("GET", "/roles")["roles"]}
    projects = {name: keystone("POST", "/projects", {"project": {
        "name": name, "domain_id": "default"}})["project"]["id"] for name in ("service", PROJECT)}

    def make_user(name, project, *granted):
        user = keystone("POST", "/users", {"user": {
            "name": name, "password": layout.secret, "domain_id": "default",
            "default_project_id": projects[project]}})["user"]["id"]
        for role in granted:
            keystone("PUT", f"/projects/{projects[project]}/users/{user}/roles/{roles[role]}")

    for name in USERS:
        make_user(name, "service", "admin", "service")
    make_user(USER, PROJECT, "member")
    services = {kind: keystone("POST", "/services", {"service": {"type": kind, "name": name}})
                ["service"]["id"] for kind, name, _ in CATALOG if kind != "identity"}
    for kind, interface, url in endpoints(layout):
        if kind in services:
            keystone("POST", "/endpoints", {"endpoint": {
                "service_id": services[kind], "interface": interface, "url": url,
                "region_id": REGION}})


def make_content(layout):
    """Volume types, quotas, zones, a flavor, an image, an application credential."""
    admin, user = Session(layout), Session(layout, USER, PROJECT)
    await_hosts(admin)
    for name, specs in TYPES.items():
        admin.call("cinder", "POST", "/types", {"volume_type": {
            "name": name, "extra_specs": specs}})
    admin.call("cinder", "PUT", f"/os-quota-sets/{user.project}", {"quota_set": VOLUME_QUOTA})
    admin.call("nova", "PUT", f"/os-quota-sets/{user.project}", {"quota_set": SERVER_QUOTA})
    # Disk 0 would allow a boot from a volume only.
    admin.call("nova", "POST", "/flavors", {"flavor": {
        "name": "tiny", "id": "1", "ram": 64, "vcpus": 1, "disk": 1}})
    for zone in ZONES:
        aggregate = admin.call("nova", "POST", "/os-aggregates", {"aggregate": {
            "name": f"az-{zone}", "availability_zone": f"az-{zone}"}})["aggregate"]["id"]
        admin.call("nova", "POST", f"/os-aggregates/{aggregate}/action", {
            "add_host": {"host": f"node-{zone}"}})
    image = admin.call("glance", "POST", "/images", {
        "name": "empty", "disk_format": "raw", "container_format": "bare",
        "visibility": "public"})["id"]
    admin.call("glance", "PUT", f"/images/{image}/file", raw=b"\0" * 4096)
    # Not the password, so that a test sees which of the two leaks.
    credential = user.call("keystone", "POST", f"/users/{user.user}/application_credentials", {
        "application_credential": {"name": "belay", "secret": secrets.token_hex(16),
                                   "roles": [{"name": "member"}]}})["application_credential"]
    write_private(layout.var / "content.json", json.dumps({
        "project_id": user.project, "image": image, "flavor": "1",
        "application_credential": {"id": credential["id"], "secret": credential["secret"]}}))


def await_hosts(admin):
    """Waits until Nova's scheduler has entered the compute services into its cell.

    Before, no server can be placed. Nova lists a hypervisor only if it has been entered.
    """
    wanted, end = {f"node-{zone}" for zone in ZONES}, time.monotonic() + HOSTS_SECONDS
    while True:
        listed = admin.call("nova", "GET", "/os-hypervisors")["hypervisors"]
        missing = wanted - {entry["hypervisor_hostname"] for entry in listed}
        if not missing:
            return
        if time.monotonic() > end:
            raise SystemExit(f"Nova's cell has no {' '.join(missing)}")
        time.sleep(0.5)


def describe(layout):
    """Writes bed.json: what a test needs to know of a running bed."""
    made = json.loads((layout.var / "content.json").read_text())
    write_private(layout.root / "bed.json", json.dumps({
        "auth_url": layout.url("keystone-front", "/v3"), "region": REGION,
        "proxy": layout.url("proxy"), "username": USER, "password": layout.secret,
        "project": PROJECT, "domain": "Default", "zones": [f"az-{zone}" for zone in ZONES],
        "types": list(TYPES), "faults": str(layout.faults), "guests": str(layout.guests),
        **made}, indent=1) + "\n")
