"""The life of a volume: claimed, written by pods one after the other, grown, copied, deleted.

A life is a generator. It changes things through the API, and yields a `Wait` whenever something
has to become true; `Lives` looks at the cluster once for all of them. What a pod wrote completely,
every later pod on that volume, on a snapshot's restore or on a clone must find.
"""
import random
import time

import objects
from kube import Refused, Unreachable

CHUNKS = 4
FOUND_WRONG, FAILED_WRITE = 42, 43

# A generation is what one pod writes. Its content follows from the name of the volume that was
# written and from its number, so a lost, stale or foreign block is found, and not only a torn one.
SCRIPT = r"""
set -eu
chunk=262144
V=/volume
content() { yes "$1 generation $2 chunk $3" | head -c $chunk; }
stored() {
    if [ -b $V ]; then dd if=$V bs=$chunk skip=$(($1 * CHUNKS + $2)) count=1 2>/dev/null
    else cat "$V/$1-$2"; fi
}
store() {
    if [ -b $V ]; then place="of=$V seek=$(($1 * CHUNKS + $2))"
    else place="of=$V/$1-$2"; fi
    dd $place bs=$chunk iflag=fullblock conv=notrunc,fsync 2>/tmp/dd ||
        end 43 "write: $(cat /tmp/dd)"
}
end() { echo "$2" >/dev/termination-log; echo "$2"; exit "$1"; }
# So that an end without a message is not this script's.
unexpected() { [ "$1" = 0 ] || [ -s /dev/termination-log ] || echo "code $1" >/dev/termination-log; }
trap 'unexpected $?' EXIT
same() {
    want=$(content "$1" "$2" "$3" | sha256sum) have=$(stored "$2" "$3" | sha256sum)
    [ "$want" = "$have" ] || end 42 "generation $2 chunk $3: not what $1 wrote"
}
if [ -b $V ]; then bytes=$(blockdev --getsize64 $V)
else bytes=$(df -kP $V | awk 'NR == 2 { print $2 * 1024 }'); fi
[ "$bytes" -ge "$AT_LEAST" ] || end 42 "size $bytes, and not at least $AT_LEAST"
g=0
for origin in $ORIGINS; do
    i=0; while [ $i -lt $CHUNKS ]; do same $origin $g $i; i=$((i + 1)); done
    g=$((g + 1))
done
i=0; while [ $i -lt $CHUNKS ]; do content $NAME $g $i | store $g $i; i=$((i + 1)); done
# One more chunk is written again and again while others are broken around this pod.
t=0
while [ $t -lt $HOLD ]; do
    content $NAME $t 99 | store 50 0
    sleep 1
    t=$((t + 1))
done
i=0; while [ $i -lt $CHUNKS ]; do same $NAME $g $i; i=$((i + 1)); done
"""


class Wait:
    def __init__(self, what, until):
        self.what, self.until, self.since = what, until, time.monotonic()


