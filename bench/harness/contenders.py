"""Who runs, and how one case of each is run. Every case begins with an empty store; see bench/README.md for what was
chosen for each peer, and why."""

import json
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from . import install, machine
from .processes import Failed, Memory, Process, free_port, run, tail

ROOT = install.HERE.parent
PRIVATE_POSTGRES = ROOT / "scripts/private-postgres"
PATIENCE = 60  # seconds beyond the window that a case may take


class Bench:
    """What the cases of a run share."""

    def __init__(self, tenure, seconds, warmup, jobs):
        self.tenure, self.seconds, self.warmup, self.jobs = tenure, seconds, warmup, jobs
        self.scratch = Path(tempfile.mkdtemp(prefix="tenure-bench-"))
        self.scratch.chmod(0o711)  # PostgreSQL runs as another user when we are root, and has to get through
        self.postgres_dir, self.url, self.count = None, None, 0
        if machine.filesystem(self.scratch) in ("tmpfs", "ramfs"):
            self.close()
            raise Failed(
                f"{self.scratch.parent} is in memory: syncs cost nothing there, and nothing is durable. "
                "Set TMPDIR to a directory on a disk."
            )

    def close(self):
        if self.postgres_dir:
            os.spawnlp(os.P_WAIT, str(PRIVATE_POSTGRES), str(PRIVATE_POSTGRES), "kill", str(self.postgres_dir))
        shutil.rmtree(self.scratch, ignore_errors=True)

    def fresh(self, name):
        self.count += 1
        path = self.scratch / f"{self.count}-{name}"
        path.mkdir()
        return path

    def log(self, name):
        path = install.LOGS / f"{name}.log"
        path.unlink(missing_ok=True)
        return path

    def keep_logs(self, name, since):
        """Sets aside what was said in a case that failed: the next one would overwrite it."""
        place = install.LOGS / f"failed-{time.strftime('%H%M%S')}-{name}"
        for log in install.LOGS.glob("*.log"):
            if log.stat().st_mtime >= since:
                place.mkdir(exist_ok=True)
                shutil.copy(log, place)

    def quick_run(self, *command):
        return run(command, install.LOGS / "tools.log", 60)

    def psql(self, *statements):
        words = [word for statement in statements for word in ("-c", statement)]
        self.quick_run(self.postgres_bin() / "psql", "-q", "-X", "-v", "ON_ERROR_STOP=1", self.url, *words)

    def postgres_bin(self):
        return Path(self.quick_run(PRIVATE_POSTGRES, "bin-dir").strip())

    def postgres(self):
        """The URL of a PostgreSQL of our own: defaults, fsync on."""
        if not self.url:
            self.postgres_dir = self.scratch / "postgres"
            for _ in range(5):
                try:
                    out = self.quick_run(PRIVATE_POSTGRES, "start", self.postgres_dir, free_port())
                    self.url = out.strip()
                    break
                except Failed as e:
                    if "exit code 75" not in str(e):  # that one is: the port is taken
                        raise
            else:
                raise Failed("no free port for PostgreSQL")
        return self.url

    def settle(self):
        """What the case before left for later is done now, and not by the next one."""
        if self.url:
            self.psql("CHECKPOINT")
        os.sync()

    def loop_options(self, case):
        return ["--steps", case.steps, "--concurrency", case.concurrency, "--seconds", self.seconds, "--warmup", self.warmup]

    def limit(self):
        # Reading everything back takes about as long as the window did.
        return 3 * self.seconds + self.warmup + PATIENCE


class Database:
    """A database of the case's own."""

    def __init__(self, bench, name):
        self.bench, self.name = bench, name
        self.url = f"{bench.postgres().rsplit('/', 1)[0]}/{name}"

    def __enter__(self):
        self.bench.psql(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)", f"CREATE DATABASE {self.name}", "CHECKPOINT")
        return self

    def __exit__(self, *_):
        self.bench.psql(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)")


def last_json(text):
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        raise Failed(f"no result in: {text[-400:]}")
    return json.loads(lines[-1])


def checked(result):
    """Nothing counts that the engine itself does not report as completed."""
    if result["read_back"] != result["completed"]:
        raise Failed(f"{result['completed']} completions were seen, {result['read_back']} read back")
    return result


# --- Ours ----------------------------------------------------------------------------------------


