"""The package as it is installed."""

from __future__ import annotations

import importlib.metadata
import unittest
from pathlib import Path

import tenure


class Package(unittest.TestCase):
    def test_everything_that_is_promised_is_there(self) -> None:
        for name in tenure.__all__:
            self.assertTrue(hasattr(tenure, name), name)

    def test_it_says_that_it_is_typed(self) -> None:
        self.assertTrue((Path(tenure.__file__).parent / "py.typed").exists())

    def test_the_installed_version_is_the_one_it_says(self) -> None:
        try:
            said = importlib.metadata.version("tenure")
        except importlib.metadata.PackageNotFoundError:
            self.skipTest("runs from the sources, not installed: sdk/python/check installs it")
        self.assertEqual(said, tenure.__version__)


if __name__ == "__main__":
    unittest.main()
