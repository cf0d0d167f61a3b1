"""Runs all tests of the package and ends with the line by which ./check counts: `test result: ok. N passed; N failed; N ignored`.

    python tests/run.py                     every class of tests, several side by side, each in a process of its own
    python tests/run.py test_calls.CallRules  these classes, in this process

Most tests wait for leases of seconds and for processes, so running them one after the other takes much longer than the work they do.
A class is the unit because the tests of a class may share a server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
AT_ONCE = 2 * (os.cpu_count() or 1)
LONG = ("test_crashes", "test_agent_crashes", "test_agent", "test_calls")
"""Modules with classes that take tens of seconds. They start first, so that none of them is left alone at the end."""
RESULTS = "TENURE_PY_RESULTS"
"""The variable by which a process learns the file for its counts."""


class Timed(unittest.TextTestResult):
    """Prints how long each test took, in the form that scripts/test-report reads."""

    def startTest(self, test: unittest.TestCase) -> None:
        self.began = time.monotonic()
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        print(f"        DONE [{time.monotonic() - self.began:8.3f}s] python {test.id()}", flush=True)


def run_here(names: list[str]) -> tuple[int, int, int]:
    """Passed, failed, skipped."""
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout, resultclass=Timed).run(suite)
    broken = {str(test) for test, _ in (*result.failures, *result.errors)}
    failed, skipped = len(broken) + len(result.unexpectedSuccesses), len(result.skipped)
    return max(0, result.testsRun - failed - skipped), failed, skipped


def run_beside(name: str, directory: str) -> tuple[int, int, int]:
    """The same in a process of its own. Its output is printed when it ends."""
    counts = Path(directory) / name
    ended = subprocess.run(
        [sys.executable, __file__, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, RESULTS: str(counts)},
    )
    sys.stdout.write(ended.stdout.decode(errors="replace"))
    sys.stdout.flush()
    if not counts.exists():
        print(f"{name} ended with {ended.returncode} before its last test", flush=True)
        return 0, 1, 0
    passed, failed, skipped = json.loads(counts.read_text())
    return passed, failed, skipped


def classes() -> list[str]:
    """The names of all classes that have tests. A module that cannot be loaded is there as itself, and fails when it is run."""
    found: dict[str, None] = {}
    waiting: list[unittest.TestSuite | unittest.TestCase] = [unittest.defaultTestLoader.discover(str(HERE), top_level_dir=str(HERE))]
    while waiting:
        for test in waiting.pop(0):  # type: ignore[union-attr]
            if isinstance(test, unittest.TestSuite):
                waiting.append(test)
            elif type(test).__module__ == "unittest.loader":
                found[test.id().rpartition(".")[2]] = None
            else:
                found[f"{type(test).__module__}.{type(test).__qualname__}"] = None
    order = {module: place for place, module in enumerate(LONG)}
    return sorted(found, key=lambda name: order.get(name.partition(".")[0], len(LONG)))


def main(names: list[str]) -> int:
    began = time.monotonic()
    sys.path.insert(0, str(HERE))
    if names:
        counts = [run_here(names)]
    else:
        with tempfile.TemporaryDirectory(prefix="tenure-py-counts-") as directory, ThreadPoolExecutor(AT_ONCE) as pool:
            counts = list(pool.map(lambda name: run_beside(name, directory), classes()))
    passed, failed, skipped = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0, 0)
    if file := os.environ.get(RESULTS):
        Path(file).write_text(json.dumps([passed, failed, skipped]))
        return 0 if failed == 0 else 1
    # A suite that found nothing is a broken suite.
    fine = failed == 0 and passed > 0
    word = "ok" if fine else "FAILED"
    print(f"test result: {word}. {passed} passed; {failed} failed; {skipped} ignored; in {time.monotonic() - began:.1f} s", flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
