"""RESULTS.md, from the raw file alone."""

import json

from . import plot
from .plan import CONTENDERS, OURS, PLAN
from .plot import number

INTRO = """\
# Results

Written by `bench/run` from [`raw.jsonl`](PLACEraw.jsonl); edits are lost. What was chosen for each peer,
how to read this, and what not to conclude from it: `bench/README.md`.
"""

HEADS = {
    "embedded": "## Embedded, and single nodes",
    "postgres": "## On PostgreSQL",
    "drain": "## Draining a full queue on PostgreSQL",
}
NOTES = {
    "embedded": "Ours is shown in process, and through HTTP with the worker in a process of its own, which is how Restate works.",
    "postgres": "One PostgreSQL, with its default settings; each case has a database of its own.",
    "drain": "{jobs:,} jobs are in the queue before a worker starts; the clock runs from the worker's start until the last one is\nread back as completed (Graphile Worker deletes what is completed: until the table is empty).",
}


def spread(summary, form=number):
    if summary is None:
        return "-"
    middle, least, most, rounds = summary
    return form(middle) if rounds == 1 else f"{form(middle)} ({form(least)} to {form(most)})"


def ms(value):
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def times(ratio):
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:,.0f}x"


def table(head, rows, right=()):
    rule = ["---:" if i in right else "---" for i in range(len(head))]
    lines = [head, rule, *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines)


def aims_section(results, limits):
    rows, counts = [], {"met": 0, "missed": 0, "not measured": 0}
    for aim, verdict, ratio in results.verdicts():
        counts[verdict] += 1
        seen = "-" if ratio is None else f"{times(ratio[0])} ({times(ratio[1])} to {times(ratio[2])})"
        plain = aim.as_it_comes and results.ratio(aim.case, aim.ours, aim.as_it_comes, aim.metric, aim.small_is_good)
        why = limits.get(aim.name, "not looked for yet") if verdict == "missed" else ""
        rows.append((aim.text, f"**{verdict}**" if verdict == "missed" else verdict, seen, times(plain[0]) if plain else "", why))
    said = ", ".join(f"{n} {what}" for what, n in counts.items() if n)
    text = (
        "Each is a ratio of medians of this one run, the least and the most of a single round in brackets; above 1 is in our\n"
        "favour, also where small is good (there it is theirs divided by ours). Peers are judged in the best way that we found\n"
        "to run them; where that is not how they come, the ratio to how they come stands beside it and judges nothing."
    )
    return f"## The aims: {said}\n\n{text}\n\n" + table(["aim", "verdict", "ratio", "as it comes", "what limits it"], rows, {2, 3})


def group_section(results, group):
    blocks = [HEADS[group], NOTES[group].format(**results.run())]
    for case in (part.case for part in PLAN):
        if case.group != group:
            continue
        rows = []
        best = {n: results.summary(case, n, "per_second") for n in CONTENDERS}
        ours = [n for n, s in best.items() if s and n.startswith(OURS)]
        for name, rate in best.items():
            if rate is None:
                continue
            ratios = []
            for mine in ours if not name.startswith(OURS) else []:
                if ratio := results.ratio(case, mine, name, "per_second"):
                    ratios.append(times(ratio[0]))
            row = [CONTENDERS[name].title, spread(rate)]
            if group != "drain":
                row += [spread(results.summary(case, name, m), ms) for m in ("p50_ms", "p99_ms")]
            rows.append([*row, " / ".join(ratios), rate[3]])
        if rows:
            latency = [] if group == "drain" else ["p50, ms", "p99, ms"]
            against = "ours is" + (" (in process / HTTP)" if len(ours) > 1 else "")
            head = ["", "completed per second", *latency, against, "rounds"]
            blocks += [f"### {case.title[0].upper()}{case.title[1:]}", table(head, rows, set(range(1, len(head))))]
    return "\n\n".join(blocks) if len(blocks) > 2 else ""


