"""Runs all tests of the package and ends with the line by which ./check counts: `test result: ok. N passed; N failed; N ignored`."""

from __future__ import annotations

import sys
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    began = time.monotonic()
    sys.path.insert(0, str(HERE))
    suite = unittest.defaultTestLoader.discover(str(HERE), top_level_dir=str(HERE))
    result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout).run(suite)
    broken = {str(test) for test, _ in (*result.failures, *result.errors)}
    failed, skipped = len(broken) + len(result.unexpectedSuccesses), len(result.skipped)
    passed = max(0, result.testsRun - failed - skipped)
    # A suite that found nothing is a broken suite.
    fine = result.wasSuccessful() and passed > 0
    word = "ok" if fine else "FAILED"
    print(f"test result: {word}. {passed} passed; {failed} failed; {skipped} ignored; in {time.monotonic() - began:.1f} s", flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
