#!/usr/bin/env python3
"""Tests of the runner itself: its arithmetic, its order, its page. Nothing is installed or measured here."""

import json
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as ET
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import plan, plot, render  # noqa: E402
from harness.contenders import HOW, checked, drained, last_json  # noqa: E402
from harness.install import SOURCES, need  # noqa: E402
from harness.processes import Failed, Memory, Process, members, run  # noqa: E402
from harness.stats import Results  # noqa: E402

WIDE = plan.Case("embedded", 1, 50)


def result(contender, number, per_second, case=WIDE, **more):
    return {"kind": "result", "contender": contender, "round": number, "group": case.group, "steps": case.steps,
            "concurrency": case.concurrency, "per_second": per_second, "busy_before": 0.01, "load_before": 0.5, **more}


def lines():
    found = [{
        "kind": "run", "started": "2026-01-01 00:00 UTC", "rounds": 3, "quick": True, "seconds": 2.0, "warmup": 1.0,
        "jobs": 10000, "versions": {"Tenure": "0.1.0"}, "notes": [], "command": "bench/run --quick",
        "machine": {"cpu": "abacus", "cores": 2, "memory_gib": 24, "kernel": "6", "filesystem": "ext4"},
    }]
    for number, (ours, theirs) in enumerate([(9000, 1000), (8000, 2000), (10000, 1000)], 1):
        found.append({"kind": "probe", "round": number, "fdatasync_per_second": 8000 + number})
        found.append(result("tenure", number, ours, p50_ms=5.0, p99_ms=20.0 + number))
        found.append(result("restate-rust", number, theirs, p50_ms=50.0, p99_ms=40.0))
    return found


class Arithmetic(unittest.TestCase):
    def setUp(self):
        self.results = Results(lines())

    def test_medians_and_spread(self):
        self.assertEqual(self.results.summary(WIDE, "tenure", "per_second"), (9000, 8000, 10000, 3))
        self.assertIsNone(self.results.summary(WIDE, "dbos", "per_second"))

    def test_a_ratio_is_of_medians_and_its_spread_of_rounds(self):
        self.assertEqual(self.results.ratio(WIDE, "tenure", "restate-rust", "per_second"), (9.0, 4.0, 10.0))

    def test_small_is_good(self):
        ratio = self.results.ratio(WIDE, "tenure", "restate-rust", "p50_ms", small_is_good=True)
        self.assertEqual(ratio, (10.0, 10.0, 10.0))

    def test_nothing_is_no_divisor(self):
        results = Results([*lines()[:1], result("tenure", 1, 10), result("temporal", 1, 0)])
        self.assertIsNone(results.ratio(WIDE, "tenure", "temporal", "per_second"))

    def test_verdicts(self):
        verdicts = {aim.name: verdict for aim, verdict, _ in self.results.verdicts()}
        self.assertEqual(verdicts["restate-1-50"], "met")
        self.assertEqual(verdicts["restate-p99-50"], "missed")  # 22 ms is more than half of 40
        self.assertEqual(verdicts["dbos-1"], "not measured")

    def test_a_quiet_machine_is_not_complained_of(self):
        self.assertEqual(self.results.noise(), [])

    def test_a_busy_machine_is(self):
        busy = [{**line, "busy_before": 0.9} if line["kind"] == "result" else line for line in lines()]
        self.assertIn("90%", self.results.__class__(busy).noise()[0])
        slow = [{**line, "fdatasync_per_second": 100 ** line["round"]} if line["kind"] == "probe" else line for line in lines()]
        self.assertIn("durable write", Results(slow).noise()[0])


class Order(unittest.TestCase):
    def test_even_rounds_run_backwards(self):
        first = [name for case, name in plan.order(False, 1) if case == WIDE]
        second = [name for case, name in plan.order(False, 2) if case == WIDE]
        self.assertEqual(second, first[::-1])

    def test_ours_runs_beside_what_was_asked_for(self):
        found = {(case.key, name) for case, name in plan.order(False, 1, ["dbos"])}
        self.assertEqual(found, {(f"postgres/{s}/50", n) for s in (1, 10) for n in ("dbos", "tenure-postgres")})

    def test_everybody_can_be_run_and_is(self):
        self.assertEqual(set(HOW), set(plan.CONTENDERS))
        self.assertEqual({name for _, name in plan.order(False, 1)}, set(plan.CONTENDERS))

    def test_the_quick_run_looks_once_at_what_is_slow(self):
        first, second = ({name for _, name in plan.order(True, number)} for number in (1, 2))
        self.assertEqual(first - second, {"restate-ts", "temporal"})

    def test_every_aim_is_part_of_the_full_run_and_has_a_name_of_its_own(self):
        ran = {(case.key, name) for case, name in plan.order(False, 1)}
        aims = list(plan.aims())
        for aim in aims:
            self.assertIn((aim.case.key, aim.ours), ran)
            self.assertIn((aim.case.key, aim.peer), ran)
        self.assertEqual(len({aim.name for aim in aims}), len(aims))

    def test_limits_are_of_aims(self):
        file = HERE / "results/limits.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        self.assertLessEqual(set(known), {aim.name for aim in plan.aims()})


