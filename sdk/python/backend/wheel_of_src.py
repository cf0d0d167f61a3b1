"""A build backend (PEP 517, PEP 660) for one pure package under src/, with the standard library alone.

A stock backend would have to be downloaded before anything could be built, also by whoever has no network. What it
would do for a package without dependencies and without compiled code is this: zip the files, say what they are.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TAG = "py3-none-any"


def _field(name: str) -> str:
    # tomllib comes with 3.11 only; these are plain strings on lines of their own.
    found = re.search(rf'^{re.escape(name)} = "([^"]*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    if found is None:
        raise ValueError(f"pyproject.toml has no line {name} = \"…\"")
    return found.group(1)


def _full_name() -> str:
    return f"{_field('name')}-{_field('version')}"


def _metadata() -> str:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return (
        "Metadata-Version: 2.1\n"
        f"Name: {_field('name')}\nVersion: {_field('version')}\nSummary: {_field('description')}\n"
        f"License: Apache-2.0\nRequires-Python: {_field('requires-python')}\n"
        f"Description-Content-Type: text/markdown\n\n{readme}"
    )


def _package_files() -> list[Path]:
    files = (ROOT / "src").rglob("*")
    return sorted(f for f in files if f.is_file() and "__pycache__" not in f.parts)


def _write_wheel(directory: str, files: dict[str, bytes]) -> str:
    info = f"{_full_name()}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: wheel_of_src\nRoot-Is-Purelib: true\nTag: {TAG}\n"
    files = {**files, f"{info}/METADATA": _metadata().encode(), f"{info}/WHEEL": wheel.encode()}
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(content)])
    rows.writerow([f"{info}/RECORD", "", ""])
    files[f"{info}/RECORD"] = record.getvalue().encode()
    file_name = f"{_full_name()}-{TAG}.whl"
    with zipfile.ZipFile(Path(directory) / file_name, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files.items():
            # A fixed moment: the same sources are the same wheel.
            entry = zipfile.ZipInfo(name, date_time=(2020, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            out.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return file_name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):  # type: ignore[no-untyped-def]
    """The package as a wheel."""
    src = ROOT / "src"
    return _write_wheel(wheel_directory, {f.relative_to(src).as_posix(): f.read_bytes() for f in _package_files()})


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):  # type: ignore[no-untyped-def]
    """A wheel that points here: `pip install -e`."""
    return _write_wheel(wheel_directory, {f"{_field('name')}.pth": f"{ROOT / 'src'}\n".encode()})


def build_sdist(sdist_directory, config_settings=None):  # type: ignore[no-untyped-def]
    """The sources, from which the same wheel can be built."""
    top, file_name = _full_name(), f"{_full_name()}.tar.gz"
    files = [ROOT / "pyproject.toml", ROOT / "README.md", Path(__file__).resolve(), *_package_files()]
    with tarfile.open(Path(sdist_directory) / file_name, "w:gz") as out:
        for file in files:
            out.add(file, f"{top}/{file.relative_to(ROOT).as_posix()}")
        said = _metadata().encode()
        entry = tarfile.TarInfo(f"{top}/PKG-INFO")
        entry.size = len(said)
        out.addfile(entry, io.BytesIO(said))
    return file_name
