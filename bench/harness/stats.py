"""Medians, spreads and ratios of what was written down."""

import json
from pathlib import Path
from statistics import median

from .plan import Case, aims

MEASURES = ("per_second", "p50_ms", "p99_ms", "peak_mb", "service_peak_mb")


class Results:
    """The lines of a raw file."""

    def __init__(self, lines):
        self.lines = lines
        self.values = {}  # (case key, contender, measure) -> {round: value}
        for line in self.of("result"):
            case = Case(line["group"], line["steps"], line["concurrency"])
            for measure in MEASURES:
                if line.get(measure) is not None:
                    self.values.setdefault((case.key, line["contender"], measure), {})[line["round"]] = line[measure]

    @classmethod
    def read(cls, path):
        return cls([json.loads(line) for line in Path(path).read_text().splitlines() if line])

    def of(self, kind):
        return [line for line in self.lines if line["kind"] == kind]

    def run(self):
        return self.of("run")[0]

    def rounds(self, case, contender, measure):
        return self.values.get((case.key, contender, measure), {})

    def summary(self, case, contender, measure):
        """(median, least, most, rounds), or None."""
        found = list(self.rounds(case, contender, measure).values())
        return (median(found), min(found), max(found), len(found)) if found else None

    def ratio(self, case, ours, peer, measure, small_is_good=False):
        """(ratio of the medians, least and most ratio of one round), or None. Above 1 is always good for ours."""
        a, b = self.rounds(case, ours, measure), self.rounds(case, peer, measure)
        if not a or not b:
            return None
        if small_is_good:
            a, b = b, a
        if median(b.values()) == 0:
            return None  # the peer completed nothing in the window: there is no ratio
        both = [a[r] / b[r] for r in a if r in b and b[r]]
        whole = median(a.values()) / median(b.values())
        return (whole, min(both, default=whole), max(both, default=whole))

    def verdicts(self):
        """(aim, verdict, ratio): met, missed or not measured."""
        for aim in aims():
            ratio = self.ratio(aim.case, aim.ours, aim.peer, aim.metric, aim.small_is_good)
            verdict = "not measured" if ratio is None else "met" if ratio[0] >= aim.factor else "missed"
            yield aim, verdict, ratio

    def noise(self):
        """What speaks against the figures."""
        found = []
        syncs = [line["fdatasync_per_second"] for line in self.of("probe")]
        if syncs and max(syncs) > 2 * min(syncs):
            found.append(f"a durable write cost between {1e3 / max(syncs):.2f} and {1e3 / min(syncs):.2f} ms over the rounds")
        busy = [line["busy_before"] for line in self.of("result") if line.get("busy_before") is not None]
        if busy and median(busy) > 0.15:
            found.append(f"something else used {median(busy):.0%} of the processors (median of what was seen before each case)")
        elif busy and (over := [b for b in busy if b > 0.3]):
            found.append(f"before {len(over)} of {len(busy)} cases something else used more than 30 % of the processors")
        counts = {line["contender"]: 0 for line in self.of("result")}
        if counts and len({line["round"] for line in self.of("result")}) < 3:
            found.append("fewer than three rounds: the medians are hardly more than single values")
        return found