def memory_section(results):
    rows = []
    for case in (part.case for part in PLAN):
        if case.group != "embedded" or case.concurrency != 200:
            continue
        for name in CONTENDERS:
            if peak := results.summary(case, name, "peak_mb"):
                service = results.summary(case, name, "service_peak_mb")
                rows.append([case.title, CONTENDERS[name].title, spread(peak), spread(service) if service else ""])
    if not rows:
        return ""
    note = (
        "The kernel's high-water mark (VmHWM) of every process, added up. Ours holds the load generator and, over HTTP, the\n"
        "worker too, and what the suite does after the window: it reads every job back, then measures signals. Restate's is its\n"
        "server alone; its service is beside it. duroxide's holds its load generator. The number of clients is the same, the\n"
        "number of jobs is not: whoever is faster has done, and keeps the history of, more."
    )
    return f"## Peak memory\n\n{note}\n\n" + table(["", "", "peak, MB", "its service, MB"], rows, {2, 3})


def noise_section(results):
    blocks = ["## How quiet the machine was"]
    if found := results.noise():
        blocks.append("**Take these figures with care:** " + "; ".join(found) + ".")
    else:
        blocks.append("Nothing was seen that speaks against these figures.")
    rows = []
    for probe in results.of("probe"):
        mine = [line for line in results.of("result") if line["round"] == probe["round"]]
        busy = [line["busy_before"] for line in mine] or [0]
        load = [line["load_before"] for line in mine] or [0]
        rows.append([probe["round"], f"{probe['fdatasync_per_second']:,}", f"{max(busy):.0%}", f"{min(load):.1f} to {max(load):.1f}"])
    head = ["round", "4 KiB fdatasync per second", "processors in use before a case, at most", "load average before a case"]
    blocks.append(table(head, rows, {1, 2, 3}))
    blocks.append("The load average holds what the case before has left in it; the processors were looked at while the benchmark did nothing.")
    return "\n\n".join(blocks)


def failures_section(results):
    rows = [[f["round"], f["attempt"], CONTENDERS[f["contender"]].title, f["case"], f["why"][:400]] for f in results.of("failure")]
    absent = [[CONTENDERS[a["contender"]].title, a["why"][:400]] for a in results.of("absent")]
    blocks = []
    if rows:
        blocks += ["## What failed", "A case that fails is run once more; one that fails twice has no result.",
                   table(["round", "attempt", "", "case", "why"], rows)]
    if absent:
        blocks += ["## What could not be had", table(["", "why"], absent)]
    return "\n\n".join(blocks)


def settings_section(results):
    run = results.run()
    box = run["machine"]
    lines = [
        "## Machine, versions, settings",
        f"{box['cpu']}, {box['cores']} cores, {box['memory_gib']} GiB, Linux {box['kernel']}, data on {box['filesystem']}. "
        "Load generator, engine and database share the machine.",
        f"Begun {run['started']}, {run['rounds']} round{'s' * (run['rounds'] != 1)}{' (quick)' if run['quick'] else ''}, {run['seconds']:g} s per case after "
        f"a warm-up of {run['warmup']:g} s (ours: a fifth of the window), {run['jobs']:,} jobs to drain.",
        table(["", "version"], sorted(run["versions"].items())),
    ]
    shown = {line["contender"] for line in results.of("result")}
    rows = [[c.title, c.durability] for c in CONTENDERS.values() if c.name in shown]
    lines.append(table(["", "durability"], list(dict.fromkeys(map(tuple, rows)))))
    if run.get("notes"):
        lines.append("\n".join(f"- {note}" for note in run["notes"]))
    lines.append(f"To run it again: `{run['command']}`.")
    return "\n\n".join(lines)


def markdown(results, limits, own="", place=""):
    """`place` is where the raw file and the figure are, seen from the page."""
    sections = [
        INTRO.strip().replace("PLACE", place),
        aims_section(results, limits),
        f"![Completed work per second]({place}plot.svg)",
        *(group_section(results, group) for group in HEADS),
        memory_section(results),
        "## Our other aims, without peers\n\n" + (own.strip() or "Not measured in this run."),
        noise_section(results),
        failures_section(results),
        settings_section(results),
    ]
    return "\n\n".join(s for s in sections if s) + "\n"


def write(results, directory, page):
    """The page and its figure. `own.md` and `limits.json` in the directory are written by others."""
    own, limits = directory / "own.md", directory / "limits.json"
    known = json.loads(limits.read_text()) if limits.exists() else {}
    (directory / "plot.svg").write_text(plot.svg(results))
    place = "" if page.parent == directory else f"{directory.relative_to(page.parent)}/"
    page.write_text(markdown(results, known, own.read_text() if own.exists() else "", place))