class Page(unittest.TestCase):
    def test_the_page(self):
        failure = {"kind": "failure", "round": 1, "attempt": 1, "contender": "dbos", "case": "postgres: 1 step", "why": "a | b\nc"}
        absent = {"kind": "absent", "contender": "temporal", "why": "no such package"}
        page = render.markdown(Results([*lines(), failure, absent]), {"restate-p99-50": "the disk"}, "### Start\n\n3 ms")
        for text in ("| 9,000 (8,000 to 10,000) |", "9.00x (4.00x to 10x)", "**missed**", "the disk", "3 ms",
                     "a \\| b c", "no such package", "abacus", "8,001", "`bench/run --quick`"):
            self.assertIn(text, page)
        for line in page.splitlines():
            self.assertFalse(line.startswith("|") and not line.endswith("|"), line)

    def test_the_figure_is_a_picture(self):
        root = ET.fromstring(plot.svg(Results(lines())))
        kinds = [e.get("class") for e in root.iter() if e.tag.endswith("rect")]
        self.assertEqual(kinds, ["ours", "peer"])
        widths = [float(e.get("width")) for e in root.iter() if e.tag.endswith("rect")]
        self.assertAlmostEqual(widths[0] / widths[1], 9.0, places=1)  # linear, from zero

    def test_written_files(self):
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory)
            (out / "own.md").write_text("Ours alone.")
            render.write(Results(lines()), out, out / "RESULTS.md")
            self.assertIn("Ours alone.", (out / "RESULTS.md").read_text())
            self.assertIn("](plot.svg)", (out / "RESULTS.md").read_text())
            (out / "inner").mkdir()
            render.write(Results(lines()), out / "inner", out / "RESULTS.md")
            self.assertIn("](inner/plot.svg)", (out / "RESULTS.md").read_text())
            self.assertTrue((out / "plot.svg").exists())


class Reading(unittest.TestCase):
    def test_nothing_counts_that_is_not_read_back(self):
        self.assertEqual(checked({"completed": 3, "read_back": 3})["completed"], 3)
        with self.assertRaises(Failed):
            checked({"completed": 3, "read_back": 2})

    def test_a_result_among_other_lines(self):
        self.assertEqual(last_json('hello\n{"a": 1}\n'), {"a": 1})
        with self.assertRaises(Failed):
            last_json("hello")

    def test_both_ways_to_print_a_drain(self):
        whole = '{"suite":"drain","jobs":10,"seconds":2,"per_second":5}'
        parts = '{"suite":"drain","case":"jobs=10","metric":"per_second","value":5,"unit":"1/s"}'
        for out in (whole, parts):
            self.assertEqual(drained(out, 10)["per_second"], 5)
        with self.assertRaises(Failed):
            drained(whole, 20)


class Processes(unittest.TestCase):
    def test_all_of_a_session_is_ended(self):
        with tempfile.TemporaryDirectory() as directory:
            with Process(["sh", "-c", "sleep 60 & sleep 60"], Path(directory) / "log") as process:
                while len(members(process.pid)) < 2:
                    time.sleep(0.01)
            self.assertEqual(members(process.pid), [])

    def test_a_failure_says_what_was_said(self):
        with tempfile.TemporaryDirectory() as directory:
            log = Path(directory) / "log"
            with self.assertRaisesRegex(Failed, "(?s)exit code 3.*no luck"):
                run(["sh", "-c", "echo no luck >&2; exit 3"], log, 10)
            with self.assertRaisesRegex(Failed, "(?s)no end after.*still there: .*sleep"):
                run(["sleep", "60"], log, 0.1)
            with self.assertRaisesRegex(Failed, "not there"):
                run(["/no/such/program"], log, 1)

    def test_memory_is_seen(self):
        with tempfile.TemporaryDirectory() as directory, Memory() as memory:
            run([sys.executable, "-c", "import time; time.sleep(0.8)"], Path(directory) / "log", 10, memory=memory)
        self.assertGreater(memory.megabytes()["load"], 1)


class Needs(unittest.TestCase):
    def test_what_is_missing_is_said_with_what_to_do(self):
        with self.assertRaisesRegex(Failed, "no-such-program not found: install it"):
            need("no-such-program", "install it")


class Pins(unittest.TestCase):
    def test_versions_are_exact_and_no_lock_file_says_where_from(self):
        packages = json.loads((SOURCES / "node/package.json").read_text())
        for version in [*packages["dependencies"].values(), *packages["optionalDependencies"].values()]:
            self.assertRegex(version, r"^\d+\.\d+\.\d+$")
        lock = json.loads((SOURCES / "node/package-lock.json").read_text())
        self.assertFalse([name for name, entry in lock["packages"].items() if "resolved" in entry])
        for line in (SOURCES / "python/requirements.txt").read_text().splitlines():
            self.assertRegex(line, r"^(#.*|[\w-]+==[\d.]+)$")


if __name__ == "__main__":
    unittest.main()