def tenure(bench, case, store, http=False):
    command = [bench.tenure, "--store", store, "--json", "bench", "jobs", "--steps", case.steps,
               "--concurrency", case.concurrency, "--seconds", bench.seconds]
    with Memory() as memory:
        out = run(command + (["--http"] if http else []), bench.log("tenure"), bench.limit(), memory=memory)
    metrics = {}
    for line in out.splitlines():
        figure = json.loads(line)
        metrics[figure["metric"]] = figure["value"]
    # The suite has read back every job that it counts, and fails when one is not completed.
    count = round(metrics["jobs_per_s"] * bench.seconds)
    return {
        "per_second": metrics["jobs_per_s"], "p50_ms": metrics["p50_ms"], "p99_ms": metrics["p99_ms"],
        "completed": count, "read_back": count, "peak_mb": memory.megabytes().get("load"),
        "window_rss_mb": metrics.get("rss_mb"), "cpu_us_per_job": metrics.get("cpu_us_per_job"),
    }


def tenure_here(bench, case):
    return tenure(bench, case, f"sqlite:{bench.fresh('tenure')}")


def tenure_http(bench, case):
    return tenure(bench, case, f"sqlite:{bench.fresh('tenure')}", http=True)


def tenure_postgres(bench, case):
    with Database(bench, "ours") as database:
        return tenure(bench, case, database.url)


def tenure_drain(bench, case):
    with Database(bench, "ours") as database:
        command = [bench.tenure, "--store", database.url, "--json", "bench", "drain", "--jobs", bench.jobs]
        out = run(command, bench.log("tenure"), PATIENCE * 3)
    return drained(out, bench.jobs)


def drained(out, jobs):
    """One object with all of it, or a line per metric as the other suites print."""
    found = {}
    for line in out.splitlines():
        figure = json.loads(line)
        if "metric" in figure:
            figure = {figure["metric"]: figure["value"], "jobs": jobs}
        found.update(figure)
    if found.get("jobs") != jobs or "per_second" not in found:
        raise Failed(f"not the result of draining {jobs} jobs: {out[-400:]}")
    return {"per_second": found["per_second"], "completed": jobs, "read_back": jobs}


# --- Restate -------------------------------------------------------------------------------------


def http(url, body=None, patience=5):
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "accept": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=patience) as answer:
        return answer.read()


def until_up(process, what, ask, patience=60):
    deadline = time.monotonic() + patience
    while True:
        try:
            return ask()
        except (urllib.error.URLError, OSError, Failed) as e:
            if process.popen.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{what} does not come up: {e}\n{tail(process.log)}") from None
        time.sleep(0.1)


def restate(bench, case, service, partitions=None):
    ingress, admin, node, port = (free_port() for _ in range(4))
    # Its defaults, for a single node: every write of its log is synced.
    environment = {
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}", "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}", "RESTATE_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1", "RESTATE_LOG_FILTER": "warn",
    }
    if partitions:
        environment["RESTATE_DEFAULT_NUM_PARTITIONS"] = str(partitions)
    data = bench.fresh("restate")
    server = [install.restate_program(), "--no-logo", "--listen-mode", "tcp", "--node-name", "bench", "--base-dir", data]
    quiet = {"NODE_ENV": "production", "RESTATE_LOGGING": "ERROR"}
    with Memory() as memory, \
            Process([*service, service_address(service, port)], bench.log("restate-service"), env=quiet) as worker, \
            Process(server, bench.log("restate-server"), env=environment, cwd=data) as process:
        memory.watch("server", process.pid)
        memory.watch("service", worker.pid)
        until_up(process, "restate-server", lambda: http(f"http://127.0.0.1:{admin}/health"))
        deployment = {"uri": f"http://127.0.0.1:{port}"}
        until_up(process, "the service", lambda: http(f"http://127.0.0.1:{admin}/deployments", deployment, 30))
        # The first answer shows that the partitions have leaders.
        until_up(process, "the ingress", lambda: http(f"http://127.0.0.1:{ingress}/Bench/work", 1, 30))
        load = [install.TARGET / "release/restate-load", "--ingress", f"127.0.0.1:{ingress}", *bench.loop_options(case)]
        result = last_json(run(load, bench.log("restate-load"), bench.limit(), memory=memory))
        query = "SELECT count(*) AS n FROM sys_invocation WHERE status = 'completed' AND completion_result = 'success'"
        rows = json.loads(http(f"http://127.0.0.1:{admin}/query", {"query": query}, 60))["rows"]
        result["read_back"] = rows[0]["n"] - 1  # without the first
    peaks = memory.megabytes()
    return {**checked(result), "peak_mb": peaks.get("server"), "service_peak_mb": peaks.get("service")}