class World:
    """What was there when last looked: pods, claims and snapshots by name."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.pods, self.claims, self.copies = {}, {}, {}
        self.names = set()  # of all volumes that ever were

    def look(self):
        by_name = lambda items: {item["metadata"]["name"]: item for item in items}
        pods = self._cluster.items(objects.PODS)
        claims = self._cluster.items(objects.CLAIMS)
        copies = self._cluster.items(objects.SNAPSHOTS)
        self.pods, self.claims, self.copies = by_name(pods), by_name(claims), by_name(copies)
        self.names.update("pvc-" + claim["metadata"]["uid"] for claim in claims)


class Volume:
    def __init__(self, name, kind, size_mib, origins=()):
        self.name, self.kind, self.size_mib = name, kind, size_mib
        self.origins = list(origins)  # who wrote each generation
        self.grown = False


class Lives:
    """All running lifecycles, and the counters."""

    def __init__(self, cluster, seed, log, grows):
        self.cluster, self.log, self.grows = cluster, log, grows
        self.world = World(cluster)
        self.seed, self.made, self.ending = seed, 0, False
        self.waiting = {}  # the generator of a life: what it waits for
        self.failures, self.starts, self.restarts = [], [], {}
        self.counts = dict.fromkeys(
            ("volumes", "pods", "cut short", "snapshots", "clones", "expansions", "restarts",
             "comparisons"), 0)

    def begin(self):
        number, self.made = self.made, self.made + 1
        chance = random.Random(f"{self.seed}/{number}")
        self._step(self._life(f"v{number:04}", objects.KINDS[number % 4], chance))

    def turn(self):
        """Look once, and let every life go on whose wait is over."""
        try:
            self.world.look()
        except Unreachable:
            return
        for life, wait in list(self.waiting.items()):
            if wait.until(self.world):
                self._step(life)

    def _step(self, life):
        try:
            self.waiting[life] = next(life)
        except StopIteration:
            self.waiting.pop(life, None)

    def _do(self, what, change, *arguments):
        """A change, repeated while the API server is away."""
        while True:
            try:
                return change(*arguments)
            except Unreachable:
                yield from self._sleep(what, 1)

    def _sleep(self, what, seconds):
        until = time.monotonic() + seconds
        yield Wait(what, lambda _: time.monotonic() >= until)

    def _life(self, name, kind, chance):
        size_mib = objects.SIZES_MIB[kind]
        volume = Volume(name, kind, size_mib)
        yield from self._claim(volume)
        for number in range(chance.randint(2, 4)):
            if self.ending and number > 0:
                break
            yield from self._pod(volume, number, chance)
            if chance.random() < 0.3 and not volume.grown and kind in self.grows:
                yield from self._grow(volume)
            if chance.random() < 0.25 and not self.ending and volume.origins:
                yield from self._copy(volume, number, chance)
        yield from self._unclaim(volume)

    def _claim(self, volume, source=None):
        self.counts["volumes"] += 1
        body = objects.claim(volume.name, volume.kind, volume.size_mib, source)
        yield from self._do(f"claim {volume.name}", self.cluster.create, objects.CLAIMS, body)

    def _unclaim(self, volume):
        path = f"{objects.CLAIMS}/{volume.name}"
        yield from self._do(f"deleting claim {volume.name}", self.cluster.delete, path)
        yield Wait(f"claim {volume.name} is gone", lambda w: volume.name not in w.claims)

    def _pod(self, volume, number, chance):
        """One pod writes a generation. Some are deleted in the middle; theirs does not count."""
        name = f"{volume.name}-{number}"
        hold = chance.randint(2, 25)
        cut_after = chance.uniform(0, hold) if chance.random() < 0.3 else None
        # Filesystems have a little less room than their device, and a grown volume twice as much.
        at_least = volume.size_mib * objects.MIB * (1 if volume.kind == "block" else 0.7)
        environment = {"NAME": volume.name, "ORIGINS": " ".join(volume.origins), "HOLD": hold,
                       "CHUNKS": CHUNKS, "AT_LEAST": int(at_least)}
        body = objects.pod(name, volume.name, volume.kind, SCRIPT, environment)
        began = time.monotonic()
        yield from self._do(f"pod {name}", self.cluster.create, objects.PODS, body)
        started = lambda w: _phase(w, name) in ("Running", "Succeeded", "Failed")
        yield Wait(f"pod {name} starts", started)
        self.counts["pods"] += 1
        self.starts.append(time.monotonic() - began)
        if cut_after is None:
            yield Wait(f"pod {name} ends", lambda w: self._is_over(w, name))
            if _phase(self.world, name) == "Succeeded":
                volume.origins.append(volume.name)
        else:
            self.counts["cut short"] += 1
            yield from self._sleep(f"pod {name} is left alone", cut_after)
        self._judge(name)
        yield from self._do(f"deleting pod {name}", self.cluster.delete, f"{objects.PODS}/{name}")
        yield Wait(f"pod {name} is gone", lambda w: name not in w.pods)

    def _is_over(self, world, name):
        return _phase(world, name) in ("Succeeded", "Failed", "Gone") or _verdicts(world, name)

    def _judge(self, name):
        pod = self.world.pods.get(name)
        if not pod:
            return self.fail(f"pod {name} vanished")
        for verdict in _verdicts(self.world, name):
            self.fail(f"pod {name}: {verdict}")
        if _phase(self.world, name) == "Failed":
            self.fail(f"pod {name} failed: {pod['status']}")
        for status in pod["status"].get("containerStatuses", []):
            if status["restartCount"]:
                self.counts["restarts"] += status["restartCount"]
                self._explain_restart(name, status.get("lastState", {}).get("terminated", {}))

    def _explain_restart(self, name, end):
        """A container that was being made may die with containerd, before its script runs, and
        then has no message; the script itself never ends but healthy, or by a verdict that is
        already reported."""
        code, reason = end.get("exitCode"), end.get("reason")
        why = f"{reason}, code {code}"
        self.restarts[why] = self.restarts.get(why, 0) + 1
        message = end.get("message")
        if code in range(1, 42) and message:
            self.fail(f"pod {name}: its script ended with {code}: {message}")

    def fail(self, text):
        self.failures.append(text)
        self.log("FAILURE: " + text)

    def _grow(self, volume):
        """The next pod must find the room; a filesystem is grown when it is next staged."""
        self.counts["expansions"] += 1
        volume.size_mib, volume.grown = volume.size_mib * 2, True
        body = {"spec": {"resources": {"requests": {"storage": f"{volume.size_mib}Mi"}}}}
        path = f"{objects.CLAIMS}/{volume.name}"
        yield from self._do(f"growing {volume.name}", self.cluster.patch, path, body)
        yield Wait(f"the device of {volume.name} grows", lambda w: _is_grown(w, volume))

    def _copy(self, volume, number, chance):
        """A restore of a snapshot, or a clone, holds what its source held; then it is deleted."""
        twin = Volume(f"{volume.name}-c{number}", volume.kind, volume.size_mib, volume.origins)
        source, taken = objects.from_claim(volume.name), None
        if chance.random() < 0.7:
            taken = f"{volume.name}-s{number}"
            self.counts["snapshots"] += 1
            body = objects.snapshot(taken, volume.name)
            yield from self._do(f"snapshot {taken}", self.cluster.create, objects.SNAPSHOTS, body)
            yield Wait(f"snapshot {taken} is ready", lambda w: _is_taken(w, taken))
            source = objects.from_snapshot(taken)
        else:
            self.counts["clones"] += 1
        yield from self._claim(twin, source)
        yield from self._pod(twin, 0, chance)
        if taken:
            path = f"{objects.SNAPSHOTS}/{taken}"
            yield from self._do(f"deleting snapshot {taken}", self.cluster.delete, path)
        yield from self._unclaim(twin)
        yield Wait(f"snapshot {taken} is gone", lambda w: taken not in w.copies)


def _phase(world, name):
    return world.pods[name]["status"].get("phase", "Pending") if name in world.pods else "Gone"


def _verdicts(world, name):
    """What the pod's script itself found wrong, also before a restart of its container."""
    statuses = world.pods.get(name, {}).get("status", {}).get("containerStatuses", [])
    ends = [status.get(state, {}).get("terminated") for status in statuses
            for state in ("state", "lastState")]
    return {end.get("message", "no message").strip() for end in ends
            if end and end["exitCode"] in (FOUND_WRONG, FAILED_WRITE)}


def _is_grown(world, volume):
    """The controller's part is done; the node's part waits for a pod."""
    status = world.claims.get(volume.name, {}).get("status", {})
    conditions = [condition["type"] for condition in status.get("conditions", [])]
    capacity = status.get("capacity", {}).get("storage")
    return "FileSystemResizePending" in conditions or capacity == f"{volume.size_mib}Mi"


def _is_taken(world, name):
    return world.copies.get(name, {}).get("status", {}).get("readyToUse")
