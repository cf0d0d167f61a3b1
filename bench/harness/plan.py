"""What is run against what, and what it is held to."""

from dataclasses import dataclass

OURS = "tenure"  # names of ours begin so


@dataclass(frozen=True)
class Case:
    group: str  # embedded, postgres or drain
    steps: int
    concurrency: int  # 0: there are no clients

    @property
    def title(self):
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        return f"{steps}, full queue" if self.group == "drain" else f"{steps}, {self.concurrency} clients"

    @property
    def key(self):
        return f"{self.group}/{self.steps}/{self.concurrency}"


@dataclass(frozen=True)
class Contender:
    name: str
    title: str
    durability: str
    needs: tuple = ()  # families of install.py


SQLITE = "SQLite, WAL, synchronous=FULL"
POSTGRES = "PostgreSQL, fsync and synchronous_commit on"
RESTATE = "its own log, every write synced (default)"

CONTENDERS = {c.name: c for c in (
    Contender("tenure", "Tenure, in process", SQLITE),
    Contender("tenure-http", "Tenure, HTTP + separate worker", SQLITE),
    Contender("tenure-postgres", "Tenure, in process", POSTGRES),
    Contender("tenure-drain", "Tenure", POSTGRES),
    Contender("restate-rust", "Restate, Rust service, a partition per core", RESTATE, ("npm", "cargo")),
    Contender("restate-default", "Restate, Rust service, as it comes", RESTATE, ("npm", "cargo")),
    Contender("restate-ts", "Restate, TypeScript service, a partition per core", RESTATE, ("npm", "cargo")),
    Contender("duroxide", "duroxide", "SQLite, WAL, synchronous=NORMAL (its only setting): weaker", ("cargo",)),
    Contender("temporal", "Temporal dev server, local activities", SQLITE + " (set so; default: rollback journal)", ("pip",)),
    Contender("dbos", "DBOS, direct start", POSTGRES, ("npm",)),
    Contender("absurd", "absurd", POSTGRES, ("npm", "pip")),
    Contender("graphile", "Graphile Worker as it comes", POSTGRES, ("npm",)),
    Contender("graphile-batched", "Graphile Worker, local queue + batched completion", POSTGRES, ("npm",)),
)}

@dataclass(frozen=True)
class Part:
    """Who runs in a case, in the order of the odd rounds: ours and the peers by turns. Even rounds run backwards, so
    that what drifts does not always meet the same one."""

    case: Case
    names: tuple
    more: tuple = ()  # only in the full run
    quick: bool = True  # part of the quick run at all
    sample: bool = False  # the quick run takes `more` along in its first round: once is enough to see where they stand


RESTATE_AND_OURS = ("tenure", "restate-rust", "tenure-http", "restate-default")
PLAN = (
    Part(Case("embedded", 1, 50), (*RESTATE_AND_OURS, "duroxide"), ("restate-ts", "temporal"), sample=True),
    Part(Case("embedded", 1, 200), (*RESTATE_AND_OURS, "duroxide"), ("restate-ts",)),
    Part(Case("embedded", 10, 50), RESTATE_AND_OURS, ("duroxide", "restate-ts", "temporal")),
    Part(Case("embedded", 10, 200), RESTATE_AND_OURS, quick=False),
    Part(Case("postgres", 1, 50), ("dbos", "tenure-postgres", "absurd")),
    Part(Case("postgres", 10, 50), ("dbos", "tenure-postgres", "absurd")),
    Part(Case("drain", 1, 0), ("graphile", "tenure-drain", "graphile-batched")),
)


def order(quick, number, only=()):
    """The (case, contender) pairs of a round."""
    for part in PLAN:
        if quick and not part.quick:
            continue
        names = part.names
        if not quick or (part.sample and number == 1):
            names += part.more
        if only:
            # Ours runs where one of its peers does: a figure of another day is nothing to compare with.
            peers = any(n in only for n in names if not n.startswith(OURS))
            names = [n for n in names if n in only or (peers and n.startswith(OURS))]
        yield from ((part.case, name) for name in (names if number % 2 else reversed(names)))


@dataclass(frozen=True)
class Aim:
    """ours / peer (or, for what should be small, peer / ours) must reach a factor."""

    name: str  # as in results/limits.json
    text: str
    case: Case
    ours: str
    peer: str
    factor: float
    metric: str = "per_second"
    stretch: bool = False

    @property
    def as_it_comes(self):
        """The same peer without our tuning, where there is one."""
        return "restate-default" if self.peer == "restate-rust" else None

    @property
    def small_is_good(self):
        return self.metric != "per_second"


def aims():
    for concurrency in (50, 200):
        one, ten = Case("embedded", 1, concurrency), Case("embedded", 10, concurrency)
        c = f"{concurrency} clients"
        yield Aim(f"restate-1-{concurrency}", f"1 step, {c}: at least 5x Restate", one, "tenure", "restate-rust", 5)
        for p in ("p50", "p99"):
            yield Aim(f"restate-{p}-{concurrency}", f"1 step, {c}: {p} at most half of Restate's", one, "tenure",
                      "restate-rust", 2, f"{p}_ms")
        yield Aim(f"restate-10-{concurrency}", f"10 steps, {c}: at least 4x Restate", ten, "tenure", "restate-rust", 4)
        yield Aim(f"http-1-{concurrency}", f"1 step, {c}, over HTTP with a separate worker: at least 2x Restate", one,
                  "tenure-http", "restate-rust", 2)
        yield Aim(f"http-10-{concurrency}", f"10 steps, {c}, over HTTP with a separate worker: at least 2x Restate", ten,
                  "tenure-http", "restate-rust", 2)
        yield Aim(f"duroxide-1-{concurrency}", f"1 step, {c}: at least 20x duroxide", one, "tenure", "duroxide", 20)
    for steps in (1, 10):
        case = Case("postgres", steps, 50)
        s = "1 step" if steps == 1 else f"{steps} steps"
        yield Aim(f"dbos-{steps}", f"PostgreSQL, {s}, 50 clients: at least 10x DBOS", case, "tenure-postgres", "dbos", 10)
        yield Aim(f"absurd-{steps}", f"PostgreSQL, {s}, 50 clients: at least 8x absurd", case, "tenure-postgres", "absurd", 8)
    drain = Case("drain", 1, 0)
    yield Aim("graphile", "PostgreSQL, full queue: at least 5x Graphile Worker as it comes", drain, "tenure-drain", "graphile", 5)
    yield Aim("graphile-batched", "stretch: not slower than Graphile Worker's batched mode", drain, "tenure-drain",
              "graphile-batched", 1, stretch=True)
    wide = Case("embedded", 1, 200)
    yield Aim("rss", "1 step, 200 clients: peak memory in process below that of Restate's server", wide, "tenure",
              "restate-rust", 1, "peak_mb")
    yield Aim("rss-http", "the same over HTTP, server, worker and clients added up", wide, "tenure-http", "restate-rust", 1,
              "peak_mb")