def service_address(service, port):
    return port if str(service[-1]).endswith(".mjs") else f"127.0.0.1:{port}"


def restate_rust(bench, case):
    # On two cores this is two to three times as fast as the 24 partitions that are its default.
    return restate(bench, case, [install.TARGET / "release/restate-service"], partitions=os.cpu_count())


def restate_default(bench, case):
    return restate(bench, case, [install.TARGET / "release/restate-service"])


def restate_ts(bench, case):
    service = [install.node_program(), install.NODE / "restate-service.mjs"]
    return restate(bench, case, service, partitions=os.cpu_count())


# --- The others ----------------------------------------------------------------------------------


def duroxide(bench, case):
    load = [install.TARGET / "release/duroxide-load", "--directory", bench.fresh("duroxide"),
            "--workers", 8, *bench.loop_options(case)]
    with Memory() as memory:
        result = last_json(run(load, bench.log("duroxide"), bench.limit(), memory=memory))
    return {**checked(result), "peak_mb": memory.megabytes().get("load")}


def temporal(bench, case):
    port = free_port()
    data = bench.fresh("temporal")
    server = [install.PYTHON / "bin/temporal", "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", port,
              "--db-filename", data / "temporal.db", "--log-level", "never", *TEMPORAL_SERVER]
    with Memory() as memory, Process(server, bench.log("temporal-server"), cwd=data) as process:
        memory.watch("server", process.pid)
        health = [install.PYTHON / "bin/temporal", "operator", "cluster", "health", "--address", f"127.0.0.1:{port}"]
        until_up(process, "Temporal's server", lambda: bench.quick_run(*health))
        load = [install.PYTHON / "bin/python", install.SOURCES / "python/temporal_load.py", "--server", f"127.0.0.1:{port}"]
        result = last_json(run([*load, *bench.loop_options(case)], bench.log("temporal"), bench.limit(), memory=memory))
    return {**checked(result), "peak_mb": memory.megabytes().get("server")}


# Its SQLite with a write-ahead log that is synced at each commit: as durable as its default, and faster.
TEMPORAL_SERVER = ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=2"]


def node(bench, case, program, database, *more):
    load = [install.node_program(), "--no-deprecation", install.NODE / program, "--database", database.url, *more]
    with Memory() as memory:
        out = run([*load, *bench.loop_options(case)], bench.log(program), bench.limit(), memory=memory)
    return {**checked(last_json(out)), "peak_mb": memory.megabytes().get("load")}


def dbos(bench, case):
    with Database(bench, "dbos") as database:
        return node(bench, case, "dbos.mjs", database)


def absurd(bench, case):
    with Database(bench, "absurd") as database:
        path = {"PATH": f"{bench.postgres_bin()}:{os.environ['PATH']}"}  # absurdctl uses psql
        run([install.PYTHON / "bin/absurdctl", "init", "-d", database.url], bench.log("absurdctl"), 60, env=path)
        return node(bench, case, "absurd.mjs", database)


def graphile(bench, case, batched=0):
    with Database(bench, "graphile") as database:
        load = [install.node_program(), "--no-deprecation", install.NODE / "graphile.mjs", "--database", database.url,
                "--jobs", bench.jobs, "--batched", batched]
        out = run(load, bench.log("graphile"), PATIENCE * 3)
    return checked(last_json(out))


def graphile_batched(bench, case):
    return graphile(bench, case, batched=1)


HOW = {
    "tenure": tenure_here, "tenure-http": tenure_http, "tenure-postgres": tenure_postgres, "tenure-drain": tenure_drain,
    "restate-rust": restate_rust, "restate-default": restate_default, "restate-ts": restate_ts, "duroxide": duroxide,
    "temporal": temporal, "dbos": dbos, "absurd": absurd, "graphile": graphile, "graphile-batched": graphile_batched,
}
