"""Rules of the fault proxy: which requests they match, and what is done to them.

A rule is a JSON object. Matching, all optional: `service` (keystone, cinder, nova), `method`,
`path` (a regular expression, searched in path and query), `skip` (so many matches pass first),
`times` (so many matches, then the rule is done). `action` is one of ACTIONS.
"""
import re
import time

# Action: its own members, and their defaults.
ACTIONS = {
    # The proxy answers; the service sees nothing.
    "answer": {"status": 503, "retry_after": None, "body": "{}"},
    # More than so many a second are answered with 429. All matches share the tokens.
    "rate": {"per_second": 20.0, "burst": 20, "retry_after": 1, "status": 429},
    # The connection is closed before the service gets the request, or after it has answered.
    "cut_before": {},
    "cut_after": {},
    # A pause before the request is passed on, and one before its answer is.
    "slow": {"before_seconds": 0.0, "after_seconds": 0.0},
    # So many bytes of the body arrive, then the connection is closed.
    "truncate": {"bytes": 10},
    # The last answer of this method and path is sent again, without a call of the service.
    "stale": {},
    # The service gets the request twice, as from a balancer that retries; the second answer counts.
    "twice": {},
}
MATCHING = {"service": None, "method": None, "path": None, "skip": 0, "times": None}
IDS = re.compile(r"(?<=/)(?:[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?=/|$)")


class Wrong(ValueError):
    """A rule that cannot be obeyed."""


class Rule:
    """One rule, and how often it has matched."""

    def __init__(self, document):
        action = document.get("action")
        if action not in ACTIONS:
            raise Wrong(f"action {action!r} is none of {' '.join(ACTIONS)}")
        known = {**MATCHING, **ACTIONS[action]}
        unknown = set(document) - set(known) - {"action"}
        if unknown:
            raise Wrong(f"{action} has no member {' '.join(sorted(unknown))}")
        self.document, self.action = document, action
        self.members = {**known, **document}
        self.path = re.compile(self.members["path"] or "")
        self.matched = self.applied = 0
        self.tokens = float(self.members.get("burst", 0))
        self.filled = None

    def __getitem__(self, name):
        return self.members[name]

    def applies(self, service, method, target, now=None):
        """Does it act on this request? Counts it."""
        if self["service"] not in (None, service) or self["method"] not in (None, method):
            return False
        if not self.path.search(target):
            return False
        self.matched += 1
        if self.matched <= self["skip"]:
            return False
        if self["times"] is not None and self.applied >= self["times"]:
            return False
        if self.action == "rate" and self._has_token(time.monotonic() if now is None else now):
            return False
        self.applied += 1
        return True

    def _has_token(self, now):
        if self.filled is not None:
            gained = (now - self.filled) * self["per_second"]
            self.tokens = min(float(self["burst"]), self.tokens + gained)
        self.filled = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    def report(self):
        return {**self.document, "matched": self.matched, "applied": self.applied}


def pattern(target):
    """A path for counting: ids are replaced, of the query only the names stay."""
    path, _, query = target.partition("?")
    names = sorted({part.partition("=")[0] for part in query.split("&") if part})
    return IDS.sub("{id}", path) + ("?" + "&".join(names) if names else "")
