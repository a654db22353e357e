"""Prometheus text, read as far as histograms and their differences need it."""
import collections
import math
import re

_LINE = re.compile(r'^(\w+)(?:\{(.*)\})? (\S+)$')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse(text):
    """[(name, labels, value)] of every sample."""
    samples = []
    for line in text.splitlines():
        found = _LINE.match(line)
        if found:
            labels = dict(_LABEL.findall(found.group(2) or ""))
            samples.append((found.group(1), labels, float(found.group(3))))
    return samples


class Histogram:
    """How often, how long in all, and how many took at most so long."""

    def __init__(self):
        self.count, self.sum, self.buckets = 0.0, 0.0, collections.Counter()

    def add(self, other, sign=1):
        self.count += sign * other.count
        self.sum += sign * other.sum
        for bound, value in other.buckets.items():
            self.buckets[bound] += sign * value

    def mean(self):
        return self.sum / self.count if self.count else 0.0

    def quantile(self, part):
        """As Prometheus does it: linear inside the bucket; beyond all, the last bound."""
        below, before, rank = 0.0, 0.0, part * self.count
        for bound in sorted(self.buckets):
            here = self.buckets[bound]
            if here >= rank and here > before:
                if math.isinf(bound):
                    return below
                return below + (bound - below) * (rank - before) / (here - before)
            below, before = bound, here
        return below


def histograms(text, name, key):
    """{key of the labels: Histogram}; a key of None leaves the sample out."""
    found = collections.defaultdict(Histogram)
    for sample, labels, value in parse(text):
        if not sample.startswith(name + "_"):
            continue
        kind, place = sample[len(name) + 1:], key(labels)
        if place is None or kind not in ("count", "sum", "bucket"):
            continue
        if kind == "bucket":
            found[place].buckets[float(labels["le"])] += value
        else:
            setattr(found[place], kind, getattr(found[place], kind) + value)
    return found


def since(before, after):
    """The differences between two reads; unchanged metrics are left out."""
    added = {}
    for key, late in after.items():
        change = Histogram()
        change.add(late)
        if key in before:
            change.add(before[key], -1)
        if change.count:
            added[key] = change
    return added
